"""``fedsz bench``: every codec on weights of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fedsz.cli.measuring import (
    Bounds,
    Codecs,
    Repeats,
    Seconds,
    Threads,
    checked_file,
    measured,
    named_codecs,
    say_errors,
    shown_bound,
)
from fedsz.cli.options import Json, configured
from fedsz.cli.output import print_json, print_table, say
from fedsz.formatting import count, size
from fedsz.training.options import BENCH, RunConfig

if TYPE_CHECKING:
    from fedsz.arrays import StateDict
    from fedsz.experiments.bench import Row

Files = Annotated[list[Path] | None, typer.Argument(help=".pt or .safetensors files.")]
Models = Annotated[
    str,
    typer.Option("--model", help="Models with their initial weights instead, such as alexnet,cnn."),
]

SHOWN_MOST: Final = 99_999  # MB/s; a codec that says more has not touched the bytes


@configured(BENCH)
def command(
    config: RunConfig,
    *,
    files: Files = None,
    model: Models = "",
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

    chosen, bounds = named_codecs(codecs), read_bounds(error_bounds)
    with Results(results, TABLE) if results else nullcontext() as kept:

        def on_row(row: Row) -> None:
            if kept:
                kept.add([row])
            if json:
                print_json(row)

        for data, state in _weights(files or [], model):
            rows = measured(
                config,
                data,
                state,
                on_row,
                codecs=chosen,
                bounds=bounds,
                repeats=repeats,
                seconds=seconds,
                threads=threads,
            )
            if not json:
                _show(data, rows, sizes(state, rule=config.rule, threshold=config.threshold))


def _weights(files: list[Path], models: str) -> Iterator[tuple[str, StateDict]]:
    """Yield the name and the state_dict of each file, and of each model.

    Raises:
        ConfigError: there is none, one cannot be read or is no state_dict, or no such model.
    """
    from fedsz.cli.files import read_state_dict
    from fedsz.errors import ConfigError
    from fedsz.experiments.bench import initial_weights
    from fedsz.experiments.sweep_plan import names

    if not files and not models:
        raise ConfigError("give a .pt or .safetensors file, or --model NAME")
    for file in [checked_file(file) for file in files]:  # all before the first is measured
        yield file.name, read_state_dict(file)
    for name in names(models, "models") if models else ():
        yield initial_weights(name)


def _show(data: str, rows: list[Row], nbytes: tuple[int, int]) -> None:
    """Print the rows of one state_dict, of so many bytes in all and never lossy."""
    from fedsz.experiments.bench import EVERYTHING

    whole, rest = nbytes
    say(f"{data}: {size(whole)}, of which {size(rest)} are never lossy")
    good = [row for row in rows if not row["error"]]
    speeds = (">compress\nMB/s", ">decompress\nMB/s")
    if lossy := [row for row in good if row["lossy"]]:
        print_table(
            ("codec", "bound", ">ratio", *speeds, ">error/\nbound", ">RMSE", ">peak\nmemory"),
            (
                (
                    row["codec"],
                    shown_bound(row["error_bound"]),
                    f"{row['ratio']:.3f}",
                    *_speeds(row),
                    "-" if row["max_error"] is None else f"{row['max_error']:.4f}",
                    "-" if row["rmse"] is None else f"{row['rmse']:.3g}",
                    _memory(row),
                )
                for row in lossy
            ),
            gap=1,
        )
    if lossless := [row for row in good if not row["lossy"]]:
        print_table(
            ("codec", "part", ">measured", ">ratio", *speeds, ">peak\nmemory"),
            (
                (
                    row["codec"],
                    row["part"],
                    _measured(row["raw_bytes"], whole if row["part"] == EVERYTHING else rest),
                    f"{row['ratio']:.3f}",
                    *_speeds(row),
                    _memory(row),
                )
                for row in lossless
            ),
            gap=1,
        )
    say_errors(rows)
    say(f"{rows[0]['machine']}; medians, {count(rows[0]['threads'], 'thread')}", "dim")


def _measured(part: int, whole: int) -> str:
    return f"{size(part)}, " + (f"{100 * part / whole:.1f} %" if part < whole else "all")


def _speeds(row: Row) -> Iterator[str]:
    """Yield MB/s of raw data, each way."""
    for way in ("encode", "decode"):
        speed = row["raw_bytes"] / 1e6 / row[f"{way}_seconds"]
        yield f"{speed:,.0f}" if speed <= SHOWN_MOST else f"> {SHOWN_MOST:,}"


def _memory(row: Row) -> str:
    return "-" if row["peak_bytes"] is None else size(row["peak_bytes"])
