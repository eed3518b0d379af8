"""Figures as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsz.errors import ConfigError
from fedsz.report.chart import Chart, Panel
from fedsz.report.style import LineStyle, files, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[Sequence[float], Sequence[float]]


def write(chart: Chart, folder: Path, name: str) -> list[str]:
    """Write a chart as ``NAME.svg`` and ``NAME.png`` and return their paths.

    Raises:
        ConfigError: they cannot be written.
    """
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
    look = line_styles([*lines, *(levels or {})])

    def draw(ax: Axes) -> None:
        for label, (at, values) in lines.items():
            many = len(at) > 20
            ax.plot(at, values, label=label, **look[label].line(markers=not many))
        for label, level in (levels or {}).items():
            ax.axhline(level, label=label, **look[label].line(markers=False))
        for label, place in (marks or {}).items():
            ax.axvline(place, color="#5d626e", linewidth=0.8)
            ax.annotate(
                label, (place, 1), (-8, -3), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=7, rotation=90,
            )  # fmt: skip
        _scale(ax, log)
        if not log:
            ax.locator_params(axis="x", nbins=6, integer=True)
        ax.set_xlabel(x)
        ax.set_ylabel(y)

    said = "; ".join(f"{label} from {v[0]:.4g} to {v[-1]:.4g}" for label, (_, v) in lines.items())
    return Panel(title, draw, said)


def stacked(title: str, bars: Mapping[str, Mapping[str, float]], *, y: str) -> Panel:
    """Return a panel of stacked bars.

    Args:
        title: above it.
        bars: label of a bar -> part -> height.
        y: what heights are.
    """
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    look = line_styles(parts)

    def draw(ax: Axes) -> None:
        base = [0.0] * len(bars)
        for part in parts:
            heights = [bar.get(part, 0.0) for bar in bars.values()]
            ax.bar(list(bars), heights, bottom=base, label=part, color=look[part].colour)
            base = [low + height for low, height in zip(base, heights, strict=True)]
        ax.set_ylabel(y)
        ax.tick_params(axis="x", labelrotation=20, labelsize=8)

    said = "; ".join(
        f"{label}: " + ", ".join(f"{part} {height:.3g}" for part, height in bar.items())
        for label, bar in bars.items()
    )
    return Panel(title, draw, said)


def histogram(
    title: str,
    edges: Sequence[float],
    shares: Sequence[float],
    laws: Mapping[str, Curve],
    *,
    x: str,
    log: bool = False,
) -> Panel:
    """Return a panel of a histogram's densities with curves of laws over it."""
    look: Mapping[str, LineStyle] = line_styles(laws)

    def draw(ax: Axes) -> None:
        ax.stairs(shares, edges, fill=True, color="#d5d8df")
        for name, (at, values) in laws.items():
            ax.plot(at, values, label=name, **look[name].line(markers=False))
        if log:
            positive: list[Any] = [share for share in shares if share > 0]
            _scale(ax, "y")
            # A law's tail is no reason to make room for it.
            ax.set_ylim(min(positive, default=1) / 2, 4 * max(positive, default=1))
        ax.locator_params(axis="x", nbins=5)
        ax.set_xlabel(x)
        ax.set_ylabel("density")

    return Panel(title, draw, f"from {edges[0]:.4g} to {edges[-1]:.4g}, peak {max(shares):.4g}")


def _scale(ax: Axes, log: str) -> None:
    """Make axes logarithmic; matplotlib's own numbers there are formulas, which names may upset."""
    for name, axis, scale in (("x", ax.xaxis, ax.set_xscale), ("y", ax.yaxis, ax.set_yscale)):
        if name in log:
            scale("log")
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(lambda *_: "")
