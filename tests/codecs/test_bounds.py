from __future__ import annotations

import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from fedsz import ErrorBound
from fedsz.codecs.spread import half_ulp, standard_deviation, value_range
from fedsz.errors import ConfigError

CHUNK = 1 << 17  # elements whose sum for a deviation is one


@pytest.mark.parametrize("make", [ErrorBound.rel, ErrorBound.abs, ErrorBound.std])
@pytest.mark.parametrize("value", [0, -1e-3, math.nan, math.inf])
def test_impossible_bounds(make: type[ErrorBound], value: float) -> None:
    with pytest.raises(ConfigError, match="error bound"):
        make(value)


@pytest.mark.parametrize("given", ["much", "rel:", "pw:0.1", None, [1], "1e-2:rel", ""])
def test_what_is_no_bound(given: object) -> None:
    with pytest.raises(ConfigError, match="error bound"):
        ErrorBound.of(given)


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        (0.01, ErrorBound.rel(0.01)),
        ("1e-2", ErrorBound.rel(0.01)),
        ("rel:1e-2", ErrorBound.rel(0.01)),
        ("abs:3", ErrorBound.abs(3)),
        ("std:0.1", ErrorBound.std(0.1)),
    ],
)
def test_written_bounds(given: float | str, bound: ErrorBound) -> None:
    assert ErrorBound.of(given) == bound
    assert ErrorBound.of(str(bound)) == bound


def test_absolute() -> None:
    x = np.array([-1, 0, 3, np.nan, np.inf], np.float32)

    assert ErrorBound.rel(0.1).absolute(x) == pytest.approx(0.4)
    assert ErrorBound.abs(0.1).absolute(x) == 0.1
    assert ErrorBound.std(2).absolute(x) == pytest.approx(2 * np.std([-1.0, 0, 3]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("n", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_statistics_are_of_all_finite_elements(dtype: type, n: int) -> None:
    x = np.random.default_rng(n).normal(3, 2, n).astype(dtype)
    x[n // 2] = 9.5
    finite = x.astype(np.float64)

    for odd in (None, np.nan, np.inf, -np.inf):
        if odd is not None:
            x[-1] = odd
            finite = x[:-1].astype(np.float64)
        width, deviation = (np.ptp(finite), np.std(finite)) if finite.size else (0, 0)
        for shaped in (x, x.reshape(1, -1), x[::-1]):
            assert value_range(shaped) == width
            assert standard_deviation(shaped) == pytest.approx(deviation, rel=1e-12)


def test_the_standard_deviation_of_what_hardly_varies() -> None:
    x = 1e8 + np.random.default_rng(0).normal(size=10 * CHUNK)

    assert standard_deviation(x) == pytest.approx(float(np.std(x - 1e8)), rel=1e-6)
    assert standard_deviation(np.full(10 * CHUNK, 0.1, np.float32)) < 1e-16


def test_statistics_take_no_copy() -> None:
    x = np.random.default_rng(0).normal(size=100 * CHUNK).astype(np.float32)
    tracemalloc.start()
    try:
        for bound in (ErrorBound.rel(0.1), ErrorBound.std(0.1)):
            bound.absolute(x)
        assert tracemalloc.get_traced_memory()[1] < 4 * 8 * CHUNK
    finally:
        tracemalloc.stop()


def test_range_of_far_ends_does_not_overflow() -> None:
    x = np.array([-3e38, 3e38], np.float32)

    assert ErrorBound.rel(0.1).absolute(x) == pytest.approx(6e37, rel=1e-5)


@pytest.mark.parametrize("x", [[], [2, 2], [np.nan, np.inf], [1.7e308, -1.7e308]])
def test_nothing_may_move(x: list[float]) -> None:
    assert ErrorBound.rel(0.1).absolute(np.array(x)) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [0.0, 1e-7, 1.0, 1.999, 2.0, 1000.0])
def test_half_ulp_is_half_the_step_to_the_next_value(dtype: type, value: float) -> None:
    x = np.array(value, dtype)

    assert half_ulp(float(x), x.dtype) == float(np.spacing(x)) / 2
