"""`accuracy`: bounds loosen while the model learns, and tighten when it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.contrib.accuracy import Accuracy
from fedsz.control.auto import MEMORY, MOST_GROWTH
from fedsz.control.record import RoundRecord
from tests.policies import decide, factor_of, row


def factor_after(loop: Accuracy, history: Sequence[RoundRecord], tolerance: float) -> float:
    policy = replace(loop, tolerance=tolerance)
    state = policy.init()
    for seen in history:
        state = policy.observe(state, seen)
    return state.factor


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
    for spec in ("accuracy", "accuracy:patience=1", "auto", "schedule:last=std:1+accuracy"):
        good = factor_of(decide(spec, [*history, row(last, accuracy, loss)]))
        worse = factor_of(decide(spec, [*history, row(last, lower, higher)]))
        # `auto` also loosens where `MEMORY` scores gain little, as they do if the last is bad.
        assert worse <= good * (MOST_GROWTH if spec == "auto" and last >= MEMORY - 1 else 1)


RISING = [row(i, 0.1 * i, None) for i in range(6)]


def test_it_loosens_on_track_and_tightens_behind_and_when_stuck() -> None:
    loop = Accuracy(up=1.5, down=2.0)
    assert factor_after(loop, RISING, 0.5) == pytest.approx(1.5**5)
    fallen = [row(6, 0.2, None)] * 3
    assert [factor_after(loop, [*RISING, *fallen[:n]], 0.5) / 1.5**5 for n in range(4)] == (
        pytest.approx([1, 1, 0.5, 0.25])
    )
    swinging = [*RISING, *(row(6 + i, 0.2 if i % 2 else 0.5, None) for i in range(9))]
    assert factor_after(replace(loop, patience=99), swinging, 0.5) == pytest.approx(1.5**5)
    assert factor_after(loop, [*RISING, row(6, math.nan, None)], 0.5) == pytest.approx(1.5**5 / 2)
    stuck = [row(6 + i, 0.499, None) for i in range(7)]
    factors = [factor_after(loop, [*RISING, *stuck[:i]], 0.5) / 1.5**5 for i in range(8)]
    assert factors == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25])
    assert factor_after(Accuracy(up=1.5, high=2.0), RISING, 0.5) == 2
    assert factor_after(Accuracy(low=0.25), [*RISING, *fallen * 3], 0.5) == 0.25


def test_a_loss_is_the_score_where_there_is_no_accuracy() -> None:
    loop = Accuracy(up=1.5, down=2.0)
    falling = [row(i, None, 2.0 * 0.8**i) for i in range(6)]
    assert factor_after(loop, falling, 0.5) == pytest.approx(1.5**5)
    assert factor_after(loop, [*falling, *[row(6, None, 1.5)] * 2], 0.5) == pytest.approx(
        1.5**5 / 2
    )
    diverged = row(6, None, None, diverged=True)
    assert factor_after(loop, [*falling, diverged], 0.5) == pytest.approx(1.5**5 / 2)


def test_rounds_without_replies_or_a_measurement_say_nothing() -> None:
    loop = Accuracy(up=1.5, down=2.0)
    failed = [row(6 + i, 0.5, None, replies=0, clients=[]) for i in range(9)]
    silent = [row(6 + i, None, None) for i in range(9)]
    for history in (failed, silent):
        assert factor_after(loop, [*RISING, *history], 0.5) == pytest.approx(1.5**5)
    assert factor_after(loop, [], 0.5) == factor_after(loop, RISING[:1], 0.5) == 1.0


def test_a_score_may_fall_by_its_noise() -> None:
    loop, factors = Accuracy(high=1.0, patience=1_000), []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0, 0.03, 60)
        scores = (0.7 - 0.6 * np.exp(-np.arange(60) / 9) + noise).tolist()
        factors.append(factor_after(loop, [row(i, x, None) for i, x in enumerate(scores)], 0.5))

    assert np.median(factors) == 1
