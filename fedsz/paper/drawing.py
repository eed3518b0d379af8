"""Panels of the paper's figures, and figures as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from fedsz.errors import ConfigError
from fedsz.paper.comparison import Comparison
from fedsz.report.chart import Chart, Panel
from fedsz.report.series import log_axis
from fedsz.report.style import LIGHT, files, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[Sequence[float], Sequence[float]]

MANY: Final = 20  # points of a curve; with more of them, markers would hide it


def write(comparison: Comparison, folder: Path) -> list[str]:
    """Write a figure's panels as ``figureN.svg`` and ``figureN.png`` and return their paths.

    Raises:
        ConfigError: they cannot be written.
    """
    name, provenance = comparison.name.replace(" ", ""), " ".join(comparison.made_from)
    chart = Chart(name, comparison.title, "", provenance, tuple(comparison.panels))
    written = {folder / f"{name}.{suffix}": data for suffix, data in files(chart).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in written.items():
            path.write_bytes(data)
    except OSError as err:
        raise ConfigError(f"cannot write to {folder}: {err.strerror}") from err
    return list(map(str, written))


def curves(
    title: str,
    lines: Mapping[str, Curve],  # by label
    *,
    x: str,  # what the horizontal axis is
    y: str,
    log: str = "",  # which axes are logarithmic: "", "x", "y" or "xy"
    marks: Mapping[str, float] | None = None,  # label -> x of a vertical line
    levels: Mapping[str, float] | None = None,  # label -> y of a horizontal line
) -> Panel:
    """Return a panel of lines."""
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
        # matplotlib's own numbers on logarithmic axes are formulas, which names may upset.
        if "x" in log:
            ax.set_xscale("log")
            log_axis(ax.xaxis, "{:g}".format)
        if "y" in log:
            ax.set_yscale("log")
            log_axis(ax.yaxis, "{:g}".format)
        if not log:
            ax.locator_params(axis="x", nbins=6, integer=True)
        ax.set_xlabel(x)
        ax.set_ylabel(y)

    return Panel(title, draw, says="")


def stacked_bars(title: str, bars: Mapping[str, Mapping[str, float]], *, y: str) -> Panel:
    """Return a panel of stacked bars, their parts' heights by the label of a bar."""
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
