"""Numbers for people: bytes, seconds, bandwidths, shares and counts as text.

What is printed while something runs takes few characters: `size`, `megabytes`, `duration`. Reports
have three digits: `seconds`, `size_in_digits`, `digits`. Numbers that are not finite are
`NOTHING` there.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

NOTHING: Final = "–"
LINE: Final = 300  # characters of somebody else's text that are kept
# What a user should know of a round whose updates change nothing.
ALL_ZERO: Final = (
    "all updates are zero: clients return the model that they received; check the learning rate,"
    " and that they load, train and return it"
)
WARNING: Final = "fedsz: warning: "  # what a command's warning begins with, on stderr


def metric(value: float | None) -> str:
    """Return an accuracy or a loss: ``0.9361``, and ``-`` where there is none."""
    return "-" if value is None else f"{value:.4f}"


def outcome(accuracy: float | None, loss: float | None) -> str:
    """Return how good a model is, in words: ``accuracy 0.9361``, or its loss without one."""
    return f"loss {metric(loss)}" if accuracy is None else f"accuracy {metric(accuracy)}"


def share(value: float | None) -> str:
    """Return a share of a whole: ``93 %``, and ``-`` where it is not known."""
    return "-" if value is None else f"{100 * value:.0f} %"


def size(nbytes: float) -> str:
    """Return a number of bytes to one decimal: ``153.9 kB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"


def megabytes(nbytes: float) -> str:
    """Return a number of bytes in MB of 10^6 bytes: ``1.2 MB``."""
    return f"{nbytes / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """Return how long something takes: ``95 s``, ``2 min``, ``1.7 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def bandwidth(bits: float) -> str:
    """Return bits a second: ``10 Mbps``."""
    for unit, factor in (("Gbps", 1e9), ("Mbps", 1e6), ("kbps", 1e3)):
        if bits >= 0.9995 * factor:  # three digits round up from there
            return f"{bits / factor:.3g} {unit}"
    return f"{bits:.3g} bps"


def seconds(value: float) -> str:
    """Return seconds to three digits: ``12.3 ms``."""
    return _in_units(value, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))


def size_in_digits(nbytes: float) -> str:
    """Return a number of bytes to three digits: ``1.50 MB``."""
    return _in_units(nbytes, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))


def digits(value: float) -> str:
    """Return a number to three digits, without an exponent from one thousandth on."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def tick(value: float, show: Callable[[float], str] = seconds) -> str:
    """Return a round number as ``show`` does, without zeros at its end: ``10 ms``."""
    number, _, unit = show(value).partition(" ")
    return f"{float(number.replace(',', '')):,g} {unit}" if unit else number


def percent(share: float) -> str:
    """Return a share in percent to two decimals, without the sign: 0.5 is ``50.00``."""
    return f"{100 * share:.2f}" if math.isfinite(share) else NOTHING


def points(share: float) -> str:
    """Return a difference of shares in percentage points: 0.005 is ``+0.50``."""
    if not math.isfinite(share):
        return NOTHING
    return f"{round(100 * share, 2) or 0.0:+.2f}"  # no minus before a zero


def printable(text: str) -> str:
    """Return text without escape sequences and control characters, but for tabs and line ends."""
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)


def one_line(text: str, most: int = LINE) -> str:
    """Return somebody else's text as one line that can be shown: escaped, and cut to ``most``.

    Control characters, line ends, marks that turn the direction of writing and all else that
    `str.isprintable` names are escaped as `repr` escapes them.
    """
    kept = text[: most + 1]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in kept)
    return kept if len(kept) <= most else f"{kept[: most - 1]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for messages about an unknown name: `` (did you mean 'rounds'?)``, or ""."""
    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def count(number: int, what: str) -> str:
    """Return a number of things: ``1 seed``, ``2 seeds``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def listed(what: str, numbers: Sequence[int]) -> str:
    """Return sorted numbers: ``seed 0``, ``seeds 0-4``, ``seeds 0, 7``."""
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{what}s {numbers[0]}-{numbers[-1]}"
    return f"{what}s {', '.join(map(str, numbers))}"


def _in_units(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Return a number to three digits in the first unit that it reaches, else in the last."""
    if not math.isfinite(value):
        return NOTHING
    unit, factor = next((u for u in units if abs(value) >= u[1]), units[-1])
    return f"{digits(value / factor)} {unit}"
