"""What commands print: lines of text, JSON, and tables without frames."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from fedsz.errors import FedszError
from fedsz.formatting import WARNING, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from fedsz.training.events import Event
    from fedsz.training.options import RunConfig

UNLIMITED: Final = 10_000  # columns

_printing = threading.Lock()


def print_json(value: Any) -> None:
    """Print a line of JSON at once."""
    import msgspec

    _print_line(msgspec.json.encode(value).decode())


def print_event(event: Event) -> None:
    """Print an event as a line of JSON at once."""
    from fedsz.training.events import to_json

    _print_line(to_json(event))


def _print_line(line: str) -> None:
    with _printing:  # print() gives way to other threads before the end of a long line
        print(line, flush=True)


@contextmanager
def failure_as_json(*, json: bool) -> Iterator[None]:
    """With ``--json``, tell the process that started this one of a `FedszError`, as an event."""
    from fedsz.training.events import Failed

    try:
        yield
    except FedszError as err:
        if json:
            print_event(Failed(str(err)))
        raise


def warn_of_update(config: RunConfig) -> None:
    """Print a warning, on stderr, where a run's updates lose for good what they leave out."""
    from fedsz.flower.round_statistics import why_biased

    warn(why_biased(config.compression))


def warn(why: str) -> None:
    """Print a warning on stderr, or nothing where there is no reason for one."""
    if why:
        print(f"{WARNING}{why}", file=sys.stderr)


def say(text: str, style: str = "", *, console: Console | None = None) -> None:
    """Print text as it is, of any width; see `plain`."""
    from rich.console import Console

    screen = console or Console()
    screen.print(plain(text), style=style, highlight=False, soft_wrap=True)


def plain(text: str) -> Text:
    """Return text for rich, though it hold what rich or a terminal would take for commands."""
    from rich.text import Text

    return Text(printable(text))


def print_table(
    heads: Sequence[str],  # of the columns; ``>`` before one says that it holds numbers
    rows: Iterable[Sequence[str]],
    *,
    gap: int = 2,  # blanks between columns
    folded: Mapping[str, int] | None = None,  # the folded columns' least width; None: all words
    bold: Iterable[bool] = repeat(False),  # row by row
) -> None:
    """Print a table whose words are folded on narrow screens, and whose numbers are not."""
    from rich.table import Table

    # No frame: names are long, and terminals have 80 columns.
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    height = max(head.count("\n") for head in heads)
    for head in heads:
        right = head.startswith(">")
        table.add_column(
            "\n" * (height - head.count("\n")) + head.removeprefix(">"),  # at the bottom
            justify="right" if right else "left",
            no_wrap=right or (folded is not None and head not in folded),
            overflow="fold",
            min_width=(folded or {}).get(head),
        )
    for row, strong in zip(rows, bold, strict=False):
        table.add_row(*row, style="bold" if strong else "")
    _console().print(table, markup=False)


def _console() -> Console:
    """Return stdout as rich has it: of any width where it is no terminal, so that names stay whole.

    ``COLUMNS`` in the environment is heeded, as rich does.
    """
    from rich.console import Console

    free = "COLUMNS" not in os.environ and not sys.stdout.isatty()
    return Console(width=UNLIMITED if free else None)
