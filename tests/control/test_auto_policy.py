"""`auto`: bounds from the tolerance and the round number, and two guards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.bounds import ErrorBound
from fedsz.control import auto
from fedsz.control.auto import MEMORY, Scores, share_of_steps
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.settings import Settings
from tests.policies import client, decide, row

K = 1.4  # steps, at the tolerance that is the default
FIRST = K / 3
UNLEARNED = FIRST / 2


def up(decision: Decision) -> float:
    bound = ErrorBound.of(decision.config.error_bound)
    assert bound.kind == "step"
    return bound.value


def down(decision: Decision) -> float:
    bound = decision.config.downlink_bound
    assert bound is not None
    assert bound.kind == "step"
    return bound.value


def learning(rounds: int) -> list[RoundRecord]:
    """Return the history of a run that learns much in its first round, and then little."""
    return [row(0, 0.1, 2.3), *(row(i, 0.3 + 1e-5 * i, 2 / (i + 1)) for i in range(1, rounds + 1))]


def unmeasured(rounds: int) -> list[RoundRecord]:
    return [row(i, None, None) for i in range(rounds + 1)]


def of_accuracies(*accuracies: float) -> list[RoundRecord]:
    """Return the history of a run with these accuracies, from round 0 on."""
    return [row(i, value, None) for i, value in enumerate(accuracies)]


def of_losses(history: list[RoundRecord]) -> list[RoundRecord]:
    """Return it for an app that measures a loss alone, which falls as the accuracy rises."""
    return [
        msgspec.structs.replace(o, accuracy=None, loss=math.exp(-o.accuracy))
        for o in history
        if o.accuracy is not None
    ]


@pytest.mark.parametrize(
    ("tolerance", "steps"), [(0, 0.5), (0.25, 0.95), (0.5, 1.4), (1, 2.3), (2, 4.1), (50, 4.1)]
)
def test_a_tolerance_says_how_many_steps_a_bound_has(tolerance: float, steps: float) -> None:
    decided = decide("auto", learning(MEMORY - 2), tolerance=tolerance)

    assert up(decided) == pytest.approx(steps)
    assert down(decided) == pytest.approx(steps)


def test_bounds_follow_the_formula() -> None:
    for number in range(1, 40):
        share = min(1, 1 / 3 + 2 / 3 * (number - 1) / 5) * (1 if number <= MEMORY else 2)
        decided = decide("auto", learning(number - 1))
        assert up(decided) == pytest.approx(K * share, rel=1e-3)
        assert down(decided) == up(decided)


def test_nothing_but_codecs_and_factors_is_left_of_the_options() -> None:
    base = Settings(
        codec="szx", lossless="zstd", update="weights", threshold=9, rule="ndim", factors={"a": 2}
    )
    config = decide("auto", base=base).config

    assert (config.update, config.threshold, config.rule) == ("delta+ef", 0, "shape")
    assert (config.codec, config.lossless, config.factors) == ("szx", "zstd", {"a": 2})


def test_bounds_do_not_grow_if_nothing_is_measured() -> None:
    for number in range(1, 40):
        assert up(decide("auto", unmeasured(number - 1))) == min(
            up(decide("auto", learning(number - 1))), K
        )


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 9), st.booleans()), max_size=20))
def test_private_runs_go_by_the_round_number_alone(
    measured: list[tuple[float, float, bool]],
) -> None:
    history = [
        row(i, accuracy, loss, diverged=diverged, clients=[client(str(i))])
        for i, (accuracy, loss, diverged) in enumerate(measured)
    ]

    decided = decide("auto", history, private=True)

    assert decided == decide("auto", unmeasured(len(history) - 1), private=True)
    assert up(decided) == up(decide("auto", unmeasured(len(history) - 1)))


@pytest.mark.parametrize("told", [list, of_losses])
def test_bounds_stay_fine_until_a_model_has_learned(
    told: Callable[[list[RoundRecord]], list[RoundRecord]],
) -> None:
    flat = told(of_accuracies(*[0.1] * 11))
    bounds = [up(decide("auto", flat[:n])) for n in range(1, 12)]

    assert bounds == pytest.approx([FIRST, *[UNLEARNED] * 9, K], rel=1e-3)
    decided = decide("auto", flat[:3])
    assert down(decided) == pytest.approx(UNLEARNED, rel=1e-3)
    assert "nothing learned yet" in decided.why
    learned = decide("auto", told(of_accuracies(0.1, 0.1, 0.14)))
    assert up(learned) == pytest.approx(K * (1 / 3 + 2 / 3 * 2 / 5))
    assert "nothing learned" not in learned.why


def test_a_round_0_that_was_not_measured_holds_no_bound_down() -> None:
    for first in (row(0, None, None), row(0, None, None, diverged=True)):
        history = [first, *of_accuracies(0.1, 0.1, 0.1)[1:]]
        assert up(decide("auto", history)) > UNLEARNED


@pytest.mark.parametrize("told", [list, of_losses])
def test_two_rounds_below_the_best_halve_the_bounds_and_they_return(
    told: Callable[[list[RoundRecord]], list[RoundRecord]],
) -> None:
    rising = [0.1, 0.4, 0.5, 0.6, 0.65, 0.68, 0.7, 0.7, 0.7]
    scores = [*rising, 0.4, 0.4, 0.4, *[0.7] * 9]
    history = told(of_accuracies(*scores))

    shares = [up(decide("auto", history[:n])) / K for n in range(len(rising), len(scores) + 1)]

    back = [0.5 * 1.1**n for n in range(1, 8)]
    assert shares == pytest.approx([1, 1, 0.5, 0.5, *back, 2, 2], rel=1e-3)
    fallen = decide("auto", history[: len(rising) + 2])
    assert "since the score fell" in fallen.why
    assert down(fallen) == up(fallen)


def test_single_falls_and_falls_within_the_tolerance_or_the_noise_are_none() -> None:
    swinging = [0.1, 0.5, *[0.7, 0.6] * 9]
    within = [0.1, 0.4, 0.6, 0.7, *[0.7] * 6, *[0.696] * 9]
    spike = [0.1, 0.4, 0.5, 0.9, *[0.5] * 9]
    for scores in (swinging, within, spike):
        history = of_accuracies(*scores)
        assert not any(
            "fell" in decide("auto", history[:n]).why for n in range(1, len(history) + 1)
        )
    assert "fell" in decide("auto", of_accuracies(*within), tolerance=0).why


def test_noise_alone_seldom_makes_bounds_finer() -> None:
    policy, shares = auto.Auto(), []
    for seed in range(20):
        state = policy.init()
        for record in of_accuracies(0.1, *np.random.default_rng(seed).normal(0.6, 0.02, 100)):
            state = policy.observe(state, record)
            shares.append(state.share)
    assert np.mean(shares) > 0.93


def test_rounds_that_nobody_measured_and_those_without_replies_say_nothing() -> None:
    measured = of_accuracies(0.1, 0.5, 0.6, 0.7, 0.7, 0.7, 0.7, 0.3)
    later = len(measured)
    silent = [row(later, None, None), row(later + 1, 0.3, None, replies=0)]

    assert "fell" not in decide("auto", [*measured, *silent]).why
    assert "fell" in decide("auto", [*measured, *silent, row(later + 2, 0.3, None)]).why


def test_a_model_that_diverges_halves_the_bounds_at_once() -> None:
    history = learning(9)
    for last in (row(10, None, None, diverged=True), row(10, math.nan)):
        fallen = decide("auto", [*history, last])
        assert up(fallen) == pytest.approx(K / 2, rel=1e-3)
    start = row(0, None, 2.3)
    assert up(decide("auto", [start, row(1, None, None, diverged=True)])) == pytest.approx(
        UNLEARNED / 2, rel=1e-3
    )


def test_a_loss_may_be_zero_and_one_below_it_says_nothing() -> None:
    assert "nothing" not in decide("auto", [row(0, None, 2.3), row(1, None, 0.0)]).why
    negative = [row(i, None, -1.0 - i) for i in range(20)]
    assert up(decide("auto", negative)) == up(decide("auto", unmeasured(19)))


def test_overfitting_is_no_harm_while_the_accuracy_stays() -> None:
    history = [row(i, min(0.6, 0.1 * i), 2.0 + 0.1 * i) for i in range(30)]
    assert up(decide("auto", history)) == pytest.approx(2 * K)


def test_every_number_is_a_constant_that_a_benchmark_can_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"LEAST_STEPS": 1.1, "FIRST_SHARE": 0.5}.items():
        monkeypatch.setattr(auto, name, value)
    decided = decide("auto")
    assert (up(decided), down(decided)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("gain", "growth"),
    [(-0.0001, 2.0), (0.0, 2.0), (0.0005, 2.0), (0.00125, 1.6), (0.002, 1.0), (0.05, 1.0)],
)
def test_bounds_grow_once_a_model_gains_little(gain: float, growth: float) -> None:
    rising = [0.5 + gain * i for i in range(MEMORY)]
    assert up(decide("auto", of_accuracies(0.1, *rising))) == pytest.approx(growth * K, rel=1e-3)


def test_shares_of_the_steps_grow_with_the_rounds() -> None:
    scores = Scores(metric="accuracy", first=0.1, highest=0.9, measured=9)
    shares = [share_of_steps(number, scores)[0] for number in range(1, 60)]
    assert all(a <= b for a, b in itertools.pairwise(shares))
    assert shares[-1] == 1.0
