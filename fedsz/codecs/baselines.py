"""`fp16`, half precision, and `int8`, 256 levels: baselines that keep no bound.

So the bound of such a tensor is stated as the error it turned out to have. NaN and infinities come
back exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import chunks
from fedsz.codecs.base import Array
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.errors import CorruptStream

TOP: Final = 15  # the largest element lies in [2^14, 2^15): halves end at 65504
LOWEST, HIGHEST = -113, 126  # exponents of S: S and 1 / S are normal float32

HEAD: Final = np.dtype([("least", "<f4"), ("scale", "<f4")])
STEPS: Final = 255


@dataclass(frozen=True)
class Fp16(EnvelopeCodec):
    """cast(x S) / S, with S the power of two that takes the largest element to halves' top.

    So no element overflows, and one is subnormal only if it lies 2^-28 below the largest: all
    others move by 2^-11 of themselves at most.
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
        y = np.frombuffer(native, "<f2", offset=1).astype("<f4")
        with np.errstate(over="ignore", invalid="ignore"):  # the envelope has patches for those
            y *= np.float32(2.0**-exponent)
        return y


@dataclass(frozen=True)
class Int8(EnvelopeCodec):
    """q = round((x - min) / scale), y = min + q scale, scale = (max - min) / 255 of the tensor.

    Elements move by half of ``scale`` at most, but for the rounding of y to float32.
    """

    name = "int8"
    wire_id = 22
    keeps_bound = False
    isolated = False

    def compress(self, x: Array, bound: float) -> bytes:  # noqa: ARG002, D102
        least, spread = x.min(), float(x.max()) - float(x.min())
        scale = np.float32(spread / STEPS)
        if STEPS * float(scale) < spread:
            scale = np.nextafter(scale, np.float32(np.inf))  # the greatest element has a level, too
        head = np.array([(least, scale)], HEAD).tobytes()
        levels = np.zeros(x.size, np.uint8)
        for here in chunks(x.size if scale else 0):
            wide = x[here].astype(np.float64)
            wide -= least
            wide /= scale
            levels[here] = np.rint(wide, out=wide)
        return head + levels.tobytes()

    def decompress(self, native: bytes, n: int) -> Array:  # noqa: D102
        if len(native) != HEAD.itemsize + n:
            raise CorruptStream(f"int8 payload of {len(native)} bytes for {n} elements")
        least, scale = np.frombuffer(native, HEAD, 1)[0].tolist()
        with np.errstate(over="ignore", invalid="ignore"):  # the envelope has patches for those
            values = (least + np.arange(STEPS + 1) * scale).astype("<f4")
        levels, y = np.frombuffer(native, np.uint8, offset=HEAD.itemsize), np.empty(n, "<f4")
        for here in chunks(n):  # numpy makes indices of eight bytes each
            y[here] = values[levels[here]]
        return y
