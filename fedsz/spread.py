"""How far an array's values lie apart: range, deviation, energy, and the spacing of its dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import NDArray, chunks, finfo, wide

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


def energy(x: NDArray, base: NDArray | None = None, *, double: bool = False) -> float:
    """Return the sum of squares of ``x``, or of x - base: complex numbers by their magnitude.

    Squares are of float64 for float64 and whole numbers, of float32 for narrower ones unless
    ``double`` says otherwise; the result is not finite where one of them is not. Where ``base`` is
    not finite, the same value in ``x`` is no difference: a mask of -inf is none.
    """
    dtype: np.dtype = np.dtype(np.float64)
    if x.dtype.kind == "c":
        dtype = np.dtype(np.complex128) if double else x.dtype
    elif x.dtype.kind not in "iub" and x.dtype != np.float64 and not double:
        dtype = np.dtype(np.float32)
    total, flat = 0.0, x.reshape(-1)
    start = None if base is None else base.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        for here in chunks(x.size, CHUNK):
            v = flat[here]
            if start is None:
                v = v.astype(dtype, copy=False)
            else:
                v = np.subtract(v, start[here], dtype=dtype, casting="unsafe")
            squares = float(np.vdot(v, v).real)
            if start is not None and not math.isfinite(squares):
                left, right = flat[here], start[here]
                v[(left == right) | (np.isnan(left) & np.isnan(right))] = 0
                squares = float(np.vdot(v, v).real)
            total += squares
    return total


def energy_between(x: NDArray, base: NDArray) -> float:
    """Return the sum of squares of x - base, of floats; not finite where a difference overflows."""
    dtype = wide(x.dtype)
    total, left, right = 0.0, x.reshape(-1), base.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        for here in chunks(x.size):
            d = np.subtract(left[here], right[here], dtype=dtype)
            total += float(np.dot(d, d))
    return total


def _finite_doubles(x: NDArray) -> Iterator[npt.NDArray[np.float64]]:
    """Yield copies of the finite elements of ``x``, a chunk at a time."""
    flat = x.reshape(-1)
    for here in chunks(x.size, CHUNK):
        doubles = flat[here].astype(np.float64)
        yield doubles if np.isfinite(doubles).all() else doubles[np.isfinite(doubles)]


def half_ulp(largest: float, dtype: np.dtype) -> float:
    """Return half the distance between the values of a floating ``dtype`` around ``largest``.

    It is the most that rounding a value of at most that magnitude can change it.
    """
    about = finfo(dtype)
    lowest = int(about.minexp)
    exponent = math.frexp(largest)[1] - 1 if largest else lowest  # largest in 2^exponent x [1, 2)
    return math.ldexp(0.5, max(exponent, lowest) - int(about.nmant))
