"""Names beside the points they belong to, none over another.

adjustText does not do here: it left names across the edge of the axes and over other points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE: Final = 8  # points
MARKER: Final = 4  # points around a point that no name covers
LEAD: Final = 14  # points from which on a line leads from the name to its point
LEADER: Final = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2}
NAME_OR_POINT: Final = 20.0  # what it costs to cover one, in heights of a name moved away
PIECE_OF_LINE: Final = 1.0
OUTSIDE: Final = 1000.0
WIDER: Final = 1.12  # the page's letters may be wider than those that are measured

# Where a name may be: right, left, above and below its point, then ever farther away.
PLACES: Final = tuple(
    (dx, dy, align)
    for far in (0, 11, 22, 33, 44, 55, 66, 77)
    for dx, dy, align in (
        (7, far, "left"), (-7, far, "right"), (7, -far, "left"), (-7, -far, "right"),
        (0, 9 + far, "center"), (0, -9 - far, "center"),
    )
)  # fmt: skip


class Spot(NamedTuple):
    """A point with a name, in the data's units."""

    x: float
    y: float
    name: str
    colour: str  # of the name


Line = Sequence[tuple[float, float]]  # from point to point, in the data's units


def write_names(
    ax: Axes,  # whose limits must not change afterwards
    spots: Sequence[Spot],  # the most important ones first
    lines: Sequence[Line],  # what else names should not cover
) -> None:
    """Write each name at the place that costs least: near, free, and within the axes."""
    canvas: Any = ax.figure.canvas
    canvas.figure.draw_without_rendering()  # only then is it known where points are
    scale = canvas.figure.dpi / 72
    room = ax.get_window_extent()
    ends = [ax.transData.transform((spot.x, spot.y)) for spot in spots]
    full = [(_box(at, 2 * MARKER * scale), NAME_OR_POINT) for at in ends]
    for line in lines:
        points = _along(ax.transData.transform(line), 4 * scale)
        full += [(_box(at, 2 * scale), PIECE_OF_LINE) for at in points]
    for spot, end in zip(spots, ends, strict=True):
        measured = ax.text(0, 0, spot.name, fontsize=SIZE)
        extent = measured.get_window_extent()
        measured.remove()
        size = np.array([WIDER * extent.width, extent.height])
        found = []
        for dx, dy, align in PLACES:
            box = _box(end + scale * np.array([dx, dy]), size, align)
            covered = sum(price for other, price in full if box.overlaps(other))
            within = room.x0 <= box.x0 and box.x1 <= room.x1
            within &= room.y0 <= box.y0 and box.y1 <= room.y1
            found.append((covered + abs(dy) / SIZE + OUTSIDE * (not within), dx, dy, align, box))
        _, dx, dy, align, box = min(found, key=lambda place: place[0])
        leader = LEADER | {"color": spot.colour} if abs(dy) >= LEAD else None
        name = ax.annotate(
            spot.name, (spot.x, spot.y), (dx, dy), textcoords="offset points", ha=align,
            va="center", fontsize=SIZE, color=spot.colour, arrowprops=leader,
        )  # fmt: skip
        name.set_in_layout(False)  # the axes stay where names were found to fit
        full.append((box, NAME_OR_POINT))


def _along(line: Any, step: float) -> Any:
    parts = [np.linspace(a, b, 2 + int(np.linalg.norm(b - a) / step)) for a, b in pairwise(line)]
    return np.concatenate(parts) if parts else line


def _box(at: Any, size: Any, align: str = "center") -> Any:
    """Return the box of a size whose left, right or centre is at a point, in pixels."""
    from matplotlib.transforms import Bbox

    low = at - size * np.array([{"left": 0.0, "right": 1.0, "center": 0.5}[align], 0.5])
    return Bbox([low, low + size])
