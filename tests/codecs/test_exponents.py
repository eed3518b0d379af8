"""`exponents`: normal weights shrink, and forged planes are refused."""

from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
import pytest

from fedsz.codecs.exponents import FRAME, Exponents
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CorruptStream

CODEC = Exponents()


@pytest.mark.parametrize(
    ("dtype", "least"),
    [(ml_dtypes.bfloat16, 1.5), (np.float16, 1.15), (np.float32, 1.19), (np.float64, 1.12)],
)
def test_weights_take_the_bits_that_their_exponents_hold(dtype: type, least: float) -> None:
    x = (0.02 * np.random.default_rng(0).normal(size=200_000)).astype(dtype)
    x[:4] = [0.0, -0.0, np.inf, np.nan]

    packed = CODEC.pack(x.tobytes(), x.itemsize)

    assert bytes(CODEC.unpack(packed, x.nbytes)) == x.tobytes()
    assert x.nbytes > least * len(packed)


def test_frames_follow_each_other() -> None:
    x = np.arange(FRAME + 5, dtype=np.uint16) // 300

    packed = CODEC.pack(x, 2)

    assert bytes(CODEC.unpack(packed, x.nbytes)) == x.tobytes()
    with pytest.raises(CorruptStream):
        CODEC.unpack(packed, x.nbytes - 2)


@pytest.mark.parametrize("odd", [-1.0, 0.5, 256.0, math.nan, math.inf])
def test_planes_of_what_is_no_byte_are_refused(odd: float) -> None:
    values = np.array([1, 2, odd, 3], np.float32)
    plane = Uniform(effort=1).encode_multiples(values, None, 1.0)

    with pytest.raises(CorruptStream, match="no byte"):
        CODEC.unpack(b"\x01" + struct.pack("<I", len(plane)) + plane, 4)


@pytest.mark.parametrize("size", [0, 3, 16, 255])
def test_elements_of_no_size_are_refused(size: int) -> None:
    with pytest.raises(CorruptStream, match=f"elements of {size} bytes"):
        CODEC.unpack(bytes([size]) + bytes(20), 12)
