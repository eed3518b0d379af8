"""Ratio against speed: what benchmarks/codecs.py has measured, as a picture."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from codecs_report import OURS, Result, find

from fedsz.report.chart import Chart, Panel
from fedsz.report.series import log_axis
from fedsz.report.style import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURED = "resnet50 weights"
COLOURS = {"sz2": "#b3541e", "sz3": "#8a6d00", "zfp": "#7a4fa3", "szx": "#5c6672", OURS: "#0b62a8"}
OUTSIDE = ("sz2", "sz3", "zfp", "szx")
EFFORTS = {f"{OURS}:effort=0": "0", f"{OURS}:effort=1": "1", OURS: "5", f"{OURS}:effort=9": "9"}
TOGETHER = 0.1  # of log10(speed) and log10(ratio), within which efforts share a label
MARGIN = 1.5  # times the greatest and the least, for labels to have room


def labels(points: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return the efforts of uniform and where they stand; those close together share a label."""
    grouped: list[list[str]] = []
    for effort in sorted(points, key=lambda effort: points[effort]):
        here = [math.log10(value) for value in points[effort]]
        if grouped:
            last = [math.log10(value) for value in points[grouped[-1][-1]]]
            if math.dist(here, last) < TOGETHER:
                grouped[-1].append(effort)
                continue
        grouped.append([effort])
    return {" ".join(sorted(group)): points[group[0]] for group in grouped}


def scatter(rows: list[Result], way: str) -> Callable[[Axes], None]:
    """Return what draws every codec that is in the picture, one way."""
    at = {
        name: (row[way]["median"], row["ratio"])
        for name in (*OUTSIDE, *EFFORTS)
        if (row := find(rows, name))
    }
    efforts = {effort: at[name] for name, effort in EFFORTS.items() if name in at}

    def draw(ax: Axes) -> None:
        ax.set(xscale="log", yscale="log", xlabel="MB/s", ylabel="ratio")
        if efforts:
            ax.plot(*zip(*efforts.values(), strict=True), "o-", color=COLOURS[OURS])
            ax.annotate(
                OURS, next(iter(efforts.values())), (0, -16), textcoords="offset points",
                ha="center", color=COLOURS[OURS], weight="bold",
            )  # fmt: skip
        for name in OUTSIDE:
            if name in at:
                ax.plot(*at[name], "o", color=COLOURS[name])
        others = {name: at[name] for name in OUTSIDE if name in at}
        for text, point in {**labels(efforts), **others}.items():
            ax.annotate(
                text, point, (0, 7), textcoords="offset points", ha="center",
                color=COLOURS.get(text, COLOURS[OURS]),
            )  # fmt: skip
        speeds, ratios = zip(*at.values(), strict=True)
        ax.set_xlim(min(speeds) / MARGIN, max(speeds) * MARGIN)
        ax.set_ylim(min(ratios) / MARGIN, max(ratios) * MARGIN)
        for axis in (ax.xaxis, ax.yaxis):
            log_axis(axis, lambda value: f"{value:g}")

    return draw


def plot(report: Result) -> str:
    """Return an SVG of ratio against speed, at up to three bounds, each way."""
    tables = report.get("tables", [])
    names = list(dict.fromkeys(result["data"] for result in tables))
    if not names:
        sys.exit("no tables, so nothing to draw")
    data = PICTURED if PICTURED in names else names[0]
    chosen = [result for result in tables if result["data"] == data][:3]
    panels = tuple(
        Panel(f"{way}, {result['bound']}", scatter(result["rows"], way), "")
        for way in ("compress", "decompress")
        for result in chosen
    )
    about = report["machine"]
    where = (
        f"One core, {about['cpu']}, {about['date']}, {about['level']}. The digits are {OURS}'s"
        " efforts; 5 is the default."
    )
    title = f"{data}: ratio (upwards) against speed in MB/s (to the right)"
    return files(Chart("codecs", title, "", where, panels))["svg"].decode()
