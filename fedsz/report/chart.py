"""What a report is made of: charts, tables, and sentences where there is neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: above it; "" where the chart's title says all.
        draw: puts lines, labels and legend entries on the axes.
        says: the same in words, for those who do not see it.
        height: in inches.
    """

    title: str
    draw: Callable[[Axes], None]
    says: str
    height: float = 3.0


@dataclass(frozen=True)
class Chart:
    """A figure of one or more panels.

    Attributes:
        name: unique in a report; letters, digits and dashes.
        title: of the figure.
        caption: what is drawn and how it was computed.
        provenance: model, data, seeds, machine.
        panels: at least one.
    """

    name: str
    title: str
    caption: str
    provenance: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Absent:
    """A figure or table that the results do not suffice for.

    Attributes:
        title: which.
        why: a sentence.
    """

    title: str
    why: str


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        name: unique in a report; letters, digits and dashes.
        title: of the table.
        caption: what the numbers are.
        head: a name per column.
        rows: cells, as people read them.
        words: how many columns, from the left, hold words.
    """

    name: str
    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
