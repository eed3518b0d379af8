"""Numbers for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from fedsz.bounds import ErrorBound
from fedsz.report.runs import Spread

NOTHING: Final = "–"


def seconds(value: float) -> str:
    """Return a time with its unit, to three digits."""
    if not math.isfinite(value):
        return NOTHING
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= factor or unit == "µs":
            break
    return f"{digits(value / factor)} {unit}"


def tick(value: float, show: Callable[[float], str] = seconds) -> str:
    """Return a round time, or what else has a unit, with it."""
    number, _, unit = show(value).partition(" ")
    return f"{float(number.replace(',', '')):,g} {unit}" if unit else number


def size(nbytes: float) -> str:
    """Return a number of bytes with its unit, to three digits."""
    if not math.isfinite(nbytes):
        return NOTHING
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)):
        if abs(nbytes) >= factor or unit == "B":
            break
    return f"{digits(nbytes / factor)} {unit}"


def digits(value: float) -> str:
    """Return a number to three digits, without an exponent above one thousandth."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.2f}" if math.isfinite(share) else NOTHING


def points(share: float) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    if not math.isfinite(share):
        return NOTHING
    return f"{round(100 * share, 2) or 0.0:+.2f}"  # no minus before a zero


def named(bound: ErrorBound | None, otherwise: str = NOTHING) -> str:
    """Return a bound with its kind, as in the result files."""
    return f"{bound.kind}:{bound.value:g}" if bound else otherwise


def spread(of: Spread | None, show: Callable[[float], str] = digits) -> str:
    """Return a median, and the limits where there are several values."""
    if of is None:
        return NOTHING
    if of.count == 1 or show(of.least) == show(of.greatest):
        return show(of.middle)
    return f"{show(of.middle)} ({show(of.least)} … {show(of.greatest)})"
