"""Panels of the paper's figures, and figures as files, which no reader has to be told of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from fedsz.errors import ConfigError
from fedsz.experiments.error_distribution import Distribution, density
from fedsz.report.chart import Chart, Panel
from fedsz.report.series import log_axis
from fedsz.report.style import LIGHT, files, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[Sequence[float], Sequence[float]]

MANY: Final = 20  # points of a curve; with more of them, markers would hide it


def write(
    folder: Path, name: str, title: str, provenance: str, panels: Sequence[Panel]
) -> list[str]:
    """Write a figure as ``NAME.svg`` and ``NAME.png``, NAME without spaces; return their paths.

    Raises:
        ConfigError: they cannot be written.
    """
    chart = Chart(name.replace(" ", "-"), title, "", provenance, tuple(panels))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, data in files(chart).items():
            path = folder / f"{name.replace(' ', '')}.{suffix}"
            path.write_bytes(data)
            written.append(str(path))
    except OSError as err:
        raise ConfigError(f"cannot write to {folder}: {err.strerror}") from err
    return written


def curves(
    title: str,
    lines: Mapping[str, Curve],
    *,
    x: str,
    y: str,
    log: str = "",
    marks: Mapping[str, float] | None = None,
    levels: Mapping[str, float] | None = None,
) -> Panel:
    """Return a panel of lines.

    Args:
        title: above it.
        lines: label -> x and y.
        x: what the horizontal axis is.
        y: what the vertical axis is.
        log: which axes are logarithmic: "", "x", "y" or "xy".
        marks: label -> x of a vertical line.
        levels: label -> y of a horizontal line.
    """
    marks, levels = marks or {}, levels or {}
    styles = line_styles([*lines, *levels])

    def draw(ax: Axes) -> None:
        for label, (at, values) in lines.items():
            ax.plot(at, values, label=label, **styles[label].line(markers=len(at) <= MANY))
        for label, level in levels.items():
            ax.axhline(level, label=label, **styles[label].line(markers=False))
        for label, place in marks.items():
            ax.axvline(place, color=LIGHT["soft"], linewidth=0.8)
            ax.annotate(
                label, (place, 1), (-8, -3), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=7, rotation=90,
            )  # fmt: skip
        _make_logarithmic(ax, log)
        if not log:
            ax.locator_params(axis="x", nbins=6, integer=True)
        ax.set_xlabel(x)
        ax.set_ylabel(y)

    return Panel(title, draw, says="")


def stacked_bars(title: str, bars: Mapping[str, Mapping[str, float]], *, y: str) -> Panel:
    """Return a panel of stacked bars.

    Args:
        title: above it.
        bars: label of a bar -> part -> height.
        y: what heights are.
    """
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    styles = line_styles(parts)

    def draw(ax: Axes) -> None:
        base = np.zeros(len(bars))
        for part in parts:
            heights = np.array([bar.get(part, 0.0) for bar in bars.values()])
            ax.bar(list(bars), heights, bottom=base, label=part, color=styles[part].colour)
            base += heights
        ax.set_ylabel(y)
        ax.tick_params(axis="x", labelrotation=20, labelsize=8)

    return Panel(title, draw, says="")


def histogram(title: str, shown: Distribution, *, x: str, log: bool = False) -> Panel:
    """Return a panel of a distribution's histogram, with the fitted laws over it.

    Args:
        title: above it.
        shown: the distribution.
        x: what the numbers are.
        log: whether the vertical axis is logarithmic.
    """
    styles = line_styles(law.name for law in shown.laws)
    # Where nothing moved, all numbers are equal.
    margin = 0.5 if shown.low == shown.high else 0.0
    edges = np.linspace(shown.low - margin, shown.high + margin, len(shown.counts) + 1)
    heights = np.array(shown.counts) / (shown.numbers * (edges[1] - edges[0]))

    def draw(ax: Axes) -> None:
        ax.stairs(heights, edges, fill=True, color=LIGHT["rule"])
        at = np.linspace(shown.low, shown.high, 401)
        for law in shown.laws:
            if law.scale > 0:
                style = styles[law.name].line(markers=False)
                ax.plot(at, density(law, at), label=law.name, **style)
        if log:
            _make_logarithmic(ax, "y")
            # A law's tail is no reason to make room for it.
            ax.set_ylim(heights[heights > 0].min() / 2, 4 * heights.max())
        ax.locator_params(axis="x", nbins=5)
        ax.set_xlabel(x)
        ax.set_ylabel("density")

    return Panel(title, draw, says="")


def _make_logarithmic(ax: Axes, log: str) -> None:
    """Make axes logarithmic; matplotlib's own numbers there are formulas, which names may upset."""
    if "x" in log:
        ax.set_xscale("log")
        log_axis(ax.xaxis, "{:g}".format)
    if "y" in log:
        ax.set_yscale("log")
        log_axis(ax.yaxis, "{:g}".format)
