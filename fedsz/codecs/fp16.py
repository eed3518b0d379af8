"""`fp16`: IEEE half precision, a baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.codecs.base import Array
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.errors import CorruptStream

TOP: Final = 15  # the largest element lies in [2^14, 2^15): halves end at 65504
LOWEST, HIGHEST = -113, 126  # exponents of S: S and 1 / S are normal float32


@dataclass(frozen=True)
class Fp16(EnvelopeCodec):
    """cast(x S) / S, with S the power of two that takes the largest element to halves' top.

    So no element overflows, and one is subnormal only if it lies 2^-28 below the largest: all
    others move by 2^-11 of themselves at most. No bound is kept, so that of such a tensor is stated
    as the error it turned out to have. NaN and infinities come back exactly.
    """

    name = "fp16"
    wire_id = 21
    keeps_bound = False
    isolated = False

    def compress(self, x: Array, bound: float) -> bytes:  # noqa: ARG002, D102
        largest = max(float(x.max()), -float(x.min()))
        exponent = min(TOP - math.frexp(largest)[1], HIGHEST)
        halves = (x * np.float32(2.0**exponent)).astype("<f2")
        return exponent.to_bytes(1, "little", signed=True) + halves.tobytes()

    def decompress(self, native: bytes, n: int) -> Array:  # noqa: D102
        exponent = int.from_bytes(native[:1], "little", signed=True)
        if len(native) != 1 + 2 * n or not LOWEST <= exponent <= HIGHEST:
            raise CorruptStream(f"fp16 payload of {len(native)} bytes, S 2^{exponent}, for {n}")
        with np.errstate(over="ignore", invalid="ignore"):  # the envelope has patches for those
            return np.frombuffer(native, "<f2", offset=1).astype("<f4") * np.float32(2.0**-exponent)
