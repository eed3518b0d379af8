"""Panels of the paper's figures: lines, stacked bars and histograms."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.paper.error_distribution import Distribution, density
from fedsz.report.figures import LIGHT, SERIES, Panel, log_axis, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Mapping[float, float]  # x -> y

CROWDED: Final = 20  # points of a line above which they have no marks
LAWS: Final = {
    "laplace": ("red", "-"), "uniform": ("green", (0, (1, 1.4))), "normal": ("purple", (0, (5, 2))),
}  # fmt: skip


def curves(
    title: str,
    lines: Mapping[str, Curve],  # by label
    *,
    x: str,  # what the horizontal axis is
    y: str,
    log: str = "",  # which axes are logarithmic: "", "x", "y" or "xy"
    marks: Mapping[str, float] = MappingProxyType({}),  # label -> x of a vertical line
    levels: Mapping[str, float] = MappingProxyType({}),  # label -> y of a horizontal line
) -> Panel:
    """Return a panel of lines."""
    styles = looks([*lines, *levels])

    def draw(ax: Axes) -> None:
        for label, line in lines.items():
            marked = {} if len(line) <= CROWDED else {"marker": ""}
            ax.plot([*line], [*line.values()], **{**styles[label], **marked})
        for label, level in levels.items():
            ax.axhline(level, **{**styles[label], "marker": ""})
        for label, place in marks.items():
            ax.axvline(place, color=LIGHT["soft"], linewidth=0.8)
            ax.annotate(
                label, (place, 1), (-8, -3), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=7, rotation=90,
            )  # fmt: skip
        ax.set(xlabel=x, ylabel=y, **{f"{axis}scale": "log" for axis in log})
        for axis in log:
            log_axis(getattr(ax, f"{axis}axis"), "{:g}".format)

    return Panel(title, draw)


def stacked_bars(title: str, bars: Mapping[str, Mapping[str, float]], *, y: str) -> Panel:
    """Return a panel of stacked bars, their parts' heights by the label of a bar."""
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))

    def draw(ax: Axes) -> None:
        base = np.zeros(len(bars))
        for part, colour in zip(parts, cycle(SERIES), strict=False):
            heights = np.array([bar.get(part, 0.0) for bar in bars.values()])
            ax.bar(list(bars), heights, bottom=base, label=part, color=LIGHT[colour])
            base += heights
        ax.set_ylabel(y)
        ax.tick_params(axis="x", labelrotation=20, labelsize=8)

    return Panel(title, draw)


def histogram(title: str, of: Distribution, unit: str, *, log: bool = False) -> Panel:
    """Return a histogram with the fitted laws over it; ``log`` is of the vertical axis."""

    def draw(ax: Axes) -> None:
        counts = np.array(of.counts, np.float64)
        apart = 0.5 if of.low == of.high else 0.0
        edges = np.linspace(of.low - apart, of.high + apart, counts.size + 1)
        heights = counts / (of.numbers * (edges[1] - edges[0]))
        ax.stairs(heights, edges, fill=True, color=LIGHT["blue"], alpha=0.35)
        x = np.linspace(edges[0], edges[-1], 4 * counts.size)
        for law in of.laws:
            colour, dashes = LAWS[law.name]
            style: Any = {"color": LIGHT[colour], "linestyle": dashes, "linewidth": 1.4}
            if law.scale > 0:
                ax.plot(x, density(law, x), label=f"{law.name}, KS {law.ks:.3f}", **style)
        # A law's peak may be far above all that was found, and its tail far below.
        ax.set_ylim(0, 1.25 * (float(heights.max()) or 1.0))
        if log:
            ax.set_yscale("log")
            ax.set_ylim(heights[heights > 0].min() / 2, 4 * heights.max())
        ax.set(xlabel=unit, ylabel="density")
        ax.locator_params(axis="x", nbins=5)

    return Panel(title, draw)
