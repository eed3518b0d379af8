"""``fedsz advise``: is compressing worth it on a link, and with what."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsz.cli import bench
from fedsz.cli.options import Json, configured
from fedsz.cli.output import print_json, print_table, say
from fedsz.formatting import bandwidth as rate
from fedsz.formatting import count, size
from fedsz.formatting import seconds as time
from fedsz.training.option import ADVISE
from fedsz.training.options import RunConfig

if TYPE_CHECKING:
    from fedsz.experiments.advise import Answer, Choice, Stretch
    from fedsz.experiments.bench import Row


@configured(ADVISE)
def command(
    config: RunConfig,
    *,
    file: Annotated[
        Path | None, typer.Argument(help="A .pt or .safetensors file, such as clients send.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A model with initial weights, not a file, such as alexnet.")
    ] = "",
    bandwidth: Annotated[str, typer.Option(help="Bandwidth of the uplink, such as 10mbps.")] = "",
    codecs: bench.Codecs = "",
    error_bounds: bench.Bounds = "1e-2",
    repeats: bench.Repeats = 3,
    seconds: bench.Seconds = 10.0,
    threads: bench.Threads = 1,
    json: Json = False,
) -> None:
    """Say whether compression is worth it on a link, which codec is best, and where that changes.

    It measures how fast each codec compresses and decompresses on this machine, and compares that
    with the time that fewer bytes save.
    """
    from fedsz.cli.files import read_state_dict
    from fedsz.codecs import get_lossless
    from fedsz.errors import ConfigError
    from fedsz.experiments.advise import answer, choices
    from fedsz.experiments.bench import initial_weights, sizes, written
    from fedsz.experiments.sweep_plan import error_bounds as read_bounds

    chosen, bounds = bench.named_codecs(codecs), read_bounds(error_bounds)
    lossless = str(get_lossless(config.lossless))
    if (file is None) == (not model):
        raise ConfigError("give a .pt or .safetensors file, or --model NAME, and not both")
    data, state = (file.name, read_state_dict(file)) if file else initial_weights(model)
    speed = _bandwidth(bandwidth)
    how: dict[str, Any] = {"repeats": repeats, "seconds": seconds, "threads": threads}
    specs = list(dict.fromkeys((*chosen, lossless)))
    rows = bench.measured(config, data, state, codecs=specs, bounds=bounds, **how)
    raw_bytes, _ = sizes(state, rule=config.rule, threshold=config.threshold)
    ways = choices(rows, lossless=lossless, raw_bytes=raw_bytes)
    answers = [answer(ways, written(bound), speed) for bound in bounds]
    advice = _Advice(data, rows, ways, answers, speed)
    if json:
        print_json(advice.as_dict())
    else:
        advice.show()


def _bandwidth(text: str) -> float:
    """Return the uplink in bits a second."""
    from fedsz.errors import ConfigError
    from fedsz.experiments.link_model import Link
    from fedsz.quantities import bandwidth as read_bandwidth

    if not text:
        raise ConfigError("give --bandwidth such as 10mbps")
    link = Link(read_bandwidth(text))
    if math.isinf(link.bandwidth):
        raise ConfigError(f"give a finite bandwidth, not {text!r}")
    return link.bandwidth


@dataclass(frozen=True)
class _Advice:
    """The measurements and the advice; ``bandwidth`` in bits a second."""

    data: str
    rows: list[Row]
    ways: list[Choice]
    answers: list[Answer]
    bandwidth: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for machines: seconds, bytes, bits a second; null is no bound or no end."""
        failed = ("codec", "error_bound", "data", "part", "error")
        answers = []
        for answer in self.answers:
            changes = list(map(_change, answer.stretches))
            best = self._described(answer.best)
            answers.append({"error_bound": answer.error_bound, "best": best, "changes": changes})
        return {
            "data": self.data,
            **{name: self.rows[0][name] for name in ("machine", "threads")},
            "bandwidth": self.bandwidth,
            "choices": list(map(self._described, self.ways)),
            "answers": answers,
            "errors": [{name: row[name] for name in failed} for row in self.rows if row["error"]],
        }

    def _described(self, way: Choice) -> dict[str, Any]:
        seconds, worth = way.seconds(self.bandwidth), way.is_worth(self.bandwidth)
        more = {"seconds": seconds, "worth": worth, "worth_below": way.worth_below}
        return {**asdict(way), "ratio": way.ratio, **more}

    def show(self) -> None:
        """Print it for people, the answer last."""
        plain, *coded = self.ways
        at = rate(self.bandwidth)
        takes = time(plain.seconds(self.bandwidth))
        say(f"{self.data}: {size(plain.raw_bytes)}, {takes} at {at}")
        numbers = (">ratio", ">encode", ">decode", f">at\n{at}", ">saved")
        heads = ("codec", "bound", *numbers, ">worth\nit", ">worth it\nbelow")
        print_table(heads, map(self._cells, coded), gap=1)
        bench.say_errors(self.rows)
        threads = count(self.rows[0]["threads"], "thread")
        say(f"{self.rows[0]['machine']}, {threads}, both ends", "dim")
        partly = [way for way in self.ways if way.measured_bytes < way.raw_bytes]
        if parts := [f"{way.codec} {size(way.measured_bytes)}" for way in partly]:
            say(f"~ measured on a part, the rest taken to be like it: {', '.join(parts)}", "dim")
        for answer in self.answers:
            of = " of each tensor's range" if answer.error_bound.startswith("rel:") else ""
            say(f"within {bench.shown_bound(answer.error_bound)}{of}:")
            for stretch in answer.stretches:
                where = f"from {rate(stretch.low)} on" if stretch.low else "on the slowest links"
                say(f"  {where}: {_named(stretch.choice)} is best")
        for answer in self.answers:
            say(f"At {at} {self._sentence(answer)}", "bold")

    def _cells(self, way: Choice) -> tuple[str, ...]:
        takes, plain = (choice.seconds(self.bandwidth) for choice in (way, self.ways[0]))
        part = "~" if way.measured_bytes < way.raw_bytes else ""
        measured = (f"{way.ratio:.3f}", *map(time, (way.encode_seconds, way.decode_seconds, takes)))
        return (
            way.codec,
            "exact" if way.exact else bench.shown_bound(way.error_bound),
            *(part + number for number in measured),
            f"{100 * (1 - takes / plain):.1f} %",
            "yes" if way.is_worth(self.bandwidth) else "no",
            rate(way.worth_below) if way.worth_below else "never",
        )

    def _sentence(self, answer: Answer) -> str:
        plain = self.ways[0]
        before, after = plain.seconds(self.bandwidth), answer.best.seconds(self.bandwidth)
        if answer.best is plain:
            bound = bench.shown_bound(answer.error_bound)
            return (
                f"do not compress: no codec within {bound} is faster than the {time(before)} that"
                " an update takes as it is."
            )
        instead = f"{time(after)} an update instead of {time(before)}"
        times = f"{before / after:.3g} times as fast"
        return f"compress with {_named(answer.best)}: {instead}, {times}."


def _change(stretch: Stretch) -> dict[str, Any]:
    way, high = stretch.choice, stretch.high if math.isfinite(stretch.high) else None
    return {"codec": way.codec, "error_bound": way.error_bound, "from": stretch.low, "to": high}


def _named(way: Choice) -> str:
    return f"{way.codec} at {bench.shown_bound(way.error_bound)}" if way.error_bound else way.codec
