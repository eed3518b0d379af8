"""A table or figure of the paper beside ours, and its panels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

from fedsz.errors import ConfigError
from fedsz.report.chart import Chart, Panel
from fedsz.report.runs import Spread
from fedsz.report.series import Axis, lines_panel
from fedsz.report.style import LIGHT, files, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Mapping[float, float]  # x -> y
Key = TypeVar("Key", str, float)

FAR: Final = 0.2  # of the printed number; a difference above it wants a reason


class Line(msgspec.Struct, frozen=True):
    """One quantity, printed and measured."""

    of: tuple[str, ...]  # what it is about, one word for each of the comparison's headings
    quantity: str
    printed: float | None  # the paper's number, None where it prints none
    ours: float | None  # None where it was not measured
    unit: str = ""  # "" for a ratio; a difference of "%" is in points, any other in percent
    why: str = ""  # the reason of a difference
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


def as_json(comparison: Comparison) -> bytes:
    """Return a comparison as JSON, with its differences; numbers that are not finite are null."""
    fields: dict[str, Any] = msgspec.structs.asdict(comparison)
    del fields["panels"]
    fields["lines"] = [
        {**msgspec.structs.asdict(line), "difference": line.difference, "far": line.far}
        for line in comparison.lines
    ]
    return msgspec.json.encode({"name": fields.pop("name"), **fields})


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
    marks: Mapping[str, float] = MappingProxyType({}),  # label -> x of a vertical line
    levels: Mapping[str, float] = MappingProxyType({}),  # label -> y of a horizontal line
) -> Panel:
    """Return a panel of lines."""

    def marked(ax: Axes) -> None:
        for label, place in marks.items():
            ax.axvline(place, color=LIGHT["soft"], linewidth=0.8)
            ax.annotate(
                label, (place, 1), (-8, -3), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=7, rotation=90,
            )  # fmt: skip

    series = {label: _spreads(line) for label, line in lines.items()}
    axes = Axis(x, log="x" in log), Axis(y, log="y" in log)
    styles = line_styles([*lines, *levels])
    return lines_panel(title, series, styles, *axes, _spreads(levels), more=marked)


def _spreads(values: Mapping[Key, float]) -> dict[Key, Spread]:
    return {key: alone for key, value in values.items() if (alone := Spread.of([value]))}


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
