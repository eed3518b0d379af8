"""The elements that sparsifiers choose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.methods import Shared, TensorSpec, parse
from fedsz.methods.top_k import largest
from tests.strategies import weights


def test_a_warm_up_keeps_fewer_elements_in_each_round() -> None:
    """Of 10,000 those shares that deep gradient compression names, 25 % to 0.1 %."""
    x = np.random.default_rng(7).laplace(size=10_000).astype(np.float32)
    spec, transform = TensorSpec(x.shape), parse("topk:k=0.1%,warmup=4")

    coded = (transform.encode(x, {}, Shared(spec, round=r))[0] for r in range(1, 8))
    kept = [symbols["values"].size for (symbols,) in coded]

    assert kept == [2512, 631, 159, 40, 10, 10, 10]


def by_sorting(x: np.ndarray, k: int) -> np.ndarray:
    order = np.lexsort((np.arange(x.size), -np.abs(x)))  # of equal ones, the first
    return np.sort(order[:k])


@given(x=weights(), share=st.floats(0, 1))
def test_the_largest_elements_are_those_that_sorting_finds(x: np.ndarray, share: float) -> None:
    flat = x.reshape(-1)
    k = min(flat.size, 1 + int(share * flat.size))

    assert np.array_equal(largest(flat, k), by_sorting(flat, k))


@pytest.mark.parametrize("kind", ["laplace", "few values", "sorted", "periodic", "zeros"])
@pytest.mark.parametrize("k", [1, 700, 50_000])
def test_so_are_those_of_a_large_array(kind: str, k: int) -> None:
    rng = np.random.default_rng(1)
    size = 140_000
    x = {
        "laplace": rng.laplace(size=size),
        "few values": rng.integers(-3, 4, size),
        "sorted": np.sort(rng.normal(size=size)),
        "periodic": np.where(np.arange(size) % 8, 0.0, rng.normal(size=size)),
        "zeros": np.zeros(size),
    }[kind].astype(np.float32)

    assert np.array_equal(largest(x, k), by_sorting(x, k))
