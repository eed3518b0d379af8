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
from fedsz.contrib.uveqfed import HEXAGONAL
from fedsz.methods.base import Kind
from fedsz.methods.symbols import pack

HEIGHT = HEXAGONAL[1, 1]

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


def uniforms(key: int, start: int, count: int) -> np.ndarray:
    return (words(key, start, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def nearest_in_rows(x: np.ndarray, y: np.ndarray, row: np.ndarray) -> Any:
    column = np.rint(x - 0.5 * row)
    aside, above = column + 0.5 * row - x, HEIGHT * row - y
    return aside * aside + above * above, column, row


def cartesian(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return a + 0.5 * b, HEIGHT * b


def nearest_points(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    height = y / HEIGHT
    even, a, b = nearest_in_rows(x, y, 2 * np.rint(0.5 * height))
    odd, c, d = nearest_in_rows(x, y, 2 * np.rint(0.5 * (height - 1)) + 1)
    return np.where(odd < even, c, a), np.where(odd < even, d, b)


@given(key=keys, start=keys, count=sizes)
def test_draws(key: int, start: int, count: int) -> None:
    integers, numbers = np.zeros(count, np.uint64), np.zeros(count)

    _methods.words(key, start, integers)
    _methods.uniforms(key, start, numbers)

    assert np.array_equal(integers, words(key, start, count))
    assert np.array_equal(numbers, uniforms(key, start, count))


@given(count=sizes, seed=st.integers(0, 99), scale=st.sampled_from([1e-9, 1.0, 1e6, 2.0**40]))
def test_nearest_points_of_the_hexagonal_lattice(count: int, seed: int, scale: float) -> None:
    x, y = scale * values(2 * count, np.float64, seed).reshape(2, count)
    x[::7], y[::5] = 0, 2.5 * HEIGHT  # on borders of cells
    a, b = x.copy(), y.copy()

    _methods.nearest_hexagonal(a, b)

    assert all(np.array_equal(*pair) for pair in zip((a, b), nearest_points(x, y), strict=True))


@given(key=keys, start=st.integers(0, 1 << 50), count=sizes)
def test_hexagonal_dither(key: int, start: int, count: int) -> None:
    x, y = np.zeros(count), np.zeros(count)

    _methods.hexagonal_dither(key, start, x, y)

    drawn = cartesian(*uniforms(key, 2 * start, 2 * count).reshape(-1, 2).T)
    a, b = cartesian(*nearest_points(*drawn))
    assert np.array_equal(x, drawn[0] - a)
    assert np.array_equal(y, drawn[1] - b)
    assert (np.hypot(x, y) <= 3**-0.5 + 1e-15).all()  # from the centre of a cell to its corners


def placed(meant: np.ndarray, start: np.ndarray, step: float) -> np.ndarray | None:
    """Return start plus the multiples of a step that are nearest, by numpy."""
    x, base = meant.astype(np.float64), start.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = np.rint((x - base) / step) * step + base
        left = x - exact
        far = np.abs(left) > step / 2
        exact[far] += np.copysign(step, left[far])
        points = (exact + 0.0).astype(np.float32)
        near = np.abs(x - exact) <= step / 2
    counted = (np.abs(x) < 2.0**53 * step) & (np.abs(base) < 2.0**53 * step)
    return points if (near & counted & (points == exact)).all() else None


@pytest.mark.parametrize("level", _methods.point_levels())
@given(
    count=st.sampled_from([0, 1, 15, 300, 5000]),
    step=st.sampled_from([2.0**-140, 2.0**-20, 0.375, 9 * 2.0**-30, 11.0, 2.0**90]),
    reach=st.integers(-3, 60),
    spoilt=st.lists(st.floats(width=32), max_size=2),
    weight=st.none() | st.sampled_from([1.0, 0.9]),
    based=st.booleans(),
)
def test_nearest_points(
    level: str,
    count: int,
    step: float,
    reach: int,
    spoilt: list[float],
    weight: float | None,
    based: bool,
) -> None:
    rng, none = np.random.default_rng(count), np.empty(0, np.float32)
    with np.errstate(over="ignore"):
        start = (np.rint(rng.normal(size=count) * 2.0**reach) * step).astype(np.float32)
        moved = step * rng.choice([0.5, 1.5, *rng.normal(0, 3, 4)], count)
        x = ((start if based else 0) + moved).astype(np.float32)
        x[: len(spoilt)] = spoilt[:count]
        residual = (step * rng.normal(size=count)).astype(np.float32)
        meant = x if weight is None else residual * np.float32(weight) + x
        expected = placed(meant, start if based else np.zeros_like(x), step)
    points, left = np.empty_like(x), np.empty_like(x)
    added = none if weight is None else residual

    held = _methods.nearest_points(
        x, added, weight or 1.0, start if based else none, step, points, left, level
    )

    assert held == (expected is not None)
    if expected is not None:
        assert points.tobytes() == expected.tobytes()
        assert left.tobytes() == (meant - expected).tobytes()


@given(count=sizes, scale=st.sampled_from([1e-3, 1.0, 1e6]), seed=st.integers(0, 99))
def test_comes_back(count: int, scale: float, seed: int) -> None:
    base = values(count, np.float32, seed)
    x = base + (scale * values(count, np.float32, seed + 1)).astype(np.float32)

    assert _methods.comes_back(x, base) == bool((base + (x - base) == x).all())


@floats
@given(count=sizes, clusters=st.integers(1, 256), seed=st.integers(0, 99))
def test_clusters(dtype: Any, count: int, clusters: int, seed: int) -> None:
    x = values(count, dtype, seed)
    bounds, equal = values(clusters - 1, np.float64, seed + 1), min(count, clusters // 2)
    bounds[:equal] = x[:equal]
    bounds.sort()
    labels, sums = np.full(count, -1, np.int16), np.zeros(clusters)
    counts = np.zeros(clusters, np.int64)

    _methods.cluster(x, bounds, labels, sums, counts)

    expected = np.searchsorted(bounds, x)
    assert np.array_equal(labels, expected)
    assert np.array_equal(sums, np.bincount(expected, weights=x, minlength=clusters))
    assert np.array_equal(counts, np.bincount(expected, minlength=clusters))


def test_clusters_of_hostile_bounds_touch_nothing_else() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0])
    for bounds in (np.full(4, np.nan), np.full(4, np.inf), np.array([3.0, np.nan, 1.0, -np.inf])):
        labels, counts = np.full(4, -1, np.int16), np.zeros(5, np.int64)

        _methods.cluster(x, bounds, labels, np.zeros(5), counts)

        assert ((labels >= 0) & (labels < 5)).all()
        assert counts.sum() == 4


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
    decoded = np.full(gaps.size, -1)

    _methods.decode_gaps(packed[1:], packed[0], decoded)

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


def clustered(labels: int = 4, sums: int = 3, counts: int = 3) -> None:
    label = np.zeros(labels, np.int16)
    _methods.cluster(ONES, np.zeros(2), label, np.zeros(sums), np.zeros(counts, np.int64))


def pointed(residual: int = 4, start: int = 4, points: int = 4, left: int = 4, **how: Any) -> None:
    added, base, to, rest = (np.ones(n, np.float32) for n in (residual, start, points, left))
    _methods.nearest_points(ONES, added, 1.0, base, 1.0, to, rest, **how)


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
        (lambda: _methods.uniforms(0, 0, np.zeros(4, np.float32)), TypeError),
        (lambda: _methods.hexagonal_dither(0, 0, np.zeros(4), np.zeros(3)), ValueError),
        (lambda: _methods.nearest_hexagonal(np.zeros(3), np.zeros(4)), ValueError),
        (lambda: _methods.nearest_hexagonal(ONES, ONES), TypeError),
        (lambda: pointed(residual=3), ValueError),
        (lambda: pointed(start=5), ValueError),
        (lambda: pointed(points=3), ValueError),
        (lambda: pointed(left=5), ValueError),
        (lambda: pointed(level="none"), ValueError),
        (lambda: _methods.comes_back(ONES, ONES[:3]), ValueError),
        (lambda: clustered(labels=3), ValueError),
        (lambda: clustered(sums=2), ValueError),
        (lambda: clustered(counts=4), ValueError),
        (lambda: _methods.flip_signs(0, np.broadcast_to(np.float32(1), 4)), TypeError),
    ],
)
def test_arguments_that_do_not_fit(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
