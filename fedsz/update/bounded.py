"""One tensor through a codec, within a bound that holds in the tensor's own dtype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.codecs import Codec
from fedsz.codecs.base import FLOAT32
from fedsz.spread import finfo, half_ulp


@dataclass(frozen=True)
class Within:
    """A tensor, coded.

    Attributes:
        payload: its codec's.
        bound: the absolute bound that it keeps, in the unit of the tensor.
        max_error: the largest error, in float64, of what it decodes to.
    """

    payload: bytes
    bound: float
    max_error: float


def encode_within(x: NDArray, bound: float, codec: Codec) -> Within | None:
    """Code ``x`` so that the bound holds in its own dtype; None where that cannot be had."""
    if x.dtype in codec.dtypes:
        encoded = codec.encode_measured(x, bound)
        return Within(encoded.payload, bound, encoded.max_error)
    with np.errstate(over="ignore", invalid="ignore"):
        single = x.astype(FLOAT32)
    if not np.isfinite(single).all():
        return None  # a NaN's bits, or a value beyond float32, would not come back
    spare = bound - _rounding(x, bound)
    if not spare > 0:
        return None
    payload = codec.encode(single, spare)
    back = narrow(codec.decode(payload, x.shape), x.dtype)
    error = float(np.abs(back.astype(np.float64) - x.astype(np.float64)).max(initial=0.0))
    return Within(payload, bound, error) if error <= bound or not codec.keeps_bound else None


def _rounding(x: NDArray, bound: float) -> float:
    """Return the most that one rounding on the way from ``x`` to its copy can add to an error.

    float64 is rounded to float32 before it is coded, the narrower dtypes after it is decoded: half
    the distance between two neighbours, where that is widest.
    """
    largest = float(np.abs(x.astype(np.float64)).max(initial=0.0)) + bound
    return half_ulp(largest, FLOAT32 if x.dtype == np.float64 else x.dtype)


def narrow(y: NDArray, dtype: np.dtype) -> NDArray:
    """Convert what was decoded to ``dtype``; what is finite stays finite."""
    if y.dtype == dtype:
        return y
    with np.errstate(over="ignore"):
        converted = y.astype(dtype)
    burst = np.isinf(converted) & np.isfinite(y)
    if burst.any():
        largest = float(finfo(dtype).max)
        converted[burst] = np.copysign(largest, y[burst]).astype(dtype)
    return converted
