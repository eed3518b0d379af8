"""`accuracy`: bounds loosen while the model learns, and tighten when it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.contrib.accuracy import Accuracy, noise_of
from fedsz.control.record import RoundRecord
from tests.policies import decide, factor_of, row


def factor_after(loop: Accuracy, history: Sequence[RoundRecord], tolerance: float) -> float:
    policy = replace(loop, tolerance=tolerance)
    state = policy.init()
    for seen in history:
        state = policy.observe(state, seen)
    return state.factor


# Tightens after a fall of two rounds, and comes back.
GUARD = Accuracy(up=1.5, down=2.0, low=0.5, high=1.0, patience=1_000_000, ease=1.1, confirm=2)

numbers = st.floats(0.0, 1.0)
losses = st.none() | st.floats(0.0, 3.0) | st.sampled_from([math.nan, math.inf])


@given(
    st.lists(st.tuples(numbers, losses), min_size=1, max_size=9),
    numbers,
    losses,
    st.booleans(),
    st.data(),
)
def test_a_worse_round_never_loosens(
    before: list[tuple[float, float | None]],
    accuracy: float | None,
    loss: float | None,
    by_loss: bool,
    data: st.DataObject,
) -> None:
    history = [row(i, None if by_loss else seen[0], seen[1]) for i, seen in enumerate(before)]
    lower = None if by_loss else data.draw(st.floats(0.0, accuracy))
    accuracy, loss = (None, loss or 0.0) if by_loss else (accuracy, loss)
    higher = math.inf if loss is None or not math.isfinite(loss) else loss
    odd = st.just(math.nan) if by_loss else st.just(math.nan) | st.none()
    higher = data.draw(odd | st.floats(higher, math.inf))
    last = len(history)
    for spec in ("accuracy", "accuracy:patience=1,noise=3", "auto", "schedule:last=std:1+accuracy"):
        good = factor_of(decide(spec, [*history, row(last, accuracy, loss)]))
        assert factor_of(decide(spec, [*history, row(last, lower, higher)])) <= good


def test_it_loosens_on_track_and_tightens_behind_and_when_stuck() -> None:
    rising = [row(i, 0.1 * i, 2.0 - 0.2 * i) for i in range(6)]
    loop = Accuracy(up=1.5, down=2.0)
    assert factor_after(loop, rising, 0.5) == pytest.approx(1.5**5)
    behind = row(6, 0.2, 1.8)
    assert factor_after(loop, [*rising, behind], 0.5) == pytest.approx(1.5**5 / 2)
    overfit = row(6, 0.499, 1.8)  # the loss grows, the accuracy is within the tolerance
    assert factor_after(loop, [*rising, overfit], 0.5) == pytest.approx(1.5**5)
    assert factor_after(loop, [*rising, overfit], 0.05) == pytest.approx(1.5**5 / 2)
    for lost in (None, math.nan, math.inf):
        assert factor_after(loop, [*rising, row(6, 0.5, lost)], 0.5) == pytest.approx(1.5**5 / 2)
    stuck = [row(6 + i, 0.5, 1.0) for i in range(7)]
    factors = [factor_after(loop, [*rising, *stuck[:i]], 0.5) / 1.5**5 for i in range(8)]
    assert factors == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25])
    assert factor_after(Accuracy(up=1.5, high=2.0), rising, 0.5) == 2
    assert factor_after(Accuracy(low=0.25), [*rising, *[behind] * 9], 0.5) == 0.25


def test_a_fall_may_have_to_be_confirmed_by_as_many_rounds() -> None:
    rising, fallen = [row(i, 0.1 * i, None) for i in range(6)], [row(6, 0.2, None)] * 3
    swinging = [*rising, *(row(6 + i, 0.2 if i % 2 else 0.5, None) for i in range(9))]
    loop = Accuracy(down=2.0, high=1.0, patience=99, confirm=2)

    assert [factor_after(loop, [*rising, *fallen[:n]], 0.5) for n in range(4)] == [1, 1, 0.5, 0.25]
    assert factor_after(loop, swinging, 0.5) == 1
    assert factor_after(loop, [*rising, row(6, math.nan, None)], 0.5) == 0.5


def test_without_a_loss_it_goes_by_the_accuracy_and_failed_rounds_say_nothing() -> None:
    loop = Accuracy(up=1.5, down=2.0)
    history = [row(0, 0.1, None), row(1, 0.3, None), row(2, 0.5, None)]
    assert factor_after(loop, history, 0.5) == pytest.approx(1.5**2)
    failed = [row(3 + i, 0.5, None, replies=0, clients=[]) for i in range(9)]
    assert factor_after(loop, [*history, *failed], 0.5) == pytest.approx(1.5**2)
    assert factor_after(loop, [], 0.5) == factor_after(loop, history[:1], 0.5) == 1.0


def by_loss(*losses: float) -> list[RoundRecord]:
    """Return a run whose app measures a loss and nothing else."""
    finite = [loss if math.isfinite(loss) else None for loss in losses]
    return [row(i, None, loss, diverged=loss is None) for i, loss in enumerate(finite)]


LEARNING = [2.3, 1.6, 1.2, 1.0, 0.9, 0.84, 0.8, 0.78, 0.76, 0.75]


@pytest.mark.parametrize("jump", [1.0, 7.5e7, math.inf])
@pytest.mark.parametrize("offset", [0, -3])
def test_without_an_accuracy_a_loss_that_rises_is_behind(jump: float, offset: float) -> None:
    losses = [loss + offset for loss in LEARNING]
    jump = jump + offset
    fallen = by_loss(*losses, *[jump] * 9)

    factors = [factor_after(GUARD, fallen[: len(losses) + i], 0.5) for i in range(10)]

    assert factors[:4] == [1, 0.5, 0.5, 0.5]
    # What is no worse than at the start is in the end taken as it is.
    assert factors[4:] == (
        [0.5] * 6 if jump > losses[0] else pytest.approx(0.5 * 1.1 ** np.arange(1, 7))
    )
    assert factor_after(GUARD, by_loss(*losses, jump, losses[-1]), 0.5) == pytest.approx(0.55)
    assert factor_after(GUARD, by_loss(*losses, jump, *[losses[-1] - 0.2] * 9), 0.5) == 1


def test_without_an_accuracy_a_loss_may_move_by_the_tolerance_and_its_noise() -> None:
    steady = by_loss(*LEARNING, *[0.75] * 9, 0.7535)
    assert factor_after(GUARD, steady, 0.5) == 1
    assert factor_after(GUARD, steady, 0.0) == 0.5
    noise = np.random.default_rng(0).normal(0, 0.03, 200)
    noisy = by_loss(*(0.7 + 1.6 * np.exp(-np.arange(200) / 9) + noise).tolist())
    factors = [factor_after(GUARD, noisy[:i], 0.5) for i in range(1, 200)]
    assert np.mean(factors) > 0.8  # a false alarm passes


def test_a_loss_that_is_not_finite_at_first_is_the_metric_all_the_same() -> None:
    assert factor_after(GUARD, by_loss(math.nan, math.nan), 0.5) == 0.5
    assert factor_after(GUARD, by_loss(math.nan, *[1.0 - 0.1 * i for i in range(5)]), 0.5) == 1


def test_noise_is_blind_to_a_steady_rise_and_finds_that_of_a_noisy_one() -> None:
    line = np.arange(8) * 0.3
    estimates = [
        noise_of((line + np.random.default_rng(i).normal(0, 0.1, 8)).tolist()) for i in range(400)
    ]
    assert noise_of(line.tolist()) == pytest.approx(0, abs=1e-12)
    assert np.median(estimates) == pytest.approx(0.1, rel=0.15)
