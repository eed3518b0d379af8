"""The sums that error bounds follow from: their order, what they leave out, and their dtypes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz import spread
from fedsz.arrays import DTYPES, wide
from fedsz.codecs import _uniform
from fedsz.codecs.spread import energy, energy_between, standard_deviation, value_range
from fedsz.codecs.uniform import DTYPE_IDS, octets
from tests.codecs.uniform_cases import DTYPES as LOSSY
from tests.codecs.uniform_cases import LEVELS, every_dtype, rng
from tests.strategies import finite, specials

BLOCK, LANES, PIECE = 1 << 12, 32, 1 << 16
SIZES = [1, 31, 32, 33, BLOCK, BLOCK + 1, PIECE - 1, PIECE + 1, 3 * PIECE + 4133]
BESIDE = [dtype for dtype in DTYPES if dtype not in LOSSY]


def quiet(make: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A result of numpy's that may overflow, or be no number."""
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*arguments, **named)


def one_by_one(difference: np.ndarray) -> float:
    """The sum of squares of a flat array in the order of the codecs, one addition at a time."""
    total = 0.0
    for piece in _parts(difference, PIECE):
        of_piece = 0.0
        for block in _parts(piece, BLOCK):
            squares = np.zeros((-(-block.size // LANES), LANES), block.dtype)
            squares.reshape(-1)[: block.size] = quiet(np.square, block)
            lanes = quiet(np.add.accumulate, squares)[-1].astype(np.float64)
            of_piece += float(quiet(np.add.accumulate, lanes)[-1])
        total += of_piece
    return total


def _parts(x: np.ndarray, length: int) -> Iterator[np.ndarray]:
    yield from (x[start : start + length] for start in range(0, x.size, length))


def ugly(n: int, dtype: Any, seed: int = 0) -> np.ndarray:
    """Numbers over all magnitudes, with zeros of both signs and subnormals; finite."""
    values = rng(seed).normal(size=n) * 10.0 ** rng(seed + 1).integers(-45, 12, n)
    values[::7], values[1::11] = 0.0, -0.0
    return finite(values, dtype)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def every_way(x: np.ndarray, base: np.ndarray | None, *, masked: bool) -> float:
    """The energy with each instruction set, and by threads; they agree to the bit."""
    start = None if base is None else octets(base)
    ways = [(threads, level) for level in LEVELS for threads in (1, 5)]
    found = [_uniform.energy(octets(x), DTYPE_IDS[x.dtype], start, masked, *way) for way in ways]
    assert all(same(one, found[0]) for one in found)
    return found[0]


@every_dtype
@pytest.mark.parametrize("n", SIZES)
def test_squares_are_added_up_in_one_order(dtype: np.dtype, n: int) -> None:
    x, base = ugly(n, dtype), ugly(n, dtype, 5)
    expected = one_by_one(quiet(np.subtract, x, base, dtype=wide(dtype)))

    assert energy_between(x, base) == energy(x, base) == expected
    assert energy(x) == one_by_one(x.astype(wide(dtype)))
    for masked in (False, True):
        assert every_way(x, base, masked=masked) == expected
    if dtype == wide(dtype):
        assert (
            _uniform.compare(octets(x), octets(base), DTYPE_IDS[x.dtype], False, True, 1, "")[5]
            == expected
        )


@given(data=st.data(), dtype=st.sampled_from(LOSSY))
def test_what_is_not_finite(data: st.DataObject, dtype: np.dtype) -> None:
    """A mask in both is no difference for an energy, and none of the finite for the others."""
    x = data.draw(specials(dtype)).reshape(-1)
    base = x.copy() if data.draw(st.booleans()) else quiet(np.multiply, x, dtype.type(0.5))
    left, right = x.astype(wide(dtype)), base.astype(wide(dtype))
    difference = quiet(np.subtract, left, right)

    assert same(energy_between(x, base), one_by_one(difference))
    assert same(every_way(x, base, masked=False), one_by_one(difference))
    difference[(left == right) | (np.isnan(left) & np.isnan(right))] = 0
    assert same(energy(x, base), one_by_one(difference))
    assert same(every_way(x, base, masked=True), one_by_one(difference))
    kept = left[np.isfinite(left)].astype(np.float64)
    assert value_range(x) == (kept.max() - kept.min() if kept.size else 0)
    expected = quiet(np.std, kept) if kept.size else 0.0
    assert same(standard_deviation(x), expected) or standard_deviation(x) == pytest.approx(expected)
    for statistic in (_uniform.value_range, _uniform.standard_deviation):
        found = {statistic(octets(x), DTYPE_IDS[dtype], level) for level in LEVELS}
        assert len(found) == 1 or all(map(math.isnan, found))


def test_a_mask_is_no_difference_and_an_infinity_that_moves_is_one() -> None:
    mask = np.full((3, PIECE), -np.inf, np.float32)
    mask[1] = 1.0
    moved = mask.copy()
    moved[1, :5] = 3.0

    assert energy(moved, mask) == 20
    assert math.isnan(energy_between(moved, mask))
    assert energy(-mask, mask) == math.inf
    assert energy(np.float32([1e30]), np.float32([0])) == math.inf  # whose square is no float32
    assert energy(np.float32([1e30]), double=True) == pytest.approx(1e60)
    assert energy(np.float32([3e38]), np.float32([-3e38])) == math.inf


@pytest.mark.parametrize("dtype", BESIDE, ids=str)
def test_other_dtypes_are_converted(dtype: np.dtype) -> None:
    n = PIECE + 4133
    part, other = (rng(seed).integers(0, 100, n).astype(dtype) for seed in (1, 2))
    if dtype.kind == "c":
        part, other = (x + dtype.type(1j) * x[::-1] for x in (part, other))
        parts = np.float32 if dtype == np.complex64 else np.float64
        left, right = part.view(parts), other.view(parts)
    else:
        squares = np.float64 if dtype.kind in "iub" else np.float32
        left, right = part.astype(squares), other.astype(squares)

    assert energy(part) == one_by_one(left)
    assert energy(part, other) == one_by_one(left - right)
    assert energy(part.reshape(-1, 1), other) == one_by_one(left - right)
    doubles = (left.astype(np.float64), right.astype(np.float64))
    assert energy(part, other, double=True) == one_by_one(np.subtract(*doubles))


@every_dtype
@pytest.mark.parametrize("of", LOSSY, ids=str)
def test_a_base_may_be_of_another_dtype(dtype: np.dtype, of: np.dtype) -> None:
    """As with a residual, which is added to a narrow tensor in a wide one."""
    x, base = (finite(rng(seed).normal(size=2 * PIECE + 5), t) for seed, t in ((0, dtype), (1, of)))
    expected = one_by_one(np.subtract(x, base, dtype=wide(dtype), casting="unsafe"))

    assert energy_between(x, base) == energy(x, base) == expected


@every_dtype
def test_arrays_lie_anywhere_and_may_be_empty(dtype: np.dtype) -> None:
    x = ugly(600, dtype).reshape(20, 30)
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(dtype).reshape(x.shape)
    for lying in (odd, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
        assert energy(lying, lying[::-1]) == energy(x, x[::-1])
        assert (value_range(lying), standard_deviation(lying)) == (
            *(value_range(x), standard_deviation(x)),
        )
    none, scalar = np.empty((0, 3), dtype), np.array(1.5, dtype)
    assert energy(none) == energy_between(none, none) == 0
    assert value_range(none) == standard_deviation(none) == 0
    assert energy(scalar) == 2.25
    assert energy_between(scalar, np.array(0.5, dtype)) == 1
    assert value_range(scalar) == standard_deviation(scalar) == 0


# Of arithmetic that IEEE 754 settles: streams that exist have got their bounds from these.
@pytest.mark.parametrize(
    ("dtype", "between", "of_all", "deviation", "width"),
    [
        (np.float64, "0x1.760a5a2efab3ep+8", "0x1.c897a3165907cp+21",
         "0x1.72e068d344232p+1", "0x1.4127cca55c2e3p+3"),
        (np.float32, "0x1.760a5a0010000p+8", "0x1.c897a33b40000p+21",
         "0x1.72e068d341088p+1", "0x1.4127cd0000000p+3"),
        (np.float16, "0x1.7684310d40000p+8", "0x1.c8979861d0000p+21",
         "0x1.72e0645a8cc41p+1", "0x1.4120000000000p+3"),
    ],
)  # fmt: skip
def test_sums_of_the_day_they_were_made(
    dtype: Any, between: str, of_all: str, deviation: str, width: str
) -> None:
    x = ((np.arange(300_001) * 7919 % 10_007) / 997 - 3).astype(dtype)
    base = (x.astype(np.float64) * 0.99).astype(dtype)

    assert energy_between(x, base) == float.fromhex(between)
    assert energy(x) == float.fromhex(of_all)
    assert standard_deviation(x) == float.fromhex(deviation)
    assert value_range(x) == float.fromhex(width)


def test_bfloat16_is_as_exact_as_its_elements() -> None:
    x, base = (rng(seed).normal(size=200_000).astype(ml_dtypes.bfloat16) for seed in (0, 1))
    exact = np.square(np.subtract(x, base, dtype=np.float32), dtype=np.float64).sum()

    assert energy_between(x, base) == pytest.approx(exact, rel=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 7, 130, 300_000])
def test_bounds_find_the_same_without_codecs(dtype: str, size: int) -> None:
    x = (100 * np.random.default_rng(size).normal(size=size)).astype(dtype)
    if size > 7:
        x[3:5] = np.nan, np.inf

    assert value_range(x) == spread.value_range(x)
    assert standard_deviation(x) == spread.standard_deviation(x)
