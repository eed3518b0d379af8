"""The native passes of tokens do what numpy does, to the bit, and refuse what they cannot do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsz.codecs import _ring
from fedsz.privacy.quantizer import fed_back
from tests.compressors.token_oracle import dequantised, quantised

NONE = np.zeros(0, np.int64)
PLAIN = np.zeros(0)


def drawn_of(rng: np.random.Generator, size: int, *, on: bool) -> np.ndarray:
    return rng.uniform(-0.5, 0.5, size) if on else PLAIN


@given(
    st.integers(0, 2000),
    st.sampled_from([np.uint8, np.uint16, np.uint32]),
    st.sampled_from([0.0, 1 / 1024, 0.37, 1.0]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1 << 32),
)
@settings(max_examples=60, deadline=None)
def test_tokens_are_those_of_numpy(
    size: int, dtype: type, part: float, some: bool, dithered: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    most = int(rng.integers(1, np.iinfo(dtype).max // 2, endpoint=True))
    y = (rng.normal(size=size) * 10.0 ** rng.integers(-40, 30, size)).astype(np.float32)
    y[rng.random(size) < 0.1] *= 0.0
    where = np.flatnonzero(rng.random(size) < 0.5) if some else np.arange(size)
    steps = rng.uniform(1e-9, 10, where.size) * 10.0 ** rng.integers(-20, 10, where.size)
    drawn = drawn_of(rng, where.size, on=dithered)
    tokens, left = np.full(where.size, 77, dtype), y.copy()

    energy, clipped = _ring.quantise(
        left, where if some else NONE, steps, drawn, part, most, tokens
    )

    said = drawn if dithered else 0.0
    wanted, kept, squares, far = quantised(y, where, steps, said, part, most)
    np.testing.assert_array_equal(tokens, wanted)
    np.testing.assert_array_equal(left.view(np.uint32), kept.view(np.uint32))
    assert clipped == far
    assert energy == pytest.approx(squares, rel=1e-12)
    sums = rng.integers(0, np.iinfo(dtype).max, where.size, dtype, endpoint=True)
    found, shift = y.copy(), 3 * most
    with np.errstate(over="ignore"):
        expected = dequantised(y, sums, where, steps, said, shift, 1.7)
    largest = _ring.dequantise(sums, where if some else NONE, steps, drawn, shift, 1.7, found)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    assert largest == int(sums.max(initial=0))


@given(st.integers(0, 300), st.booleans(), st.integers(0, 1 << 32))
def test_steps_are_those_of_numpy(size: int, fed: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, start, kept = rng.normal(0, 1, (3, size)).astype(np.float32)
    y = np.empty(size, np.float32)

    assert _ring.add_step(x, start, kept if fed else kept[:0], y)

    np.testing.assert_array_equal(y, x - start + kept if fed else x - start)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_steps_that_are_not_finite(bad: float) -> None:
    x, start = np.zeros((2, 100), np.float32)
    x[70], start[70] = bad, -np.float32(3e38)

    assert not _ring.add_step(x, start, x[:0], np.empty(100, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_was_kept_is_forgotten_where_its_sum_is_not_finite(dtype: type) -> None:
    x, start = np.full(3, 2e38, dtype), np.zeros(3, dtype)
    kept = np.array([0, 3e38, 0], np.float32)

    np.testing.assert_array_equal(fed_back("w", x, start, kept), x.astype(np.float32))


def test_coefficients_that_are_no_numbers_are_told_by_their_energy() -> None:
    y, tokens = np.array([np.nan, 1, 0], np.float32), np.zeros(3, np.uint8)

    energy, clipped = _ring.quantise(y, NONE, np.ones(3), PLAIN, 1.0, 5, tokens)

    assert np.isnan(energy)
    assert clipped == 1
    np.testing.assert_array_equal(tokens, [0, 6, 5])


def test_arrays_that_do_not_fit_are_refused() -> None:
    y, steps, tokens = np.zeros(4, np.float32), np.ones(2), np.zeros(2, np.uint8)
    where = np.array([0, 3])
    for wrong in (np.array([0, 4]), np.array([-1, 0])):
        with pytest.raises(IndexError):
            _ring.quantise(y, wrong, steps, PLAIN, 1.0, 5, tokens)
        with pytest.raises(IndexError):
            _ring.dequantise(tokens, wrong, steps, PLAIN, 0.0, 1.0, y)
    for more in (
        (where[:1], steps, PLAIN, 1.0, 5, tokens),
        (NONE, steps, PLAIN, 1.0, 5, tokens),
        (where, steps[:1], PLAIN, 1.0, 5, tokens),
        (where, steps, steps[:1], 1.0, 5, tokens),
        (where, steps, PLAIN, 1.0, 128, tokens),
    ):
        with pytest.raises(ValueError, match=r"there must be|do not fit"):
            _ring.quantise(y, *more)
    with pytest.raises(ValueError, match="as many elements"):
        _ring.add_step(y, y[:3], y[:0], y)
    with pytest.raises(TypeError):
        _ring.quantise(y.astype(np.float64), where, steps, PLAIN, 1.0, 5, tokens)
