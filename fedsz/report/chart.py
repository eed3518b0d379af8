"""What a report is made of: charts, tables, and sentences where there is neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from fedsz.report.runs import Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str  # above it; "" where the chart's title says all
    draw: Callable[[Axes], None]  # puts lines, labels and legend entries on the axes
    says: str  # the same in words, for those who do not see it
    height: float = 3.0  # inches


@dataclass(frozen=True)
class Chart:
    """A figure of one or more panels."""

    name: str  # unique in a report; letters, digits and dashes
    title: str
    caption: str  # what is drawn and how it was computed
    provenance: str  # model, data, seeds, machine
    panels: tuple[Panel, ...]

    @classmethod
    def of(cls, setting: Setting, name: str, title: str, caption: str, *panels: Panel) -> Self:
        """Return a chart of a setting's runs."""
        return cls(f"{setting.name}-{name}", title, caption, setting.provenance, panels)


@dataclass(frozen=True)
class Table:
    """Rows of cells, as people read them."""

    name: str  # unique in a report; letters, digits and dashes
    title: str
    caption: str  # what the numbers are
    head: tuple[str, ...]  # a name per column
    rows: Sequence[tuple[str, ...]]
    words: int = 1  # how many columns, from the left, hold words


@dataclass(frozen=True)
class Omitted:
    """A chart or a table that the results do not suffice for."""

    title: str
    why: str  # without a full stop


Item = Chart | Table | Omitted
