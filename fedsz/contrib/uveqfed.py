"""`uveqfed`: the nearest point of a lattice that both sides shift by numbers they draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray, chunks
from fedsz.codecs import _methods
from fedsz.codecs.spread import energy
from fedsz.methods.base import Kind, Shared, Stage, Symbols, require_count
from fedsz.spec_strings import Choice, setting

SLICE: Final = 1 << 13  # points worked on at a time
HEIGHT: Final = math.sqrt(3) / 2  # of a triangle of side 1


class Lattice(Choice):
    """Points that elements are moved to."""

    SCALAR = "scalar"
    HEXAGONAL = "hexagonal"


@dataclass(frozen=True)
class Uveqfed(Stage):
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

    step: float = setting(1.0, 1e-4, 3)
    lattice: Lattice = Lattice.SCALAR

    @property
    def symbols(self) -> Mapping[str, Kind]:
        """A scale, and a level for each coordinate of a point."""
        levels = ("a",) if self.lattice is Lattice.SCALAR else ("a", "b")
        return {"scale": Kind.VALUES} | dict.fromkeys(levels, Kind.LEVELS)

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        scale = np.array([self.step * math.sqrt(energy(x) / max(x.size, 1))], x.dtype)
        missing = -x.size % self._width
        axes = self._axes(np.pad(x, (0, missing)) if missing else x)
        symbols = [np.empty(axis.size) for axis in axes]
        for here in chunks(axes[0].size, SLICE):
            point = [_scaled(axis[here], float(scale[0])) for axis in axes]
            dither = self._dither(shared, here.start, point[0].size)
            for along, shift in zip(point, dither, strict=True):
                along += shift
            for plane, found in zip(symbols, self._nearest(point), strict=True):
                plane[here] = found
        return {"scale": scale, **dict(zip("ab", symbols, strict=False))}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        spec, scale = shared.spec, symbols["scale"]
        require_count("scales", scale, 1)
        levels = [symbols[name] for name in self.symbols if name != "scale"]
        for plane in levels:
            require_count("levels", plane, -(-spec.size // self._width))
        y = np.zeros(levels[0].size * self._width, spec.dtype)
        for here in chunks(levels[0].size, SLICE) if scale[0] else ():
            point = self._cartesian([plane[here] for plane in levels])
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
        """Return the coordinates of the nearest points, in place."""
        if self._width == 1:
            return [np.rint(point[0], out=point[0])]
        _methods.nearest_hexagonal(*point)
        return point

    def _dither(self, shared: Shared, start: int, count: int) -> list[NDArray]:
        """Return numbers that are uniform in the cell of 0, for points from number ``start`` on."""
        dither = [np.empty(count) for _ in range(self._width)]
        key = shared.key(own=True)
        if self._width == 2:
            _methods.hexagonal_dither(key, start, *dither)
            return dither
        _methods.uniforms(key, start, *dither)
        dither[0] -= 0.5
        return dither


def cartesian(a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
    """Return x and y of the points a (1, 0) + b (1/2, sqrt(3)/2), float64."""
    return a + 0.5 * b, HEIGHT * b


def _scaled(x: NDArray, scale: float) -> NDArray:
    """Return x / scale in float64; 0 where the scale is."""
    return np.divide(x, scale, dtype=np.float64) if scale > 0 else np.zeros(x.size)
