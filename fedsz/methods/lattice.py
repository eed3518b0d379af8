"""`uveqfed`: the nearest point of a lattice that both sides shift by numbers they draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import Kind, Part, Parts, Shared, State, TensorSpec, require_count
from fedsz.methods.settings import Choice, check_setting

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
        flat = x.reshape(-1).astype(np.float64)
        scale = (self.step * _root_mean_square(flat) * np.ones(1)).astype(x.dtype)
        if scale[0] > 0:
            flat /= scale[0]
        else:
            flat[:] = 0
        dither = self._dither(shared)
        if self.lattice is Lattice.SCALAR:
            return {"scale": scale, "a": np.rint(flat + dither).astype(np.int64)}, state
        points = np.pad(flat, (0, flat.size % 2)).reshape(-1, 2) + dither
        a, b = nearest(points)
        return {"scale": scale, "a": a, "b": b}, state

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> NDArray:  # noqa: ARG002, D102
        spec, scale = shared.spec, parts["scale"]
        require_count("scales", scale, 1)
        levels = [parts[name] for name in self.planes if name != "scale"]
        for plane in levels:
            require_count("levels", plane, -(-spec.size // len(levels)))
        points = levels[0] if len(levels) == 1 else cartesian(levels[0], levels[1])
        if not scale[0]:
            return np.zeros(spec.shape, spec.dtype)
        moved = ((points - self._dither(shared)) * float(scale[0])).reshape(-1)[: spec.size]
        return moved.astype(spec.dtype).reshape(spec.shape)

    def _dither(self, shared: Shared) -> NDArray:
        """Return numbers that are uniform in the cell of 0, one or two for a point."""
        scalar = self.lattice is Lattice.SCALAR
        count = shared.spec.size if scalar else 2 * -(-shared.spec.size // 2)
        words = shared.words(count, own=True)
        uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        if scalar:
            return np.asarray(uniform - 0.5)
        points = cartesian(uniform[::2], uniform[1::2])
        return points - cartesian(*nearest(points))


def cartesian(a: NDArray, b: NDArray) -> NDArray:
    """Return the points a (1, 0) + b (1/2, sqrt(3)/2), float64 of shape (n, 2)."""
    return np.stack((a + 0.5 * b, DENSEST * b), axis=1)


def nearest(points: NDArray) -> tuple[NDArray, NDArray]:
    """Return the coordinates of the hexagonal lattice's nearest points, int64.

    The nearest one of the rows of even b, or that of odd b: two rectangular lattices.
    """
    found = []
    for odd in (0, 1):
        row = 2 * np.rint((points[:, 1] / DENSEST - odd) / 2) + odd
        column = np.rint(points[:, 0] - 0.5 * row)
        away = np.square(points - cartesian(column, row)).sum(axis=1)
        found.append((away, column, row))
    (even, a, b), (other, c, d) = found
    closer = other < even
    return np.where(closer, c, a).astype(np.int64), np.where(closer, d, b).astype(np.int64)


def _root_mean_square(x: NDArray) -> float:
    """Return that of a flat array of float64, without overflow."""
    largest = float(np.abs(x).max(initial=0))
    return largest * math.sqrt(float(np.square(x / largest).mean())) if largest else 0.0
