"""A table or figure of the paper beside ours, and its panels."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from fedsz.errors import ConfigError
from fedsz.report.figures import Chart, Panel, drawn

FAR: Final = 0.2  # of the printed number; a difference above it wants a reason


class Line(msgspec.Struct, frozen=True):
    """One quantity, printed and measured."""

    of: tuple[str, ...]  # what it is about, one word for each of the comparison's headings
    quantity: str
    printed: float | None  # the paper's number, None where it prints none
    ours: float | None  # None where it was not measured
    unit: str = ""  # "" for a ratio; a difference of "%" is in points, any other in percent
    seeds: tuple[int, ...] = ()  # of the runs that ours is of, one run each; none if it is of none

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
    """A table or figure of the paper, and ours."""

    title: str
    headings: tuple[str, ...]  # of the words in each line's `of`
    lines: list[Line]
    made_from: list[str] = []  # what ours were measured on, and how
    panels: list[Panel] = []  # of the figure to draw
    notes: list[str] = []  # what else there is to know
    here: bool = True  # whether ours were measured on this machine, and not on those of runs
    files: list[str] = []  # that were written
    name: str = ""  # such as "table 1"; the catalogue gives it


def write(comparison: Comparison, folder: Path) -> list[str]:
    """Write a figure's panels as ``figureN.svg`` and ``figureN.png`` and return their paths.

    Raises:
        ConfigError: they cannot be written.
    """
    name, provenance = comparison.name.replace(" ", ""), " ".join(comparison.made_from)
    chart = Chart(name, comparison.title, "", provenance, tuple(comparison.panels))
    written = {folder / f"{name}.{suffix}": data for suffix, data in drawn(chart).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in written.items():
            path.write_bytes(data)
    except OSError as err:
        raise ConfigError(f"cannot write to {folder}: {err.strerror}") from err
    return list(map(str, written))
