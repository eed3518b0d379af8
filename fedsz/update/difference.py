"""A tensor as its difference from one that both sides hold, within a bound on the tensor itself.

With x the tensor, r the reference's and d' what the difference decodes to, y = r + d'. So

    |x - y| <= |d - d'| + |x - r - d| + |r + d' - y|

where d is x - r as it is rounded, and the last two terms are half the distance between neighbouring
numbers at most: the codec gets what they leave of the bound.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec
from fedsz.codecs.base import FLOAT32
from fedsz.codecs.uniform import compare
from fedsz.spread import finfo, half_ulp
from fedsz.update.bounded import Within, encode_within, narrow

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
    if not x.size:
        return None
    whole, start = (side.astype(wide(x.dtype), copy=False) for side in (x, base))
    threads = getattr(codec, "threads", 0)
    seen = compare(whole, start, deviation=error_bound.kind == "std", threads=threads)
    # NaN and infinities come back exactly only as they are.
    if not (math.isfinite(seen.least) and math.isfinite(seen.greatest)):
        return None
    spread = seen.deviation if error_bound.kind == "std" else seen.high - seen.low
    bound = error_bound.absolute_of(spread)
    reach = max(-seen.low, seen.high) + bound
    rounding = half_ulp(max(-seen.least, seen.greatest), whole.dtype) + half_ulp(reach, whole.dtype)
    if x.dtype != whole.dtype:
        rounding += half_ulp(reach, x.dtype)
    spare = bound - rounding
    # Beyond the largest number, a sum of two finite ones is infinite.
    if not spare > 0 or reach > float(finfo(whole.dtype).max):
        return None
    if whole.dtype in codec.dtypes:
        encoded = codec.encode_difference(whole, start, spare)
        return Within(encoded.payload, bound, encoded.max_error + rounding)
    coded = encode_within(np.asarray(whole - start), spare, codec)
    return coded and Within(coded.payload, bound, coded.max_error + rounding)


def moved(base: NDArray, difference: NDArray) -> NDArray:
    """Return base + difference, in the dtype of ``base``; what is finite stays finite."""
    with np.errstate(over="ignore"):
        y = np.asarray(np.add(base, difference, dtype=wide(base.dtype)))
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
