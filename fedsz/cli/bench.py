"""``fedsz bench``: every codec on your weights. ``fedsz advise``: which of them pays on a link."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fedsz.cli.options import PATH, Command, Handler, configured
from fedsz.cli.output import print_table, say
from fedsz.errors import ConfigError
from fedsz.formatting import bandwidth as rate
from fedsz.formatting import count, size
from fedsz.formatting import seconds as time
from fedsz.training.options import ADVISE, BENCH, RunConfig

if TYPE_CHECKING:
    from fedsz.arrays import StateDict
    from fedsz.experiments.advise import Choice
    from fedsz.experiments.bench import Row

SHOWN_MOST: Final = 99_999  # MB/s; a codec that says more has not touched the bytes


def _measures(command: Handler) -> Handler:
    """Give a command the options of a measurement."""
    decorators = (
        click.option("--codecs", default="", help="Codecs, separated by commas; all by default."),
        click.option(
            "--error-bounds",
            default="1e-2",
            help="Error bounds: 1e-4..1e-1 is one a decade; or 1e-2,abs:1e-3,std:0.1.",
        ),
        click.option(
            "--repeats", default=3, help="Timed passes, after one that warms up and checks."
        ),
        click.option(
            "--seconds",
            default=10.0,
            help="Seconds for all passes of a codec; a slow one makes fewer.",
        ),
        click.option("--threads", default=1, help="Threads of a codec; 0 for one on each core."),
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


@click.command(BENCH, cls=Command)
@configured(BENCH)
@click.argument("files", nargs=-1, type=PATH)
@click.option(
    "--model", default="", help="Models with initial weights, not files, such as alexnet,cnn."
)
@click.option("--results", type=PATH, help="Parquet file that rows are added to.")
@_measures
def bench(
    config: RunConfig,
    *,
    files: tuple[Path, ...],
    model: str,
    results: Path | None,
    **how: Any,
) -> None:
    """Measure codecs on files of weights: ratio, speed both ways, largest error, memory.

    FILES are .pt or .safetensors files. Every element is checked against its bound before a time
    is reported.
    """
    from fedsz.experiments.bench import sizes
    from fedsz.experiments.results import BENCH as TABLE
    from fedsz.experiments.results import Results

    how = _measurement(**how)
    with Results(results, TABLE) if results else nullcontext() as table:

        def on_row(row: Row) -> None:
            if table:
                table.add([row])

        for data, state in _weights(files, model):
            rows = measured(config, data, state, on_row, **how)
            _show(data, rows, sizes(state, rule=config.rule, threshold=config.threshold))


@click.command(ADVISE, cls=Command)
@configured(ADVISE)
@click.argument("file", required=False, type=PATH)
@click.option(
    "--model", default="", help="A model with initial weights, not a file, such as alexnet."
)
@click.option("--bandwidth", required=True, help="Bandwidth of the uplink, such as 10mbps.")
@_measures
def advise(config: RunConfig, *, file: Path | None, model: str, bandwidth: str, **how: Any) -> None:
    """Say whether compression is worth it on a link, and which codec is best.

    FILE is a .pt or .safetensors file, such as clients send. The command measures how fast each
    codec compresses and decompresses on this machine, and compares that with the time that fewer
    bytes save.
    """
    from fedsz.cli.files import read_state_dict
    from fedsz.codecs import get_lossless
    from fedsz.experiments.advise import best, choices
    from fedsz.experiments.bench import initial_weights, sizes, written
    from fedsz.experiments.link_model import Link
    from fedsz.quantities import bandwidth as read_bandwidth

    how = _measurement(**how)
    lossless = str(get_lossless(config.lossless))
    if (file is None) == (not model):
        raise ConfigError("give a .pt or .safetensors file, or --model NAME, and not both")
    speed = Link(read_bandwidth(bandwidth)).bandwidth
    if math.isinf(speed):
        raise ConfigError(f"give a finite bandwidth, not {bandwidth!r}")
    data, state = (file.name, read_state_dict(file)) if file else initial_weights(model)
    how["codecs"] = list(dict.fromkeys((*how["codecs"], lossless)))
    rows = measured(config, data, state, **how)
    raw_bytes, _ = sizes(state, rule=config.rule, threshold=config.threshold)
    ways = choices(rows, lossless=lossless, raw_bytes=raw_bytes)
    advice = {bound: best(ways, bound, speed) for bound in map(written, how["bounds"])}
    _show_advice(data, rows, ways, advice, speed)


def _measurement(*, codecs: str, error_bounds: str, **how: Any) -> dict[str, Any]:
    """Return the arguments of `fedsz.experiments.bench.measure` that the options name."""
    from fedsz.experiments.sweep_plan import error_bounds as read_bounds

    return {"codecs": named_codecs(codecs), "bounds": read_bounds(error_bounds), **how}


def named_codecs(text: str) -> tuple[str, ...]:
    """Return the codecs of a comma list, all codecs for an empty one.

    Raises:
        ConfigError: one of them does not exist.
    """
    from fedsz.codecs import CODECS
    from fedsz.experiments.sweep_plan import codecs

    return codecs(text) if text else tuple(codec.name for codec in CODECS)


def measured(
    config: RunConfig,  # which tensors may be lossy
    data: str,  # the name of `state`
    state: StateDict,
    on_row: Callable[[Row], object] = lambda _row: None,
    **how: Any,  # other arguments of `fedsz.experiments.bench.measure`
) -> list[Row]:
    """Measure codecs, and say on standard error which is done."""
    from fedsz.experiments.bench import measure

    def tell(row: Row) -> None:
        bound = f" at {row['error_bound']}" if row["error_bound"] else ""
        say(f"{row['data']}: {row['codec']}{bound} done", err=True)
        on_row(row)

    rule, threshold = config.rule, config.threshold
    return measure(state, data=data, rule=rule, threshold=threshold, on_row=tell, **how)


def shown_bound(bound: str | None) -> str:
    """Return a result table's bound as users write it."""
    return bound.removeprefix("rel:") if bound else "-"


def say_errors(rows: Iterable[Row]) -> None:
    """Print what could not be measured, and why."""
    for row in rows:
        if row["error"]:
            bound = f" at {shown_bound(row['error_bound'])}" if row["error_bound"] else ""
            of = "" if row["lossy"] else f" ({row['part']})"
            say(f"no {row['codec']}{bound} on {row['data']}{of}: {row['error']}")


def _weights(files: Iterable[Path], models: str) -> Iterator[tuple[str, StateDict]]:
    """Yield the name and the state_dict of each file, and of each model."""
    from fedsz.cli.files import read_state_dict
    from fedsz.experiments.bench import initial_weights
    from fedsz.experiments.sweep_plan import names

    if not files and not models:
        raise ConfigError("give a .pt or .safetensors file, or --model NAME")
    for file in files:  # all before the first is measured
        if not file.is_file():
            raise ConfigError(f"cannot read {file}: no such file")
    for file in files:
        yield file.name, read_state_dict(file)
    for name in names(models, "models") if models else ():
        yield initial_weights(name)


def _show(data: str, rows: list[Row], nbytes: tuple[int, int]) -> None:
    whole, rest = nbytes  # in all, and never lossy

    def lossy(row: Row) -> tuple[str, ...]:
        error = "-" if row["max_error"] is None else f"{row['max_error']:.4f}"
        rmse = "-" if row["rmse"] is None else f"{row['rmse']:.3g}"
        return row["codec"], shown_bound(row["error_bound"]), *_ratio_and_speeds(row), error, rmse

    def lossless(row: Row) -> tuple[str, ...]:
        return row["codec"], row["part"], *_ratio_and_speeds(row)

    say(f"{data}: {size(whole)}, of which {size(rest)} are never lossy")
    speeds = (">ratio", ">compress\nMB/s", ">decompress\nMB/s")
    for heads, cells in (
        (("codec", "bound", *speeds, ">error/\nbound", ">RMSE"), lossy),
        (("codec", "part", *speeds), lossless),
    ):
        lines = [
            (*cells(row), "-" if row["peak_bytes"] is None else size(row["peak_bytes"]))
            for row in rows
            if not row["error"] and row["lossy"] == (cells is lossy)
        ]
        if lines:
            print_table((*heads, ">peak\nmemory"), lines)
    say_errors(rows)
    say(f"{rows[0]['machine']}; medians, {count(rows[0]['threads'], 'thread')}")


def _ratio_and_speeds(row: Row) -> Iterator[str]:
    yield f"{row['ratio']:.3f}"
    for way in ("encode", "decode"):  # MB/s of raw data
        speed = row["raw_bytes"] / 1e6 / row[f"{way}_seconds"]
        yield f"{speed:,.0f}" if speed <= SHOWN_MOST else f"> {SHOWN_MOST:,}"


def _show_advice(
    data: str, rows: list[Row], ways: list[Choice], advice: Mapping[str, Choice], bandwidth: float
) -> None:
    """Print advice for people, the answer last."""
    plain, *coded = ways
    at, before = rate(bandwidth), plain.seconds(bandwidth)

    def cells(way: Choice) -> tuple[str, ...]:
        takes = way.seconds(bandwidth)
        return (
            way.codec,
            "exact" if way.exact else shown_bound(way.error_bound),
            f"{way.ratio:.3f}",
            *map(time, (way.encode_seconds, way.decode_seconds, takes)),
            f"{100 * (1 - takes / before):.1f} %",
            rate(way.worth_below) if way.worth_below else "never",
        )

    say(f"{data}: {size(plain.raw_bytes)}, {time(before)} at {at}")
    numbers = (">ratio", ">encode", ">decode", f">at\n{at}", ">saved")
    print_table(("codec", "bound", *numbers, ">worth it\nbelow"), map(cells, coded))
    say_errors(rows)
    say(f"{rows[0]['machine']}, {count(rows[0]['threads'], 'thread')}, both ends")
    for bound, way in advice.items():
        say(f"At {at} {_sentence(way, plain, bound, bandwidth)}")


def _sentence(way: Choice, plain: Choice, bound: str, bandwidth: float) -> str:
    before, after = plain.seconds(bandwidth), way.seconds(bandwidth)
    if way is plain:
        return (
            f"do not compress: no codec within {shown_bound(bound)} is faster than the"
            f" {time(before)} that an update takes as it is."
        )
    instead = f"{time(after)} an update instead of {time(before)}"
    return f"compress with {_named(way)}: {instead}, {before / after:.3g} times as fast."


def _named(way: Choice) -> str:
    return f"{way.codec} at {shown_bound(way.error_bound)}" if way.error_bound else way.codec
