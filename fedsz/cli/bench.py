"""``fedsz bench``: every codec on weights of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fedsz import formatting
from fedsz.cli.options import Json, configured
from fedsz.training.options import BENCH, RunConfig

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedsz.arrays import StateDict
    from fedsz.experiments.bench import Row

Files = Annotated[list[Path] | None, typer.Argument(help=".pt or .safetensors files.")]
Models = Annotated[
    str,
    typer.Option("--model", help="Models with their initial weights instead, such as alexnet,cnn."),
]
Codecs = Annotated[str, typer.Option(help="Codecs, separated by commas; all by default.")]
Bounds = Annotated[
    str, typer.Option(help="Bounds: 1e-4..1e-1 is one a decade; or 1e-2,abs:1e-3,std:0.1.")
]
Repeats = Annotated[int, typer.Option(help="Timed passes, after one that warms up and checks.")]
Seconds = Annotated[
    float,
    typer.Option(help="For all passes of a codec; slow ones make fewer, or take part of the data."),
]
Threads = Annotated[int, typer.Option(help="Threads of a codec; 0 for one on each core.")]

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
    from rich.console import Console

    from fedsz.experiments.bench import measure, sizes
    from fedsz.experiments.sweep_plan import error_bounds as read_bounds

    chosen, bounds = named_codecs(codecs), read_bounds(error_bounds)
    rule, threshold = config.rule, config.threshold
    with _added_to(results) as add:

        def on_row(row: Row) -> None:
            add(row)
            if json:
                print_json(row)

        for data, state in loaded(files, model):
            with progress(data, on_row) as tell:
                rows = measure(
                    state,
                    data=data,
                    codecs=chosen,
                    bounds=bounds,
                    repeats=repeats,
                    seconds=seconds,
                    threads=threads,
                    rule=rule,
                    threshold=threshold,
                    on_row=tell,
                )
            if not json:
                show(Console(), data, rows, sizes(state, rule=rule, threshold=threshold))


def named_codecs(text: str) -> tuple[str, ...]:
    """Return the codecs of a comma list, all there are for an empty one.

    Raises:
        ConfigError: one of them does not exist.
    """
    from fedsz.codecs import CODECS
    from fedsz.experiments.sweep_plan import codecs

    return codecs(text) if text else tuple(codec.name for codec in CODECS)


def loaded(files: list[Path] | None, models: str) -> Iterator[tuple[str, StateDict]]:
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
    for file in files or ():  # better now than after the first has been measured
        if not file.is_file():
            raise ConfigError(f"cannot read {file}: no such file")
    for file in files or ():
        yield file.name, read_state_dict(file)
    for name in names(models, "models") if models else ():
        yield initial_weights(name)


@contextmanager
def progress(data: str, on_row: Callable[[Row], object]) -> Iterator[Callable[[Row], object]]:
    """Say on standard error which codec has been measured, where a person may read it."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(f"{data}: reading") as status:

        def tell(row: Row) -> None:
            bound = f" at {row['error_bound']}" if row["error_bound"] else ""
            status.update(f"{row['data']}: {row['codec']}{bound} done")
            on_row(row)

        yield tell


def print_json(value: Any) -> None:
    """Print a line of JSON at once."""
    import msgspec

    print(msgspec.json.encode(value).decode(), flush=True)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line as it is."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def show(console: Console, data: str, rows: list[Row], nbytes: tuple[int, int]) -> None:
    """Print the rows of one state_dict, of so many bytes in all and never lossy."""
    whole, rest = map(formatting.size, nbytes)
    say(console, f"{data}: {whole}, of which {rest} are never lossy")
    lossy = [row for row in rows if row["lossy"] and not row["error"]]
    lossless = [row for row in rows if not row["lossy"] and not row["error"]]
    if lossy:
        console.print(_lossy_table(lossy))
    if lossless:
        console.print(_lossless_table(lossless, nbytes))
    show_errors(console, rows)
    say(console, f"medians on {where_measured(rows[0])}", style="dim")


def where_measured(row: Row) -> str:
    """Return the machine and the threads that a codec had."""
    return f"{row['machine']}, {formatting.count(row['threads'], 'thread')}"


def show_errors(console: Console, rows: list[Row]) -> None:
    """Print what could not be measured, and why."""
    for row in rows:
        if row["error"]:
            bound = f" at {shown_bound(row['error_bound'])}" if row["error_bound"] else ""
            part = "" if row["lossy"] else f" ({row['part']})"
            say(console, f"no {row['codec']}{bound} on {row['data']}{part}: {row['error']}")


def _lossy_table(rows: list[Row]) -> Table:
    table = grid(
        ("codec", "bound"),
        ("ratio", "compress\nMB/s", "decompress\nMB/s", "error/\nbound", "RMSE", "peak\nmemory"),
    )
    for row in rows:
        table.add_row(
            row["codec"],
            shown_bound(row["error_bound"]),
            f"{row['ratio']:.3f}",
            *_speeds(row),
            "-" if row["max_error"] is None else f"{row['max_error']:.4f}",
            "-" if row["rmse"] is None else f"{row['rmse']:.3g}",
            _memory(row),
        )
    return table


def _lossless_table(rows: list[Row], nbytes: tuple[int, int]) -> Table:
    from fedsz.experiments.bench import EVERYTHING

    table = grid(
        ("codec", "part"),
        ("measured", "ratio", "compress\nMB/s", "decompress\nMB/s", "peak\nmemory"),
    )
    for row in rows:
        whole = nbytes[0] if row["part"] == EVERYTHING else nbytes[1]
        share = f"{100 * row['raw_bytes'] / whole:.1f} %" if row["raw_bytes"] < whole else "all"
        table.add_row(
            row["codec"],
            row["part"],
            f"{formatting.size(row['raw_bytes'])}, {share}",
            f"{row['ratio']:.3f}",
            *_speeds(row),
            _memory(row),
        )
    return table


def grid(left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    """Return a table with columns of words, then columns of numbers."""
    from rich.table import Table

    # Narrow: the widest has ten columns, and terminals have 80 characters.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in left:
        table.add_column(name, overflow="fold", vertical="bottom")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    return table


def shown_bound(bound: str | None) -> str:
    """Return a result table's bound as users write it."""
    return bound.removeprefix("rel:") if bound else "-"


def _speeds(row: Row) -> tuple[str, str]:
    """Return MB/s of raw data, each way."""
    speeds = (row["raw_bytes"] / 1e6 / row[f"{way}_seconds"] for way in ("encode", "decode"))
    compress, decompress = (
        f"{speed:,.0f}" if speed <= SHOWN_MOST else f"> {SHOWN_MOST:,}" for speed in speeds
    )
    return compress, decompress


def _memory(row: Row) -> str:
    return "-" if row["peak_bytes"] is None else formatting.size(row["peak_bytes"])


@contextmanager
def _added_to(path: Path | None) -> Iterator[Callable[[Row], object]]:
    """Give a function that adds a row to the result file, if one is asked for."""
    if path is None:
        yield lambda _row: None
        return
    from fedsz.experiments.results import BENCH, Results

    with Results(path, BENCH) as results:
        yield lambda row: results.add([row])
