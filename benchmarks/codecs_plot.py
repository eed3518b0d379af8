"""Ratio against speed: what benchmarks/codecs.py has measured, as a picture."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from codecs_report import OURS, Result, find

PICTURED = "resnet50 weights"


class Axis(NamedTuple):
    """A logarithmic scale from values to pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Return where a value lies."""
        along = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + along * (self.stop - self.start)

    def ticks(self, digits: Sequence[int]) -> list[float]:
        """Return these digits times powers of ten, as many as there are."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [digit * 10.0**power for power in powers for digit in digits]
        return [value for value in values if self.low <= value <= self.high]


class Box(NamedTuple):
    """A rectangle that is taken."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Say whether two overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


WIDTH = 968
LEFT, TOP, GAP = 58.0, 64.0, 26.0
PANEL_WIDTH, PANEL_HEIGHT, ROW_GAP = 280.0, 210.0, 62.0
INK, MUTED, GRID, PAPER = "#222", "#5c6672", "#e3e7ec", "#fff"
COLOURS = {"sz2": "#b3541e", "sz3": "#8a6d00", "zfp": "#7a4fa3", "szx": "#5c6672", OURS: "#0b62a8"}
OUTSIDE = ("sz2", "sz3", "zfp", "szx")
EFFORTS = {f"{OURS}:effort=0": "0", f"{OURS}:effort=1": "1", OURS: "5", f"{OURS}:effort=9": "9"}
TOGETHER = 14.0  # pixels, within which efforts share a label
STEPS = 32  # of a line, in which it is looked at
LETTER, LINE = 7.6, 14.0  # the size of a label's letters


def around(values: Sequence[float], margin: float) -> tuple[float, float]:
    """Return limits with some room on either side."""
    return min(values) / margin, max(values) * margin


class Panel:
    """One bound, one way: points, and labels where there is room for them."""

    def __init__(self, x: Axis, y: Axis) -> None:
        self._x, self._y = x, y
        self._frame = Box(x.start, y.stop, x.stop, y.start)
        self._taken: list[Box] = []
        self.parts = [
            f'<rect x="{x.start:.0f}" y="{y.stop:.0f}" width="{x.stop - x.start:.0f}"'
            f' height="{y.start - y.stop:.0f}" fill="{PAPER}" stroke="#c9d0d8"/>'
        ]
        for value in x.ticks((1, 2, 5)):
            self._line(f"M{x(value):.1f} {y.start:.0f}V{y.stop:.0f}")
            text = f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
            self._text(x(value), y.start + 16, text, "middle")
        for value in y.ticks((1, 2, 3, 5, 7)):
            self._line(f"M{x.start:.0f} {y(value):.1f}H{x.stop:.0f}")
            self._text(x.start - 6, y(value) + 4, f"{value:g}", "end")

    def draw(self, rows: list[Result], way: str) -> None:
        """Draw every codec that is in the picture."""
        found = {name: find(rows, name) for name in (*OUTSIDE, *EFFORTS)}
        at = {
            name: (self._x(row[way]["median"]), self._y(row["ratio"]))
            for name, row in found.items()
            if row
        }
        efforts = [(EFFORTS[name], *place) for name, place in at.items() if name in EFFORTS]
        line = " ".join(f"{x:.1f},{y:.1f}" for _, x, y in efforts)
        colour = COLOURS[OURS]
        self.parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
        for effort, x, y in efforts:
            self._point(x, y, colour, 6 if effort == "5" else 4.5)
        for (_, *start), (_, *stop) in itertools.pairwise(efforts):
            for i in range(STEPS):  # labels keep off the line
                x, y = (a + (b - a) * i / STEPS for a, b in zip(start, stop, strict=True))
                self._taken.append(Box(x - 1, y - 1, x + 1, y + 1))
        for name in OUTSIDE:
            if name in at:
                self._point(*at[name], COLOURS[name])

        groups: list[list[tuple[str, float, float]]] = []
        for point in sorted(efforts, key=lambda point: point[1]):
            if groups and math.dist(groups[-1][-1][1:], point[1:]) < TOGETHER:
                groups[-1].append(point)
            else:
                groups.append([point])
        for group in groups:
            words = " ".join(sorted(effort for effort, *_ in group))
            x, y = (sum(point[i] for point in group) / len(group) for i in (1, 2))
            self._label(x, y, words, colour)
        for name in OUTSIDE:
            if name in at:
                self._label(*at[name], name, COLOURS[name])
        if efforts:
            _, x, y = efforts[0]
            self._label(x, y, OURS, colour, bold=True)

    def _line(self, path: str) -> None:
        self.parts.append(f'<path d="{path}" stroke="{GRID}"/>')

    def _text(self, x: float, y: float, text: str, anchor: str, style: str = "") -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{text}</text>'
        )

    def _point(self, x: float, y: float, colour: str, radius: float = 4.5) -> None:
        self._taken.append(Box(x - radius, y - radius, x + radius, y + radius))
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>')

    def _label(self, x: float, y: float, text: str, colour: str, *, bold: bool = False) -> None:
        """Write beside a point, in the first place that is free and within the frame."""
        half = LETTER * len(text) / 2
        frame = self._frame
        places = [
            (x + across * (half + 9), y + down)
            for down in (0, 17, -17, 32, -32)
            for across in ((0, -1, 1) if down else (1, -1))
        ]
        # Above and below read better than beside.
        places.sort(key=lambda place: abs(place[0] - x) > 1)
        boxes = [Box(a - half, b - LINE / 2, a + half, b + LINE / 2) for a, b in places]
        free = [
            place
            for place, box in zip(places, boxes, strict=True)
            if box.left > frame.left + 2
            and box.right < frame.right - 2
            and box.top > frame.top
            and box.bottom < frame.bottom
            and not any(box.meets(other) for other in self._taken)
        ]
        a, b = free[0] if free else places[0]
        self._taken.append(Box(a - half, b - LINE / 2, a + half, b + LINE / 2))
        weight = ' font-weight="700"' if bold else ""
        self._text(a, b + 4.5, text, "middle", f' fill="{colour}" font-size="13"{weight}')


def plot(report: Result) -> str:
    """Return an SVG of ratio against speed, at up to three bounds, each way."""
    tables = report.get("tables", [])
    names = list(dict.fromkeys(result["data"] for result in tables))
    if not names:
        sys.exit("no tables, so nothing to draw")
    data = PICTURED if PICTURED in names else names[0]
    panels = [result for result in tables if result["data"] == data][:3]
    wanted = (*OUTSIDE, *EFFORTS)
    rows = [row for result in panels for row in result["rows"] if row["codec"] in wanted]
    height = TOP + 2 * PANEL_HEIGHT + ROW_GAP + 50
    desc = (
        "Ratio upwards, speed in MB/s to the right, for compression above and decompression below,"
        f" at {', '.join(result['bound'] for result in panels)}: {', '.join(OUTSIDE)}, and"
        f" {OURS} at efforts 0, 1, 5 and 9."
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img"'
        ' aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="12"'
        f' fill="{MUTED}">',
        '<title id="title">Ratio against speed</title>',
        f'<desc id="desc">{desc}</desc>',
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#f8f9fb"/>',
        f'<text x="{LEFT:.0f}" y="26" font-size="15" font-weight="600" fill="{INK}">'
        f"{data}: ratio (upwards) against speed in MB/s (to the right)</text>",
    ]
    for i, way in enumerate(("compress", "decompress")):
        low, high = around([row[way]["median"] for row in rows], 1.6)
        bottom = TOP + (i + 1) * PANEL_HEIGHT + i * ROW_GAP
        for j, result in enumerate(panels):
            chosen = [row for row in result["rows"] if row["codec"] in wanted]
            start = LEFT + j * (PANEL_WIDTH + GAP)
            x = Axis(low, high, start, start + PANEL_WIDTH)
            y = Axis(*around([r["ratio"] for r in chosen], 1.35), bottom, bottom - PANEL_HEIGHT)
            panel = Panel(x, y)
            panel.draw(chosen, way)
            parts.append(
                f'<text x="{start:.0f}" y="{y.stop - 9:.0f}" font-size="13" fill="{INK}">'
                f"{way}, {result['bound']}</text>"
            )
            parts += panel.parts
    about = report["machine"]
    parts.append(
        f'<text x="{LEFT:.0f}" y="{height - 12:.0f}">One core, {about["cpu"]}, {about["date"]},'
        f" {about['level']}. The digits are {OURS}'s efforts; 5 is the default.</text>"
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
