"""A tensor as its difference from one that both sides hold, within a bound on the tensor itself.

With x the tensor, r the reference's and d' what the difference decodes to, y = r + d'. So

    |x - y| <= |d - d'| + |x - r - d| + |r + d' - y|

where d is x - r as it is rounded, and the last two terms are half the distance between neighbouring
numbers at most: the codec gets what they leave of the bound.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fedsz.bounds import ErrorBound, half_ulp
from fedsz.codecs import Codec
from fedsz.codecs.base import FLOAT32
from fedsz.partition import NDArray
from fedsz.within import Within, encode_within, narrow

CHUNK: Final = 1 << 16  # elements added at a time, which a cache holds


def encode_difference(
    x: NDArray, base: NDArray, error_bound: ErrorBound, codec: Codec
) -> Within | None:
    """Code x - base; None where no difference can stand for ``x``.

    Args:
        x: of a floating dtype.
        base: of its dtype and shape.
        error_bound: on the tensor: of its range for ``rel``; of the difference's standard
            deviation for ``std``.
        codec: for the difference, in float64 for float64 tensors and float32 for others.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.subtract(x, base, dtype=wide(x.dtype))
    # NaN and infinities come back exactly only as they are.
    if not (x.size and np.isfinite(difference).all()):
        return None
    bound = error_bound.absolute(difference if error_bound.kind == "std" else x)
    rounding = half_ulp(_largest(difference), difference.dtype)
    reach = _largest(x) + bound
    rounding += half_ulp(reach, difference.dtype)
    if x.dtype != difference.dtype:
        rounding += half_ulp(reach, x.dtype)
    spare = bound - rounding
    if not spare > 0:
        return None
    coded = encode_within(difference, spare, codec)
    return coded and Within(coded.payload, bound, coded.max_error + rounding)


def moved(base: NDArray, difference: NDArray) -> NDArray:
    """Return base + difference, in the dtype of ``base``; what is finite stays finite."""
    with np.errstate(over="ignore"):
        y = np.add(base, difference, dtype=wide(base.dtype))
    return narrow(y, base.dtype)


def add_scaled(base: NDArray, weight: float, sums: NDArray) -> None:
    """Add ``weight`` times ``base`` to ``sums``, in their dtype."""
    flat, out = base.reshape(-1), sums.reshape(-1)
    for at in range(0, flat.size, CHUNK):
        here = slice(at, at + CHUNK)
        out[here] += flat[here].astype(sums.dtype) * sums.dtype.type(weight)


def wide(dtype: np.dtype) -> np.dtype:
    """Return the dtype that differences of ``dtype`` have."""
    return dtype if dtype == np.float64 else FLOAT32


def _largest(x: NDArray) -> float:
    return float(max(abs(float(x.max())), abs(float(x.min()))))
