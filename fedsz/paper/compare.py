"""A number of the paper beside ours, and what has to be said about them."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

FAR: Final = 0.2  # of the printed number, from which a difference wants a reason


class Line(msgspec.Struct, frozen=True):
    """One quantity, printed and measured.

    Attributes:
        of: what it is about, one word for each of the comparison's headings.
        quantity: what it is.
        printed: the paper's number, None where it prints none.
        ours: None where it was not measured.
        unit: "" for a ratio; a difference of "%" is in points, any other in percent.
        why: the reason of a difference, or "".
    """

    of: tuple[str, ...]
    quantity: str
    printed: float | None
    ours: float | None
    unit: str = ""
    why: str = ""

    @property
    def difference(self) -> float | None:
        """Ours less the printed one: in points for "%", else as a share of the printed one."""
        if self.printed is None or self.ours is None:
            return None
        gap = self.ours - self.printed
        if self.unit == "%":
            return gap
        return gap / self.printed if self.printed else None

    @property
    def far(self) -> bool:
        """Whether the two differ by more than 20 %, or by 20 points."""
        gap = self.difference
        return gap is not None and abs(gap) > (100 * FAR if self.unit == "%" else FAR)


class Comparison(msgspec.Struct, frozen=True):
    """A table or figure of the paper, and ours.

    Attributes:
        name: such as "table 1".
        title: what it shows.
        headings: of the words in each line's ``of``.
        lines: the numbers.
        made_from: what ours were measured on, and how.
        notes: what the paper contradicts itself in, and what else there is to know.
        files: that were written.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    lines: list[Line]
    made_from: list[str] = []
    notes: list[str] = []
    files: list[str] = []


def as_builtins(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON, its differences with it."""
    plain: dict[str, Any] = msgspec.to_builtins(comparison)
    for cells, line in zip(plain["lines"], comparison.lines, strict=True):
        cells["difference"] = line.difference
        cells["far"] = line.far
        for name in ("printed", "ours"):
            value = cells[name]
            cells[name] = value if value is None or math.isfinite(value) else None
    return plain
