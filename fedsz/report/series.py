"""Series of values over rounds, bounds, bytes or bandwidths, and how all figures draw them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from fedsz.bounds import ErrorBound
from fedsz.formatting import tick
from fedsz.report.chart import Panel
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread, named
from fedsz.report.style import LIGHT, LineStyle

if TYPE_CHECKING:
    import matplotlib.axis
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Axis:
    """What an axis is of; one that is not logarithmic has whole numbers if it is horizontal."""

    name: str
    show: Callable[[float], str] = "{:g}".format  # a value as people read it
    log: bool = False


ROUNDS: Final = Axis("round")
PERCENT: Final = Axis("accuracy, %", "{:.2f}".format)
TIME: Final = Axis("time", tick, log=True)
BOUNDS: Final = {
    "rel": Axis("error bound, of each tensor's range", log=True),
    "abs": Axis("error bound, absolute", log=True),
    "std": Axis("error bound, in standard deviations", log=True),
}

CROWDED: Final = 20  # points of a line above which they have no marks
FEW: Final = 6  # places on a horizontal axis that have room for their own names,
APART: Final = 1.5  # if each is so many times the one before it
GREY: Final = LineStyle(LIGHT["soft"], "-", "o")  # of lines that no legend names

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
    y: Axis,  # of the values
    title: str = "",  # of each panel
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
        lines = {label: series_of(found) for label, found in points.items()}
        panels.append(lines_panel(title, lines, styles, BOUNDS[kind], y, levels))
    return panels


def _draw_line(ax: Axes, label: str, line: Series, styles: Styles) -> None:
    """Draw medians as a line, shaded from the least to the greatest; one point has a whisker."""
    style, places, found = styles.get(label, GREY), list(line), list(line.values())
    look = style.line(markers=len(line) <= CROWDED)
    look |= {"label": label} if label in styles else {"linewidth": 0.8, "alpha": 0.6}
    middles = [value.middle for value in found]
    least, greatest = ([getattr(v, end) for v in found] for end in ("least", "greatest"))
    if len(line) == 1:
        whisker = [[middles[0] - least[0]], [greatest[0] - middles[0]]]
        look |= {"marker": style.marker or "o", "elinewidth": 0.9}
        ax.errorbar(places, middles, whisker, **look)
        return
    if any(value.count > 1 for value in found):
        ax.fill_between(places, least, greatest, color=style.colour, alpha=0.18, linewidth=0)
    ax.plot(places, middles, **look)


def lines_panel(
    title: str,
    lines: Mapping[str, Series],  # by label
    styles: Styles,  # a line that has none is grey, and no legend names it
    x: Axis,
    y: Axis,
    levels: Mapping[str, Spread] = MappingProxyType({}),  # horizontal lines, by label
    height: float = 3.0,  # inches
    more: Callable[[Axes], object] = lambda _: None,  # draws something else over the lines
) -> Panel:
    """Return a panel of medians as lines, shaded from the least to the greatest.

    A line of one point has a whisker. Names of the legend and of axes come with the lines.
    """
    lines = {label: line for label, line in lines.items() if line}

    def draw(ax: Axes) -> None:
        for label, level in levels.items():
            ax.axhline(level.middle, label=label, **styles[label].line(markers=False))
            if level.count > 1:
                colour = styles[label].colour
                ax.axhspan(level.least, level.greatest, color=colour, alpha=0.1, linewidth=0)
        for label, line in lines.items():
            _draw_line(ax, label, line, styles)
        ax.set(xlabel=x.name, ylabel=y.name)
        more(ax)
        if y.log:
            ax.set_yscale("log")
            log_axis(ax.yaxis, y.show)
        if not x.log:
            ax.locator_params(axis="x", integer=True)
            return
        ax.set_xscale("log")

        def two_lines(value: float) -> str:
            return x.show(value).replace(" ", "\n")

        log_axis(ax.xaxis, two_lines)
        ticks = sorted({place for line in lines.values() for place in line})
        apart = all(high > APART * low for low, high in pairwise(ticks))
        if len(ticks) <= FEW and apart:
            ax.set_xticks(ticks, [two_lines(tick) for tick in ticks])

    def ends(line: Series) -> str:
        shown = (
            f"{y.show(line[at].middle)} at {x.show(at)}" for at in sorted({min(line), max(line)})
        )
        return ", ".join(shown)

    said = [f"{label} {ends(line)}" for label, line in lines.items()]
    said += [f"{label} {y.show(level.middle)}" for label, level in levels.items()]
    return Panel(title, draw, f"{y.name} over {x.name}: {'; '.join(said)}", height)


def log_axis(
    axis: matplotlib.axis.Axis,
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
