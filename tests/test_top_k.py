"""The largest elements, of every kind of array, are those that sorting finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.methods.top_k import CHUNK, SAMPLE, largest
from tests.strategies import weights


def by_sorting(x: np.ndarray, k: int) -> np.ndarray:
    order = np.lexsort((np.arange(x.size), -np.abs(x)))  # of equal ones, the first
    return np.sort(order[:k])


@given(x=weights(), share=st.floats(0, 1))
def test_small_arrays(x: np.ndarray, share: float) -> None:
    flat = x.reshape(-1)
    k = min(flat.size, 1 + int(share * flat.size))

    assert np.array_equal(largest(flat, k), by_sorting(flat, k))


@pytest.mark.parametrize("kind", ["laplace", "few values", "sorted", "periodic", "zeros"])
@pytest.mark.parametrize("k", [1, 700, 50_000])
def test_arrays_whose_threshold_is_guessed(kind: str, k: int) -> None:
    rng = np.random.default_rng(1)
    size = 4 * SAMPLE + CHUNK + 7
    x = {
        "laplace": rng.laplace(size=size),
        "few values": rng.integers(-3, 4, size),
        "sorted": np.sort(rng.normal(size=size)),
        "periodic": np.where(np.arange(size) % (size // SAMPLE), 0.0, rng.normal(size=size)),
        "zeros": np.zeros(size),
    }[kind].astype(np.float32)

    assert np.array_equal(largest(x, k), by_sorting(x, k))
