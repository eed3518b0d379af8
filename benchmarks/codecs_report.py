"""What benchmarks/codecs.py has measured, as Markdown and as a picture."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Result = dict[str, Any]

BEGIN = "<!-- from here on written by benchmarks/codecs.py -->"
END = "<!-- to here -->"
BASE = "sz2"  # what others are compared with
OURS = "uniform"
BESIDE = ("decompress_into", "accumulate")
PICTURED = "resnet50 weights"


# Markdown


def number(value: float) -> str:
    """Return three digits of a number that is not large, and all of one that is."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(digits, 0)}f}"


def speed(row: Result, way: str) -> str:
    """Return a median in MB/s, and the least and the greatest."""
    if way not in row:
        return ""
    s = row[way]
    return f"{s['median']:,.0f} ({s['least']:,.0f}-{s['greatest']:,.0f})"


def excess(error: float) -> str:
    """Return an error in units of its bound; in bold above 1."""
    if error <= 1:
        return f"{error:.4f}"
    return f"**{error:.4f}**" if error > 1.0001 else f"**1 + {error - 1:.0e}**"


def over(row: Result, base: Result | None, way: str) -> str:
    """Return how many times faster than the base."""
    if base is None or way not in row or way not in base:
        return ""
    return number(row[way]["median"] / base[way]["median"])


def size(nbytes: int) -> str:
    """Return bytes in a unit of powers of 1024, or of 10^6 where that is rounder."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table whose columns line up; all but the first ``left`` to the right."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines.insert(1, rule)
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    )


def find(rows: Iterable[Result], codec: str) -> Result | None:
    """Return the row of a codec, if there is one."""
    return next((row for row in rows if row["codec"] == codec), None)


def header(about: Result) -> str:
    """Say where and what."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    changed = " and changes" if about["changed"] else ""
    return (
        f"{about['date']}, commit {about['commit']}{changed}: {about['cpu']}, {about['cores']}"
        f" cores, {about['platform']}, Python {about['python']}, {versions}. uniform ran with"
        f" {about['level']}, of {', '.join(about['levels'])}. Load average at the start:"
        f" {about['load'][0]:.1f}."
    )


def ahead(tables: list[Result]) -> str:
    """Compare uniform with SZ 2, and with the best ratio of all others."""
    lines = []
    for result in tables:
        rows = result["rows"]
        base, ours = find(rows, BASE), find(rows, OURS)
        if not ours:
            continue
        others = [r for r in rows if "ratio" in r and not r["codec"].startswith(OURS)]
        best = max(others, key=lambda row: row["ratio"])
        lines.append(
            [
                result["data"],
                result["bound"],
                number(base["ratio"]) if base else "",
                f"{number(best['ratio'])} ({best['codec']})",
                number(ours["ratio"]),
                number(ours["ratio"] / base["ratio"]) if base else "",
                over(ours, base, "compress"),
                over(ours, base, "decompress"),
            ]
        )
    heads = ("data", "bound", "sz2", "best of the others", OURS, "/ sz2", "compress", "decompress")
    return table(heads, lines, left=2)


def comparison(results: list[Result]) -> str:
    """Show all codecs on one set, bound by bound."""
    first = results[0]
    lines = []
    for result in results:
        base = find(result["rows"], BASE)
        label = result["bound"]
        for row in result["rows"]:
            ratio = [number(row["ratio"])] if "ratio" in row else [""]
            ratio.append(number(row["ratio"] / base["ratio"]) if base and "ratio" in row else "")
            error = excess(row["error_over_bound"]) if "ratio" in row else ""
            is_copy = row["codec"] == "memcpy"
            lines.append(
                [
                    label,
                    row["codec"],
                    *ratio,
                    speed(row, "compress"),
                    "" if is_copy else over(row, base, "compress"),
                    speed(row, "decompress"),
                    "" if is_copy else over(row, base, "decompress"),
                    error,
                ]
            )
            label = ""
            if row["codec"] != OURS:
                continue
            names = (", into an array", ", added to sums")
            for way, name in zip(BESIDE, names, strict=True):
                faster = row[way]["median"] / base["decompress"]["median"] if base else None
                cells = [speed(row, way), number(faster) if faster else "", ""]
                lines.append(["", OURS + name, "", "", "", "", *cells])
    ways = ("compress MB/s", "/ sz2", "decompress MB/s", "/ sz2")
    heads = ("bound", "codec", "ratio", "/ sz2", *ways, "error / bound")
    count = first["tensors"]
    title = (
        f"### {first['data']}\n\n{first['raw_bytes'] / 1e6:,.1f} MB in {count}"
        f" tensor{'s' * (count > 1)}, {first['passes']} passes."
    )
    return f"{title}\n\n{table(heads, lines, left=2)}"


def entropies(tables: list[Result]) -> str:
    """Compare what is written with the entropy of what is written."""
    lines = []
    for result in tables:
        row = find(result["rows"], f"{OURS}:effort=1")
        tensors = [t for t in row["tensors"] if t.get("entropy_bytes")] if row else []
        if not tensors:
            continue
        ratios = [t["bytes"] / t["entropy_bytes"] for t in tensors]
        whole = sum(t["bytes"] for t in tensors) / sum(t["entropy_bytes"] for t in tensors)
        bits = 8 * sum(t["entropy_bytes"] for t in tensors)
        per_element = bits / sum(math.prod(t["shape"]) for t in tensors)
        cells = (number(per_element), f"{whole:.4f}", f"{min(ratios):.4f}", f"{max(ratios):.4f}")
        lines.append([result["data"], result["bound"], str(len(tensors)), *cells])
    heads = ("data", "bound", "tensors", "bits an element", "bytes / entropy", "least", "greatest")
    return table(heads, lines, left=2) if lines else ""


def sizes(results: list[Result]) -> str:
    """Show what calls cost by size."""
    lines = []
    for result in results:
        for row in result["rows"]:
            lines.append([size(result["raw_bytes"]), row["codec"]])
            lines[-1].append(number(row["ratio"]) if "ratio" in row else "")
            for way in ("compress", "decompress"):
                milliseconds = result["raw_bytes"] / 1e3 / row[way]["median"]
                lines[-1] += [number(milliseconds), speed(row, way)]
    heads = ("size", "codec", "ratio", "compress ms", "MB/s", "decompress ms", "MB/s")
    return table(heads, lines, left=2)


def threads(rows: list[Result]) -> str:
    """Show speed by threads."""
    alone = {row["effort"]: row for row in rows if row["threads"] == 1}
    lines = []
    for row in rows:
        one = alone[row["effort"]]
        cells = [f"{OURS}:effort={row['effort']}", str(row["threads"])]
        for way in ("compress", "decompress"):
            cells += [speed(row, way), over(row, one, way)]
        lines.append(cells)
    heads = ("codec", "threads", "compress MB/s", "/ one", "decompress MB/s", "/ one")
    return table(heads, lines)


def memory(rows: list[Result]) -> str:
    """Show memory beyond input and output."""
    lines = [[r["codec"], f"{r['compress']:.2f}", f"{r['decompress']:.2f}"] for r in rows]
    return table(("codec", "compress, bytes an element", "decompress"), lines)


def instructions(rows: list[Result]) -> str:
    """Show instructions an element, by stage."""
    columns = {(row["level"], row["effort"]): row["stages"] for row in rows}
    stages = rows[0]["stages"]
    lines = [
        [stage, *(f"{c[stage]:.2f}" if c[stage] else "" for c in columns.values())]
        for stage in stages
    ]
    return table(("stage", *(f"{level}, effort {effort}" for level, effort in columns)), lines)


def markdown(report: Result) -> str:
    """Return everything that was measured."""
    parts = [header(report["machine"])]
    if report["quick"]:
        parts.append("**Measured with `--quick`: to see that it works, not to be believed.**")
    if tables := report.get("tables"):
        parts += ["### uniform beside the others", ahead(tables)]
        for name in dict.fromkeys(result["data"] for result in tables):
            parts.append(comparison([result for result in tables if result["data"] == name]))
        if text := entropies(tables):
            parts += ["### Size and entropy", text]
    named = (
        ("size_sweep", "By size", sizes),
        ("threads", "By threads", threads),
        ("memory", "Memory", memory),
        ("instructions", "Instructions", instructions),
    )
    for key, title, show in named:
        if report.get(key):
            parts += [f"### {title}", show(report[key])]
    return "\n\n".join(parts)


def update(path: Path, report: Result) -> None:
    """Put the figures into a document, between its two marks."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{path} has not the lines {BEGIN} and {END}")
    path.write_text(f"{before}{begin}\n\n{markdown(report)}\n\n{end}{after}")


# The picture


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
