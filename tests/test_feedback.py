"""Error feedback: what is left out is what is missing, to the bit, and arrives in the end."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.arrays import Layout, wide
from fedsz.codecs import CODECS
from fedsz.spread import half_ulp
from fedsz.update.error_feedback import ErrorFeedback
from fedsz.update.reference import Reference
from tests.strategies import finite, seeds

LOSSY = [codec for codec in CODECS if codec.lossy and codec.missing() is None]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def model(rng: np.random.Generator, dtype: Any = np.float32, scale: float = 1.0) -> dict[str, Any]:
    return {
        "fc.weight": finite(scale * rng.laplace(size=(40, 60)), dtype),
        "fc.bias": finite(scale * rng.normal(size=40), dtype),
        "steps": np.array(3),
    }


def sent(x: dict[str, Any], base: dict[str, Any], bound: Any, **options: Any) -> dict[str, Any]:
    """What a receiver makes of what a sender with a residual sends."""
    blob = fedsz.compress(x, bound, reference=base, **options)
    return fedsz.decompress(blob, reference=base, as_numpy=True)


@pytest.mark.parametrize("codec", LOSSY, ids=lambda codec: codec.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_the_residual_is_what_was_meant_less_what_arrives(codec: Any, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    base, step = model(rng, dtype), model(rng, dtype, 0.01)
    state = {k: (x + step[k]).astype(x.dtype) for k, x in base.items()}
    before = {"fc.weight": rng.normal(0, 0.01, (40, 60)).astype(wide(np.dtype(dtype)))}

    meant = ErrorFeedback(state, before)
    arrived = sent(dict(meant), base, "std:2", codec=codec)
    left = meant.left_out(arrived)

    exact = state["fc.weight"].astype(np.float64) + before["fc.weight"].astype(np.float64)
    missing = exact - arrived["fc.weight"].astype(np.float64)
    # But for the rounding of a sum and of a difference, and of the residual in its own dtype.
    room = 4 * float(ml_dtypes.finfo(wide(np.dtype(dtype))).eps) * np.abs(exact).max()
    room += half_ulp(np.abs(missing).max(), np.dtype(dtype))
    assert np.abs(left["fc.weight"].astype(np.float64) - missing).max() <= room
    assert set(left) == {"fc.weight"}  # the rest arrived exactly


@given(
    dtype=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]),
    bound=st.sampled_from(["std:0.5", "std:3", 1e-3]),
    seed=seeds,
)
def test_a_sum_over_rounds_arrives_but_for_its_residual_and_what_rounding_took(
    dtype: Any, bound: Any, seed: int
) -> None:
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    base, residual = model(rng, dtype, 0.05), dict[str, Any]()
    owed, rounded = np.zeros((40, 60)), 0.0
    for _ in range(8):
        step = rng.laplace(0, 1e-3, (40, 60))
        state = {**base, "fc.weight": (base["fc.weight"] + step).astype(kind)}
        meant = ErrorFeedback(state, residual)
        arrived = sent(meant, base, bound)
        residual = meant.left_out(arrived)
        owed += state["fc.weight"].astype(np.float64) - arrived["fc.weight"].astype(np.float64)
        left = residual.get("fc.weight", np.zeros((40, 60), kind))
        assert left.dtype == kind
        # A sum and a difference in float32, and the residual as it is kept.
        largest = max(float(np.abs(x.astype(np.float64)).max()) for x in dict(meant).values())
        rounded += half_ulp(float(np.abs(left.astype(np.float64)).max()), kind)
        rounded += 2 * half_ulp(2 * largest, np.dtype(np.float32))
        assert np.abs(owed - left.astype(np.float64)).max() <= rounded


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda x: np.dtype(x).name)
def test_a_residual_of_an_earlier_release_is_taken(dtype: Any) -> None:
    state = {"a.weight": np.full(5, 2, dtype)}

    meant = ErrorFeedback(state, {"a.weight": np.full(5, 0.5, np.float32)})

    np.testing.assert_array_equal(meant["a.weight"], np.full(5, 2.5, dtype))


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_residual_decays_with_its_age(decay: float, age: int) -> None:
    state = {"a.weight": np.zeros(5, np.float32)}
    residual = {"a.weight": np.ones(5, np.float32)}

    meant = ErrorFeedback(state, residual, decay=decay, age=age)

    np.testing.assert_allclose(meant["a.weight"], decay**age, rtol=1e-6, atol=1e-30)


def test_what_does_not_fit_is_left_alone() -> None:
    state = {"a.weight": np.ones((2, 3), np.float32), "n": np.array(4), "h": np.ones(2, np.float16)}
    residual = {
        "a.weight": np.ones((3, 2), np.float32),  # another shape
        "n": np.array(1.0),  # an integer has no residual
        "h": np.ones(2, np.float64),  # another dtype
        "gone.weight": np.ones(9, np.float32),
    }

    meant = ErrorFeedback(state, residual)

    assert list(meant) == list(state)
    assert all(meant[name] is state[name] for name in state)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinities_leave_no_residual(bad: float) -> None:
    base = {"a.weight": np.zeros((40, 60), np.float32), "b.weight": np.zeros((40, 60), np.float32)}
    rng = np.random.default_rng(0)
    state = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in base.items()}
    state["a.weight"][3, 4] = bad

    meant = ErrorFeedback(state, {})
    left = meant.left_out(sent(state, base, "std:2"))

    assert set(left) == {"b.weight"}


def test_a_reference_is_compared_without_any_array() -> None:
    state = {"a.weight": np.ones((2, 3), np.float32)}
    fits, other = Layout.of(state), Layout.of({"a.weight": np.ones((2, 3), np.float16)})

    assert Reference(state).fits(fits)
    assert not Reference(state).fits(other)
    assert not Reference({}).fits(fits)
