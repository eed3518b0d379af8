"""The kernels of fedsz.methods give the bits that numpy gives, and check what they are passed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.codecs import _methods
from fedsz.codecs._methods import CorruptPayload
from fedsz.methods.base import Kind
from fedsz.methods.planes import pack

keys = st.integers(0, (1 << 64) - 1)
sizes = st.integers(0, 300)
floats = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def words(key: int, start: int, count: int) -> np.ndarray:
    gamma, m1, m2 = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    first = start % (1 << 64)
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(first) + np.uint64(1)) * gamma
        z += np.uint64(key)
        z = (z ^ z >> np.uint64(30)) * m1
        z = (z ^ z >> np.uint64(27)) * m2
    mixed: np.ndarray = z ^ z >> np.uint64(31)
    return mixed


def columns_and_signs(key: int, start: int, count: int, width: int) -> Any:
    drawn = words(key, start, count)
    column = ((drawn >> np.uint64(32)) * np.uint64(width) >> np.uint64(32)).astype(np.int64)
    return column, np.where(drawn & np.uint64(1), -1.0, 1.0)


def values(count: int, dtype: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(2, size=count).astype(dtype)


def transformed(x: np.ndarray, width: int) -> np.ndarray:
    rows = x.reshape(-1, width) * x.dtype.type(1 / math.sqrt(width))
    distance = 1
    while distance < width:
        pairs = rows.reshape(len(rows), -1, 2, distance)
        left, right = pairs[:, :, 0].copy(), pairs[:, :, 1].copy()
        pairs[:, :, 0], pairs[:, :, 1] = left + right, left - right
        distance *= 2
    return rows.reshape(-1)


@given(key=keys, start=keys, count=sizes)
def test_words(key: int, start: int, count: int) -> None:
    drawn = np.zeros(count, np.uint64)

    _methods.words(key, start, drawn)

    assert np.array_equal(drawn, words(key, start, count))


@floats
@given(key=keys, count=sizes)
def test_signs(dtype: Any, key: int, count: int) -> None:
    x = values(count, dtype)
    x[::5] = 0
    flipped = x.copy()

    _methods.flip_signs(key, flipped)

    expected = x * np.where(words(key, 0, count) >> np.uint64(63), -1, 1).astype(dtype)
    assert flipped.tobytes() == expected.tobytes()


@floats
@given(key=keys, start=keys, count=sizes, width=st.integers(1, 100))
def test_sketches(dtype: Any, key: int, start: int, count: int, width: int) -> None:
    x, row, total = values(count, dtype), values(width, np.float64, 1), values(count, np.float64, 2)
    column, sign = columns_and_signs(key, start, count, width)
    summed, read = np.zeros(width), total.copy()

    _methods.add_to_sketch(key, start, x, summed)
    _methods.add_from_sketch(key, start, row.astype(dtype), read)

    assert np.array_equal(summed, np.bincount(column, weights=x * sign, minlength=width))
    assert np.array_equal(read, total + row.astype(dtype)[column] * sign)


@floats
@pytest.mark.parametrize("width", [1 << i for i in range(14)])
def test_hadamard_transforms(dtype: Any, width: int) -> None:
    x = values(3 * width, dtype)
    y = x.copy()

    _methods.hadamard(y, width)

    assert np.array_equal(y, transformed(x, width))
    _methods.hadamard(y, width)
    assert np.allclose(y, x, rtol=1e-4, atol=1e-4)


@floats
@given(count=sizes, weight=st.floats(-1e3, 1e3), seed=st.integers(0, 99))
def test_sparse_sums(dtype: Any, count: int, weight: float, seed: int) -> None:
    sums, x = values(3 * count + 1, dtype, seed), values(count, dtype, seed + 1)
    rng = np.random.default_rng(seed)
    indices = np.sort(rng.choice(sums.size, count, replace=False)).astype(np.int64)
    expected = sums.copy()
    expected[indices] += x * dtype(weight)

    _methods.add_sparse(indices, x, weight, sums)

    assert np.array_equal(sums, expected)


@given(data=st.data(), width=st.integers(0, 40))
def test_gaps(data: st.DataObject, width: int) -> None:
    gap = st.integers(0, (1 << width + 3) - 1)
    gaps = np.array(data.draw(st.lists(gap, max_size=40)), np.int64)
    plane = np.cumsum(gaps + 1) - 1
    packed = pack(Kind.INDICES, plane)
    if packed[0] != 0:  # by their frequencies
        return
    decoded = np.full(gaps.size, -1)

    _methods.decode_gaps(packed[2:], packed[1], decoded)

    assert np.array_equal(decoded, gaps)


@given(code=st.binary(max_size=60), width=st.integers(0, 60), count=sizes)
def test_any_bytes_are_gaps_or_refused(code: bytes, width: int, count: int) -> None:
    gaps = np.zeros(count, np.int64)

    try:
        _methods.decode_gaps(code, width, gaps)
    except CorruptPayload:
        return
    assert not (gaps < 0).any()
    assert count <= 8 * len(code)


@pytest.mark.parametrize(
    ("code", "width", "count"),
    [
        (b"\1", 0, 2),  # one gap
        (b"\3", 0, 1),  # two
        (b"\1\0", 0, 1),  # a byte behind the last
        (b"\2\1", 1, 1),  # a bit behind the last
        (b"\1", 1, 1),  # no unary part
        (b"\1", 49, 0),  # more bits than a gap has
        (b"\0\0\0\1", 8, 1),  # fewer planes than bits
        (b"\0" * 48 + b"\0" * 4096 + b"\1", 48, 1),  # 2^63
    ],
)
def test_what_is_no_code_of_gaps(code: bytes, width: int, count: int) -> None:
    with pytest.raises(CorruptPayload):
        _methods.decode_gaps(code, width, np.zeros(count, np.int64))


ONES, INDICES = np.ones(4, np.float32), np.arange(4)
MISALIGNED = np.frombuffer(bytes(17), np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: _methods.add_sparse(INDICES, ONES, 1.0, np.zeros(3, np.float32)), IndexError),
        (lambda: _methods.add_sparse(INDICES - 1, ONES, 1.0, np.zeros(4, np.float32)), IndexError),
        (lambda: _methods.add_sparse(INDICES[:3], ONES, 1.0, np.zeros(4, np.float32)), ValueError),
        (lambda: _methods.add_sparse(INDICES, ONES, 1.0, np.zeros(4)), TypeError),
        (lambda: _methods.hadamard(ONES.copy(), 3), ValueError),
        (lambda: _methods.hadamard(ONES.copy(), 8), ValueError),
        (lambda: _methods.hadamard(ONES.copy(), 0), ValueError),
        (lambda: _methods.hadamard(MISALIGNED.copy().astype(np.float16), 4), TypeError),
        (lambda: _methods.add_to_sketch(0, 0, ONES, np.zeros(0)), ValueError),
        (lambda: _methods.add_from_sketch(0, 0, np.zeros(0), np.zeros(4)), ValueError),
        (lambda: _methods.add_to_sketch(0, 0, MISALIGNED, np.zeros(4)), ValueError),
        (lambda: _methods.add_to_sketch(0, 0, ONES[::2], np.zeros(4)), TypeError),
        (lambda: _methods.words(0, 0, np.zeros(4, np.int64)), TypeError),
        (lambda: _methods.words(-1, 0, np.zeros(4, np.uint64)), TypeError),
        (lambda: _methods.flip_signs(0, np.broadcast_to(np.float32(1), 4)), TypeError),
    ],
)
def test_arguments_that_do_not_fit(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
