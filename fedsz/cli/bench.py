"""``fedsz bench``: every codec on your weights. ``fedsz advise`` measures the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fedsz.cli.options import Json, configured
from fedsz.cli.output import print_json, print_table, say
from fedsz.formatting import count, size
from fedsz.training.option import BENCH
from fedsz.training.options import RunConfig

if TYPE_CHECKING:
    from fedsz.arrays import StateDict
    from fedsz.experiments.bench import Row

Codecs = Annotated[str, typer.Option(help="Codecs, separated by commas; all by default.")]
Bounds = Annotated[
    str, typer.Option(help="Error bounds: 1e-4..1e-1 is one a decade; or 1e-2,abs:1e-3,std:0.1.")
]
Repeats = Annotated[int, typer.Option(help="Timed passes, after one that warms up and checks.")]
Seconds = Annotated[
    float,
    typer.Option(
        help="Seconds for all passes of a codec; a slow one makes fewer, or takes part of the data."
    ),
]
Threads = Annotated[int, typer.Option(help="Threads of a codec; 0 for one on each core.")]

SHOWN_MOST: Final = 99_999  # MB/s; a codec that says more has not touched the bytes


@configured(BENCH)
def command(
    config: RunConfig,
    *,
    files: Annotated[list[Path] | None, typer.Argument(help=".pt or .safetensors files.")] = None,
    model: Annotated[
        str, typer.Option(help="Models with initial weights, not files, such as alexnet,cnn.")
    ] = "",
    codecs: Codecs = "",
    error_bounds: Bounds = "1e-2",
    repeats: Repeats = 3,
    seconds: Seconds = 10.0,
    threads: Threads = 1,
    results: Annotated[
        Path | None, typer.Option(help="Parquet file that rows are added to.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure codecs on files of weights: ratio, speed both ways, largest error, memory.

    Every element is checked against its bound before a time is reported. --json prints a line for
    each row.
    """
    from fedsz.experiments.bench import sizes
    from fedsz.experiments.results import BENCH as TABLE
    from fedsz.experiments.results import Results
    from fedsz.experiments.sweep_plan import error_bounds as read_bounds

    how: dict[str, Any] = {"codecs": named_codecs(codecs), "bounds": read_bounds(error_bounds)}
    how |= {"repeats": repeats, "seconds": seconds, "threads": threads}
    with Results(results, TABLE) if results else nullcontext() as kept:

        def on_row(row: Row) -> None:
            if kept:
                kept.add([row])
            if json:
                print_json(row)

        for data, state in _weights(files or [], model):
            rows = measured(config, data, state, on_row, **how)
            if not json:
                _show(data, rows, sizes(state, rule=config.rule, threshold=config.threshold))


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
    """Measure codecs, and say on standard error which is done, where a person may read it."""
    from rich.console import Console

    from fedsz.experiments.bench import measure

    with Console(stderr=True).status(f"{data}: reading") as status:

        def tell(row: Row) -> None:
            bound = f" at {row['error_bound']}" if row["error_bound"] else ""
            status.update(f"{row['data']}: {row['codec']}{bound} done")
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


def _weights(files: list[Path], models: str) -> Iterator[tuple[str, StateDict]]:
    """Yield the name and the state_dict of each file, and of each model."""
    from fedsz.cli.files import read_state_dict
    from fedsz.errors import ConfigError
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
    from fedsz.experiments.bench import EVERYTHING

    whole, rest = nbytes  # in all, and never lossy

    def lossy(row: Row) -> tuple[str, ...]:
        error = "-" if row["max_error"] is None else f"{row['max_error']:.4f}"
        rmse = "-" if row["rmse"] is None else f"{row['rmse']:.3g}"
        return row["codec"], shown_bound(row["error_bound"]), *_ratio_and_speeds(row), error, rmse

    def lossless(row: Row) -> tuple[str, ...]:
        took, there = row["raw_bytes"], whole if row["part"] == EVERYTHING else rest
        share = f"{100 * took / there:.1f} %" if took < there else "all"
        return row["codec"], row["part"], f"{size(took)}, {share}", *_ratio_and_speeds(row)

    say(f"{data}: {size(whole)}, of which {size(rest)} are never lossy")
    speeds = (">ratio", ">compress\nMB/s", ">decompress\nMB/s")
    for heads, cells in (
        (("codec", "bound", *speeds, ">error/\nbound", ">RMSE"), lossy),
        (("codec", "part", ">measured", *speeds), lossless),
    ):
        lines = [
            (*cells(row), "-" if row["peak_bytes"] is None else size(row["peak_bytes"]))
            for row in rows
            if not row["error"] and row["lossy"] == (cells is lossy)
        ]
        if lines:
            print_table((*heads, ">peak\nmemory"), lines, gap=1)
    say_errors(rows)
    say(f"{rows[0]['machine']}; medians, {count(rows[0]['threads'], 'thread')}", "dim")


def _ratio_and_speeds(row: Row) -> Iterator[str]:
    yield f"{row['ratio']:.3f}"
    for way in ("encode", "decode"):  # MB/s of raw data
        speed = row["raw_bytes"] / 1e6 / row[f"{way}_seconds"]
        yield f"{speed:,.0f}" if speed <= SHOWN_MOST else f"> {SHOWN_MOST:,}"
