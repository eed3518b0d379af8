"""Reference models as points of an exact grid, so that differences between them add up exactly.

A tensor b_t of the reference model after broadcast t is

    b_t = q_0 m_0 + q_1 m_1 + ... + q_t m_t

with arrays of integers m and spacings q that have few bits. As long as float32 holds each b_t, it
does each sum on the way: no order of adding rounds. So any number of broadcasts is one array of
integers, in units of the common spacing, and leads to the same model, to the bit.

A tensor is on no grid if it is not float32, is not finite, or has a bound so far below its elements
that float32 does not hold all points. Such a tensor is sent as updates are, within the same bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from fedsz.arrays import NDArray, flat
from fedsz.codecs import _methods
from fedsz.codecs.base import FLOAT32
from fedsz.core.partition import is_lossy
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings

SPACING_BITS: Final = 4  # of a first spacing: it is at most an eighth below twice the bound
# Bits of the largest element of a first model that both sides have: key frames of later models are
# multiples of the same spacing, or of a finer one. The server's own model is not rounded.
INITIAL_BITS: Final = 9

Spacings = Mapping[str, float]  # by tensor on the grid, the spacing of its last points


def place(
    model: Mapping[str, NDArray],
    bounds: Mapping[str, float],
    before: Reference | None = None,
    spacings: Spacings = MappingProxyType({}),
) -> tuple[dict[str, NDArray], dict[str, float]]:
    """Return the grid points nearest to the tensors of a model, within their bounds.

    Args:
        model: float32 tensors are placed, others are left out.
        bounds: by tensor, the absolute error; above 0.
        before: the reference model before. Without it, points are multiples of a spacing.
        spacings: of that model.

    Returns:
        By tensor, its points and their spacing: points differ from those before by multiples of it.
    """
    points: dict[str, NDArray] = {}
    found: dict[str, float] = {}
    for name, bound in bounds.items():
        x, last = model[name], spacings.get(name, 0.0)
        base = None if before is None else before.like(name, x)
        if x.dtype != FLOAT32 or not x.size or (before is not None and (base is None or not last)):
            continue
        spacing = spacing_below(2 * bound, last)
        point = nearest(x, spacing, base)
        if point is not None:
            points[name], found[name] = point, spacing
    return points, found


def place_initial(
    model: Mapping[str, NDArray], settings: Settings
) -> tuple[dict[str, NDArray], dict[str, float]]:
    """Return the points of a model that both sides have: hardly moved, and the same everywhere."""
    bounds = {
        name: initial_spacing(x) / 2
        for name, x in model.items()
        if is_lossy(name, x, rule=settings.rule, threshold=settings.threshold)
    }
    return place(model, bounds)


def spacing_below(most: float, like: float = 0.0) -> float:
    """Return the largest spacing up to ``most``, which is above 0.

    It is a power of two times ``like``, or a number of `SPACING_BITS` bits.
    """
    if not like:
        fraction, exponent = math.frexp(most)
        return math.ldexp(math.floor(fraction * 2**SPACING_BITS), exponent - SPACING_BITS)
    _, octaves = math.frexp(most / like)
    spacing = math.ldexp(like, octaves - 1)
    return spacing if spacing <= most else spacing / 2


def initial_spacing(x: NDArray) -> float:
    """Return a power of two that leaves `INITIAL_BITS` to the largest element of a tensor."""
    largest = float(np.abs(x).max(initial=0.0))
    if not 0 < largest < math.inf:
        return 1.0
    return math.ldexp(1.0, math.frexp(largest)[1] - INITIAL_BITS)


def nearest(x: NDArray, spacing: float, base: NDArray | None = None) -> NDArray | None:
    """Return base, or zero, plus the multiples of ``spacing`` nearest to a float32 tensor.

    None where float32 does not hold them all, and where float64 does not tell them apart.

    Args:
        x: the tensor.
        spacing: above 0.
        base: float32, of its shape.
    """
    point, nothing = np.empty(x.shape, FLOAT32), np.empty(0, FLOAT32)
    start = nothing if base is None else flat(base)
    found = _methods.nearest_points(
        flat(x), nothing, 1.0, start, spacing, point.reshape(-1), nothing
    )
    return point if found else None


def common_spacings(grids: Iterable[Spacings]) -> dict[str, float]:
    """Return the largest spacings of which those of all grids are multiples, where all have one.

    The spacings of a tensor are powers of two times its first one.
    """
    known = list(grids)
    names = set.intersection(*map(set, known)) if known else set()
    return {name: min(grid[name] for grid in known) for name in names}
