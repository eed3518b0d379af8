"""`uveqfed`: the nearest point of a lattice that both sides shift by numbers they draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import Kind, Part, Parts, Shared, State, TensorSpec, require_count
from fedsz.methods.settings import Choice, check_setting

SLICE: Final = 1 << 13  # points worked on at a time
DENSEST: Final = math.sqrt(3) / 2  # height of a triangle of side 1


class Lattice(Choice):
    """Points that elements are moved to."""

    SCALAR = "scalar"
    HEXAGONAL = "hexagonal"


@dataclass(frozen=True)
class Uveqfed(Part):
    """UVeQFed (Shlezinger et al. 2020): subtractive dithered quantisation to a lattice.

    With s = step times the root mean square of the tensor, and u uniform in the cell of 0:

        send the q nearest to x / s + u;  decode s (q - u)

    The error is uniform in a cell and independent of x. ``scalar`` has the whole numbers for each
    element; ``hexagonal``, for each two elements, a (1, 0) + b (1/2, sqrt(3)/2).

    Attributes:
        step: the distance of neighbours over the root mean square, above 0 up to 3.
        lattice: ``scalar`` or ``hexagonal``.

    Raises:
        ConfigError: the step is out of range.
    """

    name = "uveqfed"
    summary = "the nearest point of a lattice, shifted by what both sides draw"
    biased = False
    contracts = True

    step: float = 1.0
    lattice: Lattice = Lattice.SCALAR

    def __post_init__(self) -> None:
        check_setting("uveqfed step", self.step, 1e-4, 3)

    @property
    def planes(self) -> Mapping[str, Kind]:
        """A scale, and a level for each coordinate of a point."""
        levels = ("a",) if self.lattice is Lattice.SCALAR else ("a", "b")
        return {"scale": Kind.SCALES} | dict.fromkeys(levels, Kind.LEVELS)

    def contraction(self, spec: TensorSpec) -> float:  # noqa: ARG002
        """Return 1 - step^2 times the mean square of a cell by element: 1/12, or 5/72."""
        return 1 - self.step**2 * (1 / 12 if self.lattice is Lattice.SCALAR else 5 / 72)

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: D102
        flat = x.reshape(-1)
        scale = (self.step * _root_mean_square(flat) * np.ones(1)).astype(x.dtype)
        axes = self._axes(np.pad(flat, (0, -flat.size % self._width)))
        planes = [np.empty(axis.size, np.int64) for axis in axes]
        for here in _slices(axes[0].size):
            point = [_scaled(axis[here], float(scale[0])) for axis in axes]
            dither = self._dither(shared, here.start, point[0].size)
            moved = [x + d for x, d in zip(point, dither, strict=True)]
            for plane, found in zip(planes, self._nearest(moved), strict=True):
                plane[here] = found
        return {"scale": scale, **dict(zip("ab", planes, strict=False))}, state

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> NDArray:  # noqa: ARG002, D102
        spec, scale = shared.spec, parts["scale"]
        require_count("scales", scale, 1)
        planes = [parts[name] for name in self.planes if name != "scale"]
        for plane in planes:
            require_count("levels", plane, -(-spec.size // self._width))
        y = np.zeros(planes[0].size * self._width, spec.dtype)
        for here in _slices(planes[0].size) if scale[0] else ():
            point = self._cartesian([plane[here] for plane in planes])
            dither = self._dither(shared, here.start, point[0].size)
            for axis, x, d in zip(self._axes(y), point, dither, strict=True):
                axis[here] = (x - d) * float(scale[0])
        return y[: spec.size].reshape(spec.shape)

    @property
    def _width(self) -> int:
        """Elements of a point."""
        return 1 if self.lattice is Lattice.SCALAR else 2

    def _axes(self, flat: NDArray) -> list[NDArray]:
        """Return views of the first elements of all points, and of the second ones if any."""
        return [flat[i :: self._width] for i in range(self._width)]

    def _cartesian(self, levels: list[NDArray]) -> list[NDArray]:
        return levels if self._width == 1 else list(cartesian(*levels))

    def _nearest(self, point: list[NDArray]) -> list[NDArray]:
        return [np.rint(point[0])] if self._width == 1 else list(nearest(*point))

    def _dither(self, shared: Shared, start: int, count: int) -> list[NDArray]:
        """Return numbers that are uniform in the cell of 0, for points from number ``start`` on."""
        width = self._width
        words = shared.words(count * width, start * width, own=True)
        uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        if width == 1:
            return [uniform - 0.5]
        x, y = cartesian(*self._axes(uniform))
        a, b = cartesian(*nearest(x, y))
        return [x - a, y - b]


def cartesian(a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
    """Return x and y of the points a (1, 0) + b (1/2, sqrt(3)/2), float64."""
    return a + 0.5 * b, DENSEST * b


def nearest(x: NDArray, y: NDArray) -> tuple[NDArray, NDArray]:
    """Return the coordinates of the hexagonal lattice's nearest points, whole numbers in float64.

    The nearest one of the rows of even b, or that of odd b: two rectangular lattices.
    """
    height = y / DENSEST
    even, a, b = _in_rows(x, y, 2 * np.rint(0.5 * height))
    odd, c, d = _in_rows(x, y, 2 * np.rint(0.5 * (height - 1)) + 1)
    closer = odd < even
    np.copyto(a, c, where=closer)
    np.copyto(b, d, where=closer)
    return a, b


def _in_rows(x: NDArray, y: NDArray, row: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Return the squared distances of the nearest points in these rows, and their coordinates."""
    start = 0.5 * row
    column = np.rint(x - start)
    aside, above = column + start, DENSEST * row
    for away, point in ((aside, x), (above, y)):  # in place, for speed
        away -= point
        away *= away
    aside += above
    return aside, column, row


def _scaled(x: NDArray, scale: float) -> NDArray:
    """Return x / scale in float64; 0 where the scale is."""
    return x.astype(np.float64) / scale if scale > 0 else np.zeros(x.size)


def _root_mean_square(x: NDArray) -> float:
    """Return that of a flat array, without overflow."""
    largest = float(np.abs(x).max(initial=0))
    if not largest:
        return 0.0
    shares = (_scaled(x[here], largest) for here in _slices(x.size))
    return largest * math.sqrt(sum(float(np.dot(part, part)) for part in shares) / x.size)


def _slices(size: int) -> Iterator[slice]:
    """Yield slices whose dozen arrays of float64 a cache holds."""
    for start in range(0, size, SLICE):
        yield slice(start, start + SLICE)
