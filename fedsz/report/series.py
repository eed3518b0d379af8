"""Series of values over rounds, bounds or bandwidths, and how all figures draw them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from fedsz.bounds import ErrorBound
from fedsz.formatting import seconds, tick
from fedsz.report.chart import Panel
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread, named
from fedsz.report.style import LineStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

KIND_NAMES: Final = {
    "rel": "error bound, of each tensor's range",
    "abs": "error bound, absolute",
    "std": "error bound, in standard deviations",
}

CROWDED: Final = 20  # points of a line above which they have no marks

Series = Mapping[float, Spread]  # by the place on the horizontal axis, in order
Styles = Mapping[str, LineStyle]  # by the label of a line


def series_of(points: Iterable[tuple[float, float]]) -> Series:
    """Return the spread of the finite values at each place."""
    values: dict[float, list[float]] = defaultdict(list)
    for place, value in points:
        values[place].append(value)
    return {place: known for place in sorted(values) if (known := Spread.of(values[place]))}


def spread_note(runs: Sequence[Run]) -> str:
    """Say what lines and shades mean."""
    if len({run.seed for run in runs}) > 1:
        return "Lines are medians over seeds, shades reach from the least to the greatest."
    return "There is one seed, so no spread is shown."


def thinned(bounds: Sequence[ErrorBound], number: int) -> Sequence[ErrorBound]:
    """Return at most ``number`` bounds, the first and the last among them."""
    if len(bounds) <= number:
        return bounds
    step = (len(bounds) - 1) / (number - 1)
    return [bounds[round(i * step)] for i in range(number)]


def others_note(left: int) -> str:
    """Say that so many bounds are not drawn."""
    return f" {left} other bounds are in the table." if left > 0 else ""


def _by_kind(bounds: Sequence[ErrorBound]) -> list[tuple[str, list[ErrorBound]]]:
    """Return the kinds of which there are two bounds or more, with their bounds."""
    kinds = [(kind, list(group)) for kind, group in groupby(bounds, key=lambda b: b.kind)]
    return [(kind, group) for kind, group in kinds if len(group) > 1]


def too_few_bounds(setting: Setting) -> str:
    """Say why nothing can be drawn over bounds; "" if it can."""
    if _by_kind(setting.bounds):
        return ""
    if not setting.bounds:
        return "no run has an error bound"
    return f"it takes two bounds of a kind; there is {' and '.join(map(named, setting.bounds))}"


def bounds_panels(
    setting: Setting,
    value: Callable[[Run], float],  # NaN if a run has none
    styles: Styles,
    says: Callable[[Mapping[str, Series]], str],  # lines by label, in words
    vertical: Callable[[Axes], object],  # names the vertical axis
    title: str = "",  # of each panel
    factor: float = 1,  # from values to what the axis shows
    plain: Spread | None = None,  # of uncompressed updates, if their runs do not tell it
) -> list[Panel]:
    """Return lines of a value of runs over bounds, a panel for each kind of bound."""
    panels = []
    levels = {UNCOMPRESSED: plain} if plain else {}
    for group in setting.at(None):
        if level := Spread.of(map(value, group.runs)):
            levels.setdefault(group.label, level)
    for kind, bounds in _by_kind(setting.bounds):
        points: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for group in setting.groups:
            if group.bound in bounds:
                points[group.label] += [(group.bound.value, value(run)) for run in group.runs]
        lines = {label: found for label, of in points.items() if (found := series_of(of))}
        ticks = sorted({x for line in lines.values() for x in line})

        def axes(ax: Axes, kind: str = kind, ticks: Sequence[float] = ticks) -> None:
            ax.set_xscale("log")
            if len(ticks) <= 6:  # there is room for the bounds themselves
                ax.set_xticks(ticks, [f"{value:g}" for value in ticks])
                ax.set_xticks([], minor=True)
            ax.set_xlabel(KIND_NAMES[kind])
            vertical(ax)

        panels.append(lines_panel(title, lines, styles, says(lines), axes, levels, factor))
    return panels


def lines_panel(
    title: str,
    lines: Mapping[str, Series],  # by label
    styles: Styles,
    says: str,
    axes: Callable[[Axes], None],  # names and scales the axes, after all is drawn
    levels: Mapping[str, Spread] = MappingProxyType({}),  # horizontal lines, by label
    factor: float = 1,  # from values to what the axis shows
    height: float = 3.0,  # inches
) -> Panel:
    """Return a panel of medians as lines, shaded from the least to the greatest."""

    def draw(ax: Axes) -> None:
        for label, level in levels.items():
            ax.axhline(factor * level.middle, label=label, **styles[label].line(markers=False))
            if level.count > 1:
                low, high = factor * level.least, factor * level.greatest
                ax.axhspan(low, high, color=styles[label].colour, alpha=0.1, linewidth=0)
        for label, line in lines.items():
            if not line:
                continue
            x, found, style = list(line), list(line.values()), styles[label]
            least, middle, greatest = (
                factor
                * np.array([(value.least, value.middle, value.greatest) for value in found]).T
            )
            if any(value.count > 1 for value in found):
                ax.fill_between(x, least, greatest, color=style.colour, alpha=0.18, linewidth=0)
            ax.plot(x, middle, label=label, **style.line(markers=len(x) <= CROWDED))
        axes(ax)

    return Panel(title, draw, says, height)


def time_axis(ax: Axes) -> None:
    """Make the vertical axis logarithmic, with times that carry their unit."""
    ax.set_yscale("log")
    log_axis(ax.yaxis, lambda value: tick(value, seconds))


def log_axis(
    axis: Axis,
    show: Callable[[float], str],  # a value as people read it
    room: float = 200,  # how many times the least the greatest may be, for all three to have room
) -> None:
    """Name the powers of ten of a logarithmic axis; twice and five times them where few fit.

    An axis that is too short for two of those has round numbers between.
    """
    from matplotlib.ticker import MaxNLocator, NullLocator

    axis.set_major_formatter(lambda value, _: show(value))
    axis.set_minor_locator(NullLocator())  # eight marks without a name for each that has one
    low, high = sorted(axis.get_view_interval())
    if high < room * low:
        usual = [m * 10.0**p for p in range(-9, 16) for m in (1, 2, 5)]
        if sum(low <= value <= high for value in usual) < 2:
            usual = list(MaxNLocator(5).tick_values(low, high))
        axis.set_ticks([value for value in usual if low <= value <= high])
