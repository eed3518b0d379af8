"""What single methods choose and keep: the largest elements, factors, momentum, errors, a k."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.methods import Shared, TensorSpec, parse, texts_sent
from fedsz.methods.top_k import CHUNK, SAMPLE, largest
from tests import test_methods_laws as laws
from tests.strategies import weights

SPEC = TensorSpec((60, 40), name="fc.weight")


def matrix(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SPEC.shape).astype(np.float32)


def coded(text: str, x: np.ndarray, state: Any = None, round_: int = 1) -> tuple[np.ndarray, Any]:
    return laws.coded(parse(text), x, Shared(SPEC, 1, round_), state)[1:]


def test_factors_that_are_kept_come_near_the_best_of_their_rank() -> None:
    x, state, losses = matrix(1), None, []
    for round_ in range(60):
        decoded, state = coded("powersgd:rank=4", x, state, round_)
        losses.append(float(np.square(decoded - x).sum()))
    best = np.square(np.linalg.svd(x, compute_uv=False)[4:]).sum()

    assert losses[0] > 1.05 * best
    assert losses[-1] < 1.01 * best


def test_what_has_the_rank_comes_back_in_the_first_round() -> None:
    x = matrix(2)[:, :3] @ matrix(3)[:3]

    decoded, _ = coded("powersgd:rank=4", x)

    assert np.allclose(decoded, x, atol=1e-4)


def test_momentum_ends_where_it_is_sent_and_goes_on_elsewhere() -> None:
    x = matrix(4)

    decoded, state = coded("dgc:momentum=0.5>topk:k=10%", x)

    sent = decoded != 0
    assert 0 < sent.sum() < sent.size
    assert not state["momentum"][sent].any()
    assert not state["residual"][sent].any()
    assert np.array_equal(state["momentum"][~sent], x[~sent])

    _, state = coded("dgc:momentum=0.5>topk:k=10%", np.zeros_like(x), state, 2)
    waits = ~sent & (state["momentum"] != 0)
    assert np.allclose(state["residual"][waits], 1.5 * x[waits])


def test_large_steps_are_clipped_before_they_become_momentum() -> None:
    x = matrix(5)

    decoded, _ = coded("dgc:clip=2>topk:k=100%", x)

    assert np.allclose(decoded, 2 * x / np.linalg.norm(x), atol=1e-6)


def test_a_warm_up_keeps_fewer_elements_in_each_round() -> None:
    """Of 10,000 those shares that deep gradient compression names, 25 % to 0.1 %."""
    x = np.random.default_rng(7).laplace(size=10_000).astype(np.float32)
    spec, transform = TensorSpec(x.shape), parse("topk:k=0.1%,warmup=4")

    kept = [
        transform.encode(x, {}, Shared(spec, round=r)).planes["values"].size for r in range(1, 8)
    ]

    assert kept == [2512, 631, 159, 40, 10, 10, 10]


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_extrapolated_errors_are_those_of_the_formula_and_none_is_lost(decay: float) -> None:
    text, state = f"ecx:decay={decay},smooth=0.3>centroids:bits=3", None
    sent = given = owed = last = before = np.zeros(SPEC.shape, np.float32)

    for round_ in range(1, 30):
        x = matrix(round_)
        decoded, state = coded(text, x, state, round_)
        owed = 0.7 * owed + 0.3 * (2 * last - before)
        assert np.allclose(state["owed"], owed, atol=1e-4)
        last, before = x + decay * owed - decoded, last
        assert np.allclose(state["residual"], last, atol=1e-4)
        sent, given = sent + decoded, given + x

    if decay < 1:
        return
    for round_ in range(30, 60):  # what is owed arrives when nothing is added
        decoded, state = coded(text, np.zeros_like(sent), state, round_)
        sent = sent + decoded
    assert np.abs(sent - given).max() < 1e-3 * np.abs(given).max()


def kept(text: str, factors: list[float]) -> list[int]:
    """Return how many elements are sent of an update that is multiplied by each factor."""
    transform, counts, x = parse(text), [], matrix(1)
    state = transform.init(SPEC)
    for round_, factor in enumerate(factors, 1):
        shared = Shared(SPEC, 1, round_)
        parts, state, _ = transform.encode(np.float32(factor) * x, state, shared)
        counts.append(parts["values"].size)
    return counts


def test_accordion_keeps_more_where_the_norm_changes() -> None:
    few, many = 24, 240
    assert kept("adaptive>topk:k=1%", [1, 1, 1.4, 0.4, 0.4, 0, 1]) == [
        many, few, few, many, few, many, many,
    ]  # fmt: skip
    assert kept("adaptive:times=2,threshold=0.1>topk:k=24", [1, 1, 1.2]) == [48, 24, 48]


def test_an_adaptive_k_follows_the_variance_within_its_limits() -> None:
    assert kept("adaptive:by=variance,times=4>topk:k=1%", [1, 1, 1.1, 10, 0.01]) == [
        24, 24, 29, 96, 6,
    ]  # fmt: skip


def test_a_receiver_needs_no_word_of_what_was_adapted() -> None:
    text = "adaptive>feedback>topk:k=1%>ternary"
    assert texts_sent(parse(text)) == {"topk>ternary"}


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
def test_so_are_those_whose_threshold_is_guessed(kind: str, k: int) -> None:
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
