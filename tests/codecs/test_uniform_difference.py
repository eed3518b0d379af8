"""uniform's differences: what arrays of them would give, without the arrays."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.codecs import _uniform
from fedsz.codecs.spread import standard_deviation
from fedsz.codecs.uniform import DTYPE_IDS, Uniform, compare, matrix_shape
from tests.codecs.uniform_cases import DTYPES, LEVELS, SHAPES, coarse, flat, layer, rng, sums_for
from tests.strategies import bits_of, finite, weights

WIDE = [np.dtype(np.float32), np.dtype(np.float64)]
every_dtype = pytest.mark.parametrize("dtype", WIDE, ids=str)
WAYS = [*((level, 1) for level in LEVELS), ("", 7)]  # level and threads


def pair(name: str, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """An array, and one that it is near to; neither is finite throughout."""
    x = layer(name, dtype)
    base = np.where(np.isfinite(x), x, 1) + 0.1 * rng(1).laplace(size=x.shape)
    base = finite(base, dtype)
    base.reshape(-1)[[7, 1100]] = np.inf, np.nan
    return x, base


def minus(x: np.ndarray, base: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.subtract(x, base)


def plus(base: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.add(base, y)


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are of equal bits, but for those of NaNs."""
    return bool(np.all((bits_of(a) == bits_of(b)) | (np.isnan(a) & np.isnan(b))))


@pytest.mark.sampled(72)
@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        *product(WIDE, [("base",), ("residual",), ("base", "residual")]),
        *((dtype, ()) for dtype in DTYPES),
    ],
    ids=str,
)
@pytest.mark.parametrize("effort", [0, 1, 5, 9])
@pytest.mark.parametrize("name", SHAPES)
def test_payloads_and_what_they_lack_are_those_of_an_array_of_differences(
    dtype: np.dtype, given: tuple[str, ...], effort: int, name: str
) -> None:
    """Whatever the instruction set and the threads; and so are the sums that elements add to."""
    x, base = pair(name, dtype)
    residual = finite(0.05 * rng(2).laplace(size=x.shape), dtype)
    residual.reshape(-1)[[9, 1200]] = -np.inf, np.nan
    how = DTYPE_IDS[dtype], *matrix_shape(x.shape)
    onto = flat(base) if "base" in given else None
    for bound, weight in (0.0, 1.0), (1e-4, 1.0), (0.03, 0.9), (coarse(x), -12.0):
        meant = plus(x, residual * dtype.type(weight)) if "residual" in given else x
        coded = meant if onto is None else minus(meant, base)
        encoded = Uniform(effort).encode_measured(coded, bound)
        y = Uniform().decode(encoded.payload, x.shape, dtype)
        arrives, start = y if onto is None else plus(base, y), sums_for(x)
        added = plus(start, y.astype(start.dtype) * start.dtype.type(weight))
        energies = set()
        for level, threads in WAYS:
            left, back, sums = np.full_like(x, 7), np.empty_like(x), start.copy()
            payload, error, energy = _uniform.encode(
                *(flat(x), *how, bound, effort, threads, level),
                base=onto,
                residual=flat(residual) if "residual" in given else None,
                weight=weight,
                left=flat(left) if dtype in WIDE else None,
            )
            assert (payload, error) == encoded[:2]
            assert equal(left, minus(meant, arrives)) or dtype not in WIDE
            _uniform.decode(payload, how[0], flat(back), threads, level, onto)
            assert equal(back, arrives)
            if not given:
                _uniform.accumulate(payload, how[0], weight, flat(sums), threads, level)
                assert np.array_equal(bits_of(sums), bits_of(added))
            energies.add(np.float64(energy).tobytes())
        assert len(energies) == 1


# Comparing


class Seen(NamedTuple):
    """What `_uniform.compare` returns."""

    low: float
    high: float
    least: float
    greatest: float
    deviation: float
    step: float
    target: float


def compared(
    x: np.ndarray,
    base: np.ndarray,
    residual: np.ndarray | None = None,
    weight: float = 1.0,
    *,
    energies: bool = False,
) -> Seen:
    """What all instruction sets and numbers of threads find, as bits; libfedsz has residuals."""
    found = {
        np.array(
            _uniform.compare(
                *(flat(x), flat(base), DTYPE_IDS[x.dtype], True, energies, threads, level),
                None if residual is None else flat(residual),
                weight,
            )
        ).tobytes()
        for level, threads in WAYS
    }
    assert len(found) == 1
    return Seen(*np.frombuffer(found.pop()).tolist())


@given(data=st.data(), dtype=st.sampled_from(WIDE), scale=st.sampled_from([0.0, 1e-6, 0.1, 3.0]))
def test_extremes_and_deviation(data: st.DataObject, dtype: np.dtype, scale: float) -> None:
    x = data.draw(weights(dtype).filter(np.size))
    with np.errstate(over="ignore", under="ignore"):
        base = finite(x * (1 + scale * rng().normal(size=x.shape)), dtype)
        difference = np.subtract(x, base)

    low, high, least, greatest, deviation, *none = compared(x, base)

    assert (low, high) == (x.min(), x.max())
    assert (least, greatest) == (difference.min(), difference.max())
    expected = standard_deviation(difference)
    if not np.isfinite(difference).all():  # its deviation is not finite either
        assert not math.isfinite(deviation)
    elif 1e-140 < expected < 1e140:  # squares are normal numbers
        assert math.isclose(deviation, expected, rel_tol=1e-9)
    assert none == [0, 0]
    assert compare(x, base) == (low, high, least, greatest, 0)
    if math.isfinite(deviation):
        assert compare(x, base, deviation=True) == (low, high, least, greatest, deviation)


@every_dtype
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 4095, 4097, 65_537, 300_000])
def test_a_deviation_far_from_zero(dtype: np.dtype, n: int) -> None:
    base = rng(n).normal(size=n).astype(dtype)
    for middle, width in ((1e4, 0.1), (1, 1e-4), (-3e5, 10), (0, 1e-30)):
        x = (middle + width * rng(n + 1).normal(size=n)).astype(dtype)
        for start in (np.zeros_like(x), base):
            difference = x - start
            exact = difference.astype(np.longdouble).std()
            deviation = compared(x, start).deviation
            assert math.isclose(deviation, exact, rel_tol=1e-12)


@every_dtype
def test_what_moves_as_one_does_not_deviate(dtype: np.dtype) -> None:
    base = rng().integers(-1000, 1000, 100_000).astype(dtype)

    assert compared(base + dtype.type(3), base) == (base.min() + 3, base.max() + 3, 3, 3, 0, 0, 0)


@every_dtype
@pytest.mark.parametrize("ugly", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 70_000, 99_999])
def test_what_is_not_finite_is_seen(dtype: np.dtype, ugly: float, at: int) -> None:
    x = rng().normal(size=100_000).astype(dtype)
    odd = x.copy()
    odd[at] = ugly

    for sides in ((odd, x), (x, odd), (odd, odd)):
        seen = compared(*sides, energies=True)
        assert not (math.isfinite(seen.least) and math.isfinite(seen.greatest))
        assert not math.isfinite(seen.step)


@every_dtype
@pytest.mark.parametrize("n", [1, 33, 4097, 300_000])
def test_a_residual_is_looked_at_as_part_of_its_array(dtype: np.dtype, n: int) -> None:
    x, base, r = (rng(seed).normal(size=n).astype(dtype) for seed in range(3))
    meant = x + r * dtype.type(0.3)

    seen = compared(x, base, r, 0.3, energies=True)

    assert seen[:4] == compared(meant, base)[:4]
    assert seen.deviation == compared(x, base).deviation
    for energy, side in ((seen.step, x), (seen.target, meant)):
        exact = float(np.square(side.astype(np.float64) - base).sum())
        assert math.isclose(energy, exact, rel_tol=1e-5 if dtype == np.float32 else 1e-12)


def test_there_are_no_extremes_of_nothing() -> None:
    empty = np.zeros(0, np.float32)

    found = _uniform.compare(flat(empty), flat(empty), 0, True, True, 1, "")

    assert all(map(math.isnan, found[:4]))
    assert found[4:] == (0, 0, 0)
