"""`accuracy`: bounds loosen while the model learns, and tighten when it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.control.accuracy import Accuracy, noise_of
from fedsz.control.record import RoundRecord
from tests.policies import factor_of, policy, row


def factor_after(loop: Accuracy, history: Sequence[RoundRecord], tolerance: float) -> float:
    progress = loop.begin(tolerance)
    for seen in history:
        progress.observe(seen)
    return progress.factor


numbers = st.floats(0.0, 1.0)
losses = st.none() | st.floats(0.0, 3.0) | st.sampled_from([math.nan, math.inf])


@given(st.lists(st.tuples(numbers, losses), min_size=1, max_size=9), numbers, losses, st.data())
def test_a_worse_round_never_loosens(
    before: list[tuple[float, float | None]],
    accuracy: float,
    loss: float | None,
    data: st.DataObject,
) -> None:
    history = [row(i, *seen) for i, seen in enumerate(before)]
    lower = data.draw(st.floats(0.0, accuracy))
    higher = math.inf if loss is None or not math.isfinite(loss) else loss
    higher = data.draw(st.just(math.nan) | st.none() | st.floats(higher, math.inf))
    last = len(history)
    for spec in ("accuracy", "accuracy:patience=1,noise=3", "auto", "schedule:last=std:1+accuracy"):
        chosen = policy(spec)
        good = factor_of(chosen.decide([*history, row(last, accuracy, loss)]))
        bad = factor_of(chosen.decide([*history, row(last, lower, higher)]))
        assert bad <= good


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


def test_without_a_loss_it_goes_by_the_accuracy_and_failed_rounds_say_nothing() -> None:
    loop = Accuracy(up=1.5, down=2.0)
    history = [row(0, 0.1, None), row(1, 0.3, None), row(2, 0.5, None)]
    assert factor_after(loop, history, 0.5) == pytest.approx(1.5**2)
    failed = [row(3 + i, 0.5, None, replies=0, clients=[]) for i in range(9)]
    assert factor_after(loop, [*history, *failed], 0.5) == pytest.approx(1.5**2)
    assert factor_after(loop, [], 0.5) == factor_after(loop, history[:1], 0.5) == 1.0


def test_its_limits_hold() -> None:
    up = [row(i, i / 40, 3.0 - i / 20) for i in range(40)]
    down = [row(i, 0.5 - i / 100, 1.0 + i) for i in range(40)]
    loop = Accuracy(low=0.25, high=4.0)
    assert factor_after(loop, up, 0.5) == 4.0
    assert factor_after(loop, down, 0.5) == 0.25


def test_noise_is_blind_to_a_steady_rise_and_finds_that_of_a_noisy_one() -> None:
    line = np.arange(8) * 0.3
    estimates = [
        noise_of((line + np.random.default_rng(i).normal(0, 0.1, 8)).tolist()) for i in range(400)
    ]
    assert noise_of(line.tolist()) == pytest.approx(0, abs=1e-12)
    assert np.median(estimates) == pytest.approx(0.1, rel=0.15)
