"""What ``fedsz bench`` and ``fedsz advise`` share: options, progress, and names for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsz.cli.output import say

if TYPE_CHECKING:
    from fedsz.arrays import StateDict
    from fedsz.experiments.bench import Row
    from fedsz.training.options import RunConfig

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


def named_codecs(text: str) -> tuple[str, ...]:
    """Return the codecs of a comma list, all there are for an empty one.

    Raises:
        ConfigError: one of them does not exist.
    """
    from fedsz.codecs import CODECS
    from fedsz.experiments.sweep_plan import codecs

    return codecs(text) if text else tuple(codec.name for codec in CODECS)


def checked_file(file: Path) -> Path:
    """Return the name of a file that is there.

    Raises:
        ConfigError: it is not.
    """
    from fedsz.errors import ConfigError

    if not file.is_file():
        raise ConfigError(f"cannot read {file}: no such file")
    return file


def measured(
    config: RunConfig,
    data: str,
    state: StateDict,
    on_row: Callable[[Row], object] = lambda _row: None,
    **how: Any,
) -> list[Row]:
    """Measure codecs, and say on standard error which is done, where a person may read it.

    Args:
        config: which tensors may be lossy.
        data: the name of ``state``.
        state: what is measured.
        on_row: told of each row as it comes.
        how: other arguments of `fedsz.experiments.bench.measure`.
    """
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
