"""``fedsz advise``: is compressing worth it on a link, and with what."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsz import formatting
from fedsz.cli.bench import (
    Bounds,
    Codecs,
    Repeats,
    Seconds,
    Threads,
    grid,
    loaded,
    named_codecs,
    print_json,
    progress,
    say,
    show_errors,
    shown_bound,
    where_measured,
)
from fedsz.cli.options import Json, configured
from fedsz.training.options import ADVISE, RunConfig

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedsz.experiments.advise import Answer, Choice
    from fedsz.experiments.bench import Row
    from fedsz.experiments.link_model import Link
    from fedsz.transport.probe import Probed


@configured(ADVISE)
def command(
    config: RunConfig,
    *,
    file: Annotated[
        Path | None, typer.Argument(help="A .pt or .safetensors file, such as clients send.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A model with its initial weights instead, such as alexnet.")
    ] = "",
    bandwidth: Annotated[str, typer.Option(help="Of the link up, such as 10mbps.")] = "",
    server: Annotated[
        str, typer.Option(help="HOST:PORT of a running fedsz server to measure the link to.")
    ] = "",
    codecs: Codecs = "",
    error_bounds: Bounds = "1e-2",
    repeats: Repeats = 3,
    seconds: Seconds = 10.0,
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Say whether compressing is worth it on a link, which codec is best, and where that changes.

    Measures all codecs on this machine, compressing and decompressing, and sets both against the
    seconds that fewer bytes save.
    """
    from rich.console import Console

    from fedsz.codecs import get_lossless
    from fedsz.errors import ConfigError
    from fedsz.experiments.advise import answer, choices
    from fedsz.experiments.bench import initial_weights, measure, sizes, written
    from fedsz.experiments.sweep_plan import error_bounds as read_bounds

    chosen, bounds = named_codecs(codecs), read_bounds(error_bounds)
    lossless = str(get_lossless(config.lossless))
    if (file is None) == (not model):
        raise ConfigError("give a .pt or .safetensors file, or --model NAME, and not both")
    data, state = next(loaded([file], "")) if file else initial_weights(model)
    link, probed = _link(config, bandwidth, server)
    with progress(data, lambda _row: None) as tell:
        rows = measure(
            state,
            data=data,
            codecs=list(dict.fromkeys((*chosen, lossless))),
            bounds=bounds,
            repeats=repeats,
            seconds=seconds,
            threads=threads,
            rule=config.rule,
            threshold=config.threshold,
            on_row=tell,
        )
    raw_bytes, _ = sizes(state, rule=config.rule, threshold=config.threshold)
    ways = choices(rows, lossless=lossless, raw_bytes=raw_bytes)
    answers = [answer(ways, written(bound), link.bandwidth) for bound in bounds]
    advice = Advice(data, rows, ways, answers, link.bandwidth, probed)
    if json:
        print_json(_as_dict(advice))
    else:
        _show(Console(), advice)


@dataclass(frozen=True)
class Advice:
    """All that is printed.

    Attributes:
        data: what is sent.
        rows: what was measured of it.
        ways: how it can be sent, uncompressed first.
        answers: what is best, for each bound.
        bandwidth: of the link up, in bits a second.
        probed: how that was measured; None if it was given.
    """

    data: str
    rows: list[Row]
    ways: list[Choice]
    answers: list[Answer]
    bandwidth: float
    probed: Probed | None


def _link(config: RunConfig, bandwidth: str, server: str) -> tuple[Link, Probed | None]:
    """Return the link up as it is said to be, or as a probe measures it.

    Raises:
        ConfigError: neither or both are given, or one is not usable.
        LinkError: the server cannot be measured.
    """
    from fedsz.errors import ConfigError
    from fedsz.experiments.link_model import Link
    from fedsz.experiments.link_model import bandwidth as read_bandwidth

    if bool(bandwidth) == bool(server):
        raise ConfigError("give --bandwidth such as 10mbps, or --server HOST:PORT to measure it")
    if bandwidth:
        link = Link(read_bandwidth(bandwidth))
        if math.isinf(link.bandwidth):
            raise ConfigError(f"give a finite bandwidth, not {bandwidth!r}")
        return link, None
    from fedsz.transport.probe import probe
    from fedsz.transport.tls import channel_credentials

    files = (config.tls_ca or None, config.tls_cert or None, config.tls_key or None)
    probed = probe(server, credentials=None if config.insecure else channel_credentials(*files))
    return Link(probed.up, probed.latency), probed


def _as_dict(advice: Advice) -> dict[str, Any]:
    """Return everything for machines: seconds, bytes, bits a second; null is no bound or no end."""

    def described(way: Choice) -> dict[str, Any]:
        return {
            **asdict(way),
            "ratio": way.ratio,
            "seconds": way.seconds(advice.bandwidth),
            "worth": way.is_worth(advice.bandwidth),
            "worth_below": way.worth_below,
        }

    return {
        "data": advice.data,
        "machine": advice.rows[0]["machine"],
        "threads": advice.rows[0]["threads"],
        "bandwidth": advice.bandwidth,
        "probe": advice.probed._asdict() if advice.probed else None,
        "choices": [described(way) for way in advice.ways],
        "answers": [
            {
                "error_bound": answer.error_bound,
                "best": described(answer.best),
                "changes": [
                    {
                        "codec": stretch.choice.codec,
                        "error_bound": stretch.choice.error_bound,
                        "from": stretch.low,
                        "to": stretch.high if math.isfinite(stretch.high) else None,
                    }
                    for stretch in answer.stretches
                ],
            }
            for answer in advice.answers
        ],
        "errors": [
            {name: row[name] for name in ("codec", "error_bound", "data", "part", "error")}
            for row in advice.rows
            if row["error"]
        ],
    }


def _show(console: Console, advice: Advice) -> None:
    """Print everything for people, the answer last."""
    bandwidth, plain = advice.bandwidth, advice.ways[0]
    if probed := advice.probed:
        up, down = formatting.bandwidth(probed.up), formatting.bandwidth(probed.down)
        say(console, f"the link: {up} up, {down} down, {1e3 * probed.latency:.3g} ms one way")
    whole, at = formatting.size(plain.raw_bytes), formatting.bandwidth(bandwidth)
    say(console, f"{advice.data}: {whole}, {_time(plain.seconds(bandwidth))} at {at}")
    console.print(_table(advice.ways, bandwidth))
    show_errors(console, advice.rows)
    say(console, f"{where_measured(advice.rows[0])}, both ends", style="dim")
    parts = [way for way in advice.ways if way.measured_bytes < way.raw_bytes]
    if parts:
        text = ", ".join(f"{way.codec} {formatting.size(way.measured_bytes)}" for way in parts)
        say(console, f"~ measured on a part, the rest taken to be like it: {text}", style="dim")
    for answer in advice.answers:
        relative = answer.error_bound.startswith("rel:")
        of = " of each tensor's range" if relative else ""
        say(console, f"within {shown_bound(answer.error_bound)}{of}:")
        for stretch in answer.stretches:
            low = formatting.bandwidth(stretch.low)
            where = f"from {low} on" if stretch.low else "on the slowest links"
            say(console, f"  {where}: {_named(stretch.choice)} is best")
    for answer in advice.answers:
        say(console, _sentence(answer, plain, bandwidth), style="bold")


def _table(ways: list[Choice], bandwidth: float) -> Table:
    at = f"at\n{formatting.bandwidth(bandwidth)}"
    numbers = ("ratio", "encode", "decode", at, "saved", "worth\nit", "worth it\nbelow")
    table = grid(("codec", "bound"), numbers)
    plain = ways[0].seconds(bandwidth)
    for way in ways[1:]:
        part = "~" if way.measured_bytes < way.raw_bytes else ""
        seconds = (way.encode_seconds, way.decode_seconds, way.seconds(bandwidth))
        table.add_row(
            way.codec,
            "exact" if way.exact else shown_bound(way.error_bound),
            f"{part}{way.ratio:.3f}",
            *(f"{part}{_time(value)}" for value in seconds),
            f"{100 * (1 - way.seconds(bandwidth) / plain):.1f} %",
            "yes" if way.is_worth(bandwidth) else "no",
            formatting.bandwidth(way.worth_below) if way.worth_below else "never",
        )
    return table


def _sentence(answer: Answer, plain: Choice, bandwidth: float) -> str:
    before, after = plain.seconds(bandwidth), answer.best.seconds(bandwidth)
    where, within = formatting.bandwidth(bandwidth), shown_bound(answer.error_bound)
    if answer.best is plain:
        return (
            f"At {where} do not compress: no codec within {within} is faster than the"
            f" {_time(before)} that an update takes as it is."
        )
    return (
        f"At {where} compress with {_named(answer.best)}: {_time(after)} an update instead of"
        f" {_time(before)}, {before / after:.3g} times as fast."
    )


def _named(way: Choice) -> str:
    return f"{way.codec} at {shown_bound(way.error_bound)}" if way.error_bound else way.codec


def _time(seconds: float) -> str:
    """Return a time to three digits, or all digits of whole seconds."""
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    unit, factor = next((u for u in (("s", 1), ("ms", 1e3)) if seconds * u[1] >= 1), ("us", 1e6))
    return f"{seconds * factor:.3g} {unit}"
