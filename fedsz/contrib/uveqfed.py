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
HEXAGONAL: Final = np.array([[1, 0.5], [0, math.sqrt(3) / 2]])  # its vectors, as columns


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
        width = len(self._basis)
        points = np.pad(x, (0, -x.size % width)).reshape(-1, width)
        levels = np.empty((width, len(points)))
        for here in chunks(len(points), SLICE):
            point = self._dither(shared, here.start, len(points[here]))
            if scale[0]:
                point += np.divide(points[here].T, scale[0], dtype=np.float64)
            if width == 1:
                np.rint(point, out=point)
            else:
                _methods.nearest_hexagonal(*point)
            levels[:, here] = point
        return {"scale": scale, **dict(zip("ab", levels, strict=False))}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        spec, scale = shared.spec, symbols["scale"]
        require_count("scales", scale, 1)
        levels = [symbols[name] for name in self.symbols if name != "scale"]
        count = -(-spec.size // len(levels))  # of points
        for plane in levels:
            require_count("levels", plane, count)
        y = np.zeros((count, len(levels)), spec.dtype)
        for here in chunks(count, SLICE) if scale[0] else ():
            point = self._basis @ np.array([plane[here] for plane in levels], np.float64)
            point -= self._dither(shared, here.start, point.shape[1])
            y[here] = (point * float(scale[0])).T
        return y.reshape(-1)[: spec.size].reshape(spec.shape)

    @property
    def _basis(self) -> NDArray:
        """The lattice's vectors, as columns."""
        return np.ones((1, 1)) if self.lattice is Lattice.SCALAR else HEXAGONAL

    def _dither(self, shared: Shared, start: int, count: int) -> NDArray:
        """Return points that are uniform in the cell of 0, as columns, from number ``start`` on."""
        dither, key = np.empty((len(self._basis), count)), shared.key(own=True)
        if self.lattice is Lattice.HEXAGONAL:
            _methods.hexagonal_dither(key, start, *dither)
            return dither
        _methods.uniforms(key, start, dither[0])
        return dither - 0.5
