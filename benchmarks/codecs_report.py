"""What benchmarks/codecs.py has measured, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from measuring import table

Result = dict[str, Any]

BASE = "sz2"  # what others are compared with
OURS = "uniform"
BESIDE = ("decompress_into", "accumulate")


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
