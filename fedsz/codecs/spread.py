"""How far an array's values lie apart: range, deviation, energy, and the spacing of its dtype.

Error bounds follow from these. They are summed in C++, in an order of its own: one bit more or
less would be another stream.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedsz.arrays import DTYPE_IDS, DTYPES, LOSSY_DTYPES, NDArray, chunks, finfo, octets, wide
from fedsz.codecs import _uniform
from fedsz.threads import threads_for


def value_range(x: NDArray) -> float:
    """Return max - min of the finite elements, in float64; 0 if there are none."""
    return _uniform.value_range(*_floats(x), "")


def standard_deviation(x: NDArray) -> float:
    """Return the standard deviation of the finite elements, in float64; 0 if there are none."""
    return _uniform.standard_deviation(*_floats(x), "")


def energy(x: NDArray, base: NDArray | None = None, *, double: bool = False) -> float:
    """Return the sum of squares of ``x``, or of x - base: complex numbers by their magnitude.

    Squares are of float64 for float64 and whole numbers, of float32 for narrower ones unless
    ``double`` says otherwise; the result is not finite where one of them is not. Where ``base`` is
    not finite, the same value in ``x`` is no difference: a mask of -inf is none.
    """
    if x.dtype.kind == "c":
        base = None if base is None else _parts(base.astype(x.dtype, copy=False))
        x = _parts(x)
    whole = x.dtype.kind in "iub"
    return _energy(x, base, DTYPES[1] if double or whole else wide(x.dtype), masked=True)


def energy_between(x: NDArray, base: NDArray) -> float:
    """Return the sum of squares of x - base, of floats; not finite where a difference overflows."""
    return _energy(x, base, wide(x.dtype), masked=False)


def _energy(x: NDArray, base: NDArray | None, dtype: np.dtype, *, masked: bool) -> float:
    """Return the sum of squares in ``dtype``; ``masked`` as `energy` says.

    What has to be converted is so a chunk at a time, which is the length of the sums that are
    added up in C++: the result is that of arrays which are converted as a whole.
    """
    operands = [v.reshape(-1) for v in (x, base) if v is not None]
    if x.dtype in LOSSY_DTYPES and wide(x.dtype) == dtype and operands[-1].dtype == x.dtype:
        return _summed(*operands, masked=masked)
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for here in chunks(x.size):
            total += _summed(*(v[here].astype(dtype) for v in operands), masked=masked)
    return total


def _summed(x: NDArray, base: NDArray | None = None, *, masked: bool) -> float:
    start = None if base is None else octets(base)
    return _uniform.energy(octets(x), DTYPE_IDS[x.dtype], start, masked, threads_for(x.size), "")


def _floats(x: NDArray) -> tuple[npt.NDArray[np.uint8], int]:
    """Return an array's bytes and its dtype, as C++ takes them."""
    x = x if x.dtype in LOSSY_DTYPES else x.astype(np.float64)
    return octets(x), DTYPE_IDS[x.dtype]


def _parts(x: NDArray) -> NDArray:
    """Return the real and imaginary parts of complex numbers as an array twice as long."""
    return np.ascontiguousarray(x).reshape(-1).view(x.real.dtype)


def half_ulp(largest: float, dtype: np.dtype) -> float:
    """Return half the distance between the values of a floating ``dtype`` around ``largest``.

    It is the most that rounding a value of at most that magnitude can change it.
    """
    about = finfo(dtype)
    lowest = int(about.minexp)
    exponent = math.frexp(largest)[1] - 1 if largest else lowest  # largest in 2^exponent x [1, 2)
    return math.ldexp(0.5, max(exponent, lowest) - int(about.nmant))
