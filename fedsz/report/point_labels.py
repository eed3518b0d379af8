"""Names beside the points they belong to, none over another.

adjustText does not do here: it left names across the edge of the axes and over other points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from fedsz.report.style import lay_out

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
MOVED: Final = np.array([(dx, dy) for dx, dy, _ in PLACES], float)
# How much of a name is to the left of its place, and below it.
BEFORE: Final = np.array([({"left": 0, "center": 0.5, "right": 1}[a], 0.5) for _, _, a in PLACES])


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
    lay_out(canvas.figure)  # only then is it known where points are
    scale = canvas.figure.dpi / 72
    room = ax.get_window_extent()
    ends = np.array([ax.transData.transform((spot.x, spot.y)) for spot in spots])
    pieces = [_along(ax.transData.transform(line), 4 * scale) for line in lines]
    # What names should not cover: boxes, as left, bottom, right and top, and their prices.
    full = np.concatenate(
        [_boxes(ends, 2 * MARKER * scale), *(_boxes(p, 2 * scale) for p in pieces)]
    )
    prices = np.repeat([NAME_OR_POINT, PIECE_OF_LINE], [len(ends), len(full) - len(ends)])
    for spot, end in zip(spots, ends, strict=True):
        measured = ax.text(0, 0, spot.name, fontsize=SIZE)
        extent = measured.get_window_extent()
        measured.remove()
        size = np.array([WIDER * extent.width, extent.height])
        boxes = _boxes(end + scale * MOVED, size, BEFORE)
        over = (boxes[:, None, :2] <= full[:, 2:]) & (full[:, :2] <= boxes[:, None, 2:])
        outside = (boxes[:, :2] < room.min) | (boxes[:, 2:] > room.max)
        cost = over.all(axis=2) @ prices + OUTSIDE * outside.any(axis=1)
        best = int(np.argmin(cost + abs(MOVED[:, 1]) / SIZE))
        dx, dy, align = PLACES[best]
        leader = LEADER | {"color": spot.colour} if abs(dy) >= LEAD else None
        name = ax.annotate(
            spot.name, (spot.x, spot.y), (dx, dy), textcoords="offset points", ha=align,
            va="center", fontsize=SIZE, color=spot.colour, arrowprops=leader,
        )  # fmt: skip
        name.set_in_layout(False)  # the axes stay where names were found to fit
        full = np.concatenate([full, boxes[best : best + 1]])
        prices = np.append(prices, NAME_OR_POINT)


def _along(line: Any, step: float) -> Any:
    """Return points at most ``step`` pixels apart on a line."""
    parts = [np.linspace(a, b, 2 + int(np.linalg.norm(b - a) / step)) for a, b in pairwise(line)]
    return np.concatenate(parts) if parts else line


def _boxes(at: Any, size: Any, before: Any = 0.5) -> Any:
    """Return boxes of a size in pixels, which reach so much of it to the left and down."""
    low = at - size * before
    return np.hstack([low, low + size])
