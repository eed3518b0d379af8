"""Tokens of a ring take exactly their bits, come back, and add up modulo 2^b."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.codecs import _ring
from fedsz.errors import CorruptStream
from fedsz.privacy.ring import Ring

DTYPES = (np.uint8, np.uint16, np.uint32)
counts = st.integers(0, 200)
seeds = st.integers(0, 1 << 32)


def tokens(count: int, bits: int, seed: int, dtype: Any) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << bits, count, dtype=dtype)


def written_out(x: np.ndarray, bits: int) -> bytes:
    """The packed bytes as one large number."""
    number = sum(int(token) << i * bits for i, token in enumerate(x))
    return number.to_bytes(-(-len(x) * bits // 8), "little")


@pytest.mark.parametrize("dtype", DTYPES)
@given(count=counts, bits=st.integers(1, 32), seed=seeds)
def test_bytes_are_the_tokens_bit_by_bit(dtype: Any, count: int, bits: int, seed: int) -> None:
    bits = min(bits, 8 * np.dtype(dtype).itemsize)
    x = tokens(count, bits, seed, dtype)

    packed = Ring(bits).pack(x)

    assert packed == written_out(x, bits)
    assert len(packed) == Ring(bits).packed_size(count)


@pytest.mark.parametrize("dtype", DTYPES)
@given(count=counts, bits=st.integers(1, 32), seed=seeds)
def test_sums_are_those_of_the_ring(dtype: Any, count: int, bits: int, seed: int) -> None:
    bits = min(bits, 8 * np.dtype(dtype).itemsize)
    parts = [tokens(count, bits, seed + i, dtype) for i in range(5)]
    sums = np.zeros(count, dtype)

    for part in parts:
        Ring(bits).unpack_add(
            memoryview(b"." + Ring(bits).pack(part))[1:], sums
        )  # at an odd address

    plain = np.sum(parts, axis=0, dtype=np.uint64, initial=0) % (1 << bits)
    assert np.array_equal(sums, plain)


@pytest.mark.parametrize("bits", range(1, 33))
def test_other_bytes_change_nothing(bits: int) -> None:
    sums = tokens(37, bits, 0, np.uint32)
    before, packed = sums.copy(), Ring(bits).pack(sums)
    wrong = [packed[:-1], packed + b"\0", b""]
    if 37 * bits % 8:
        wrong.append(packed[:-1] + bytes([packed[-1] | 0x80]))

    for data in wrong:
        with pytest.raises(CorruptStream, match=r"packed tokens: (37 tokens|bits behind)"):
            Ring(bits).unpack_add(data, sums)
        assert np.array_equal(sums, before)


def test_callers_are_checked() -> None:
    with pytest.raises(ValueError, match="a token has more than 3 bits"):
        Ring(3).pack(np.array([7, 8], np.uint8))
    for bits in (0, 33, 9):
        with pytest.raises(ValueError, match="bits"):
            Ring(bits).pack(np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="more than any memory holds"):
        Ring(32).packed_size(1 << 62)
    odd = np.frombuffer(bytes(9), np.uint8)[1:].view(np.uint32)
    with pytest.raises(ValueError, match="aligned"):
        Ring(8).pack(odd)
    for wrong in (np.zeros(4, np.int32), np.zeros(8, np.uint8)[::2], np.zeros((2, 2), np.uint8)):
        with pytest.raises(TypeError):
            _ring.pack(wrong, 8)
