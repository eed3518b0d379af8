"""`auto`: bounds from the tolerance, the round, and how far clients are behind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from fedsz.bounds import ErrorBound
from fedsz.control.auto import (
    ALLOWED,
    HELD,
    LEAST,
    MOST,
    PATIENCE,
    RAMP,
    ROUNDING,
    SHORT,
    START,
)
from fedsz.control.record import ClientRecord, Decision, RoundRecord
from tests.policies import policy, row

History = Callable[[list[RoundRecord]], list[RoundRecord]]


def up(decision: Decision) -> float:
    bound = ErrorBound.of(decision.config.error_bound)
    assert bound.kind == "step"
    return bound.value


def down(decision: Decision) -> float:
    return ErrorBound.of(decision.config.downlink).value


def learning(rounds: int) -> list[RoundRecord]:
    """Return the history of a run that has learned much in its first round, and goes on slowly."""
    return [row(0, 0.1, 2.3), *(row(i, 0.3 + 0.005 * i, 2 / (i + 1)) for i in range(1, rounds + 1))]


def behind(history: Sequence[RoundRecord], lag: float, bound: str) -> list[RoundRecord]:
    """Return it with clients that are ``lag`` rounds behind within a bound in the last round."""
    config = policy("auto").decide(history).config.replace(error_bound=bound)
    last = msgspec.structs.replace(history[-1], lag=lag, decision=Decision(config=config))
    return [*history[:-1], last]


def test_auto_allows_no_less_for_more_tolerance() -> None:
    tolerances = [0.0, 0.1, 0.25, 0.5, 0.7, 1.0, 5.0]
    last = [policy("auto", tolerance=t).decide(learning(9)) for t in tolerances]

    assert all(
        (d.config.update, d.config.threshold, d.config.rule) == ("delta+ef", 0, "shape")
        for d in last
    )
    assert all(a <= b for a, b in itertools.pairwise(map(up, last)))
    assert up(last[0]) == pytest.approx(ALLOWED[0][1])
    assert up(last[-1]) == pytest.approx(ALLOWED[-1][1])
    assert down(last[-1]) == pytest.approx(ROUNDING * ALLOWED[-1][2], rel=1e-3)


def test_auto_starts_fine_and_grows_with_the_rounds_that_are_over() -> None:
    auto = policy("auto")
    allowed = 1.0
    bounds = [up(auto.decide(learning(n))) for n in range(60)]

    assert up(auto.decide([])) == bounds[0] == pytest.approx(START * allowed)
    assert all(a <= b for a, b in itertools.pairwise(bounds))
    assert bounds[SHORT - 1] == pytest.approx(allowed)
    assert bounds[11] == pytest.approx(12 / SHORT * allowed)


def test_auto_bounds_grow_to_a_limit() -> None:
    """What clients hold back is noise in the model, however long the run."""
    late, far = (policy("auto").decide(learning(n)) for n in (39, 999))
    allowed, allowed_down = 1.0, 0.6

    assert up(late) == up(far) == pytest.approx(MOST[0] * allowed)
    assert down(late) == pytest.approx(ROUNDING * allowed_down * 40 / SHORT, rel=1e-3)
    assert down(far) == pytest.approx(ROUNDING * allowed_down * MOST[1], rel=1e-3)


def asked(rounds: int, clients: int, each: int) -> list[RoundRecord]:
    """Return the history of a run that asks ``each`` of its clients in turn."""
    drawn = itertools.cycle(range(clients))
    return [
        msgspec.structs.replace(
            record,
            clients=[
                ClientRecord(
                    node=str(next(drawn)), bandwidth=0, raw_bytes=1, sent_bytes=1,
                    encode_seconds=0, decode_seconds=0,
                )
                for _ in range(each if record.round else 0)
            ],
        )
        for record in learning(rounds)
    ]  # fmt: skip


def test_auto_grows_with_the_rounds_that_a_client_took_part_in() -> None:
    """What a client holds back waits until it is asked again."""
    auto = policy("auto")

    all_of_them, a_tenth = (auto.decide(asked(60, 40, each)) for each in (40, 4))

    assert up(all_of_them) == up(auto.decide(learning(60))) == pytest.approx(MOST[0])
    assert up(a_tenth) == up(auto.decide(learning(6)))
    assert "in turn 7 of a client" in a_tenth.why
    assert down(a_tenth) == down(all_of_them)


def test_auto_tightens_while_clients_are_further_behind_than_their_bound_explains() -> None:
    auto, history = policy("auto"), learning(9)
    usual = up(auto.decide(history))

    assert up(auto.decide(behind(history, 0.6, "step:1"))) == usual
    assert up(auto.decide(behind(history, 5.0, "step:10"))) == usual
    assert up(auto.decide(behind(history, 5.0, "step:1"))) == pytest.approx(usual * LEAST)
    assert "behind" in auto.decide(behind(history, 5.0, "step:1")).why


def overfit(rounds: int) -> list[RoundRecord]:
    """Return a run whose loss is best in round 30, and whose accuracy stays, but for noise."""
    noise = np.random.default_rng(0).normal(0, 0.005, rounds + 1)
    return [
        row(i, 0.55 * min(1, i / 40) + noise[i], 2 - min(i, 60 - i) / 30) for i in range(rounds + 1)
    ]


def test_auto_takes_overfitting_for_no_harm() -> None:
    history = overfit(100)
    bounds = [up(policy("auto").decide(history[: n + 1])) for n in range(100)]
    allowed = [up(policy("auto").decide(learning(n))) for n in range(100)]

    assert sum(bounds) > 0.95 * sum(allowed)
    fallen = [*history, row(101, history[-1].accuracy - 0.1, history[-1].loss + 0.5)]
    assert up(policy("auto").decide(fallen)) == pytest.approx(allowed[-1] / 2, rel=1e-3)


@pytest.mark.parametrize("lag", [None, 0.0, math.inf])
def test_auto_decides_on_any_lag(lag: float | None) -> None:
    history = behind(learning(9), 0.0, "step:1")
    odd = [*history[:-1], msgspec.structs.replace(history[-1], lag=lag)]
    assert 0 < up(policy("auto").decide(odd)) < math.inf


@pytest.mark.parametrize("lossy", [0, 3, 5, 9])
def test_auto_bounds_a_model_with_exact_tensors_as_any_other(lossy: int) -> None:
    history = learning(4)
    told = msgspec.structs.replace(history[-1], tensors=9, lossy=lossy)

    assert policy("auto").decide([*history[:-1], told]) == policy("auto").decide(history)


def curve(*accuracies: float) -> list[RoundRecord]:
    """Return the history of a run with these accuracies, from round 0 on."""
    return [row(i, value, None) for i, value in enumerate(accuracies)]


def by_loss(history: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return it as of an app that measures a loss alone, which falls as the accuracy rises."""
    return [
        msgspec.structs.replace(o, accuracy=None, loss=math.exp(-o.accuracy))
        for o in history
        if o.accuracy is not None
    ]


@pytest.mark.parametrize("told", [list, by_loss])
def test_auto_stays_fine_until_a_model_has_learned_anything(told: History) -> None:
    auto = policy("auto")
    flat = told(curve(*[0.1] * (PATIENCE + 1)))

    bounds = [up(auto.decide(flat[:n])) for n in range(1, len(flat) + 1)]

    assert bounds[0] == START
    assert set(bounds[1:PATIENCE]) == {HELD}
    assert bounds[PATIENCE] == pytest.approx((PATIENCE + 1) / SHORT)
    assert "nothing learned yet" in auto.decide(flat[:3]).why
    assert up(auto.decide(told(curve(0.1, 0.1, 0.14)))) == START + (1 - START) * 2 / RAMP
    # Nobody knows what was before round 1.
    assert up(auto.decide(told(curve(0.1, 0.1, 0.1))[1:])) > HELD
    assert up(auto.decide([row(0, None, 2.3), *told(curve(0.1, 0.1, 0.1))[1:]])) > HELD


def test_a_loss_that_is_not_finite_has_learned_nothing_and_one_of_zero_all() -> None:
    start = row(0, None, 2.3)
    diverged = policy("auto").decide([start, row(1, None, None, diverged=True)])
    assert "nothing learned yet" in diverged.why
    assert up(diverged) == pytest.approx(HELD / 2)  # the guard, too
    assert "nothing" not in policy("auto").decide([start, row(1, None, 0.0)]).why
    # Nobody knows what a finite loss was before one that is not.
    odd = row(0, None, None, diverged=True)
    assert "nothing" not in policy("auto").decide([odd, row(1, None, 2.3)]).why


@pytest.mark.parametrize("loss", [0.0, -3.0, math.nan, math.inf])
def test_auto_decides_on_any_metric(loss: float) -> None:
    odd = [row(i, None, value) for i, value in enumerate([2.3, loss, 2.2, loss])]
    odder = [row(i, value, loss) for i, value in enumerate([0.1, math.nan, 0.2, math.inf])]
    assert all(0 < up(policy("auto").decide(history)) < math.inf for history in (odd, odder))
