"""How far an array's values lie apart, by numpy alone: for bounds, on which codecs stand.

`fedsz.codecs.spread` finds the same, to the bit, faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import NDArray, chunks

CHUNK: Final = 1 << 17  # elements looked at a time: 1 MB in float64, which a cache holds


def value_range(x: NDArray) -> float:
    """Return max - min of the finite elements, in float64; 0 if there are none."""
    low, high, flat = math.inf, -math.inf, x.reshape(-1)
    with np.errstate(invalid="ignore"):  # NaNs that signal, when they are converted
        for here in chunks(x.size, CHUNK):
            part = flat[here]
            least, greatest = _extremes(part)
            if not math.isfinite(least - greatest):  # of a NaN, too
                finite = part[np.isfinite(part)]
                if not finite.size:
                    continue
                least, greatest = _extremes(finite)
            low, high = min(low, least), max(high, greatest)
    return high - low if low <= high else 0.0


def _extremes(x: NDArray) -> tuple[float, float]:
    """Return the least and the greatest element of a flat array, or a NaN if there is one."""
    if x.dtype.itemsize != 2:
        return float(x.min()), float(x.max())
    # As integers of the same order, among which numpy finds them ten times as fast.
    keys = _sign_flipped(x.view(np.int16))
    ends = _sign_flipped(np.array([keys.min(), keys.max()]))
    least, greatest = ends.view(x.dtype).astype(np.float64).tolist()
    return least, greatest


def _sign_flipped(bits: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Turn floats' bits into integers of the same order, and back: NaNs come first and last."""
    return bits ^ ((bits >> 15) & 0x7FFF)


def standard_deviation(x: NDArray) -> float:
    """Return the standard deviation of the finite elements, in float64; 0 if there are none."""
    with np.errstate(over="ignore", invalid="ignore"):  # the caller sees it in the result
        count, total = 0, 0.0
        for part in _finite_doubles(x):
            count += part.size
            total += float(part.sum())
        mean = total / count if count else 0.0
        squares = 0.0
        for part in _finite_doubles(x):
            part -= mean
            part *= part
            squares += float(part.sum())
    return math.sqrt(squares / count) if count else 0.0


def _finite_doubles(x: NDArray) -> Iterator[npt.NDArray[np.float64]]:
    """Yield copies of the finite elements of ``x``, a chunk at a time."""
    flat = x.reshape(-1)
    for here in chunks(x.size, CHUNK):
        doubles = flat[here].astype(np.float64)
        yield doubles if np.isfinite(doubles).all() else doubles[np.isfinite(doubles)]
