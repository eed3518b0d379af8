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
    FEW,
    FURTHER,
    LEARNING,
    LEAST,
    MOST,
    PACE,
    RAMP,
    ROUNDING,
    SHORT,
    SHRINK,
    START,
)
from fedsz.control.learned import HELD, PATIENCE
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.ahead import ALIKE, WIDER, not_ahead
from fedsz.core.settings import Settings
from tests.policies import client, decide, row

UP = ALLOWED[2][1]  # of the tolerance that is the default

History = Callable[[list[RoundRecord]], list[RoundRecord]]


def up(decision: Decision) -> float:
    bound = ErrorBound.of(decision.config.error_bound)
    assert bound.kind == "step"
    return bound.value


def down(decision: Decision) -> float:
    bound = decision.config.downlink_bound
    assert bound
    return bound.value


def learning(rounds: int) -> list[RoundRecord]:
    """Return the history of a run that has learned much in its first round, and goes on slowly."""
    return [row(0, 0.1, 2.3), *(row(i, 0.3 + 1e-5 * i, 2 / (i + 1)) for i in range(1, rounds + 1))]


def gaining(rounds: int, points: float, shares: float) -> list[RoundRecord]:
    """Return the history of a run that gains as much whenever its rounds double.

    Args:
        rounds: over.
        points: of accuracy.
        shares: of the loss, in percent.
    """
    octaves = [math.log2(i) for i in range(1, rounds + 1)]
    scores = [(0.3 + points / 100 * n, math.exp(-shares / 100 * n)) for n in octaves]
    return [row(0, 0.1, 2.3), *(row(i, a, loss) for i, (a, loss) in enumerate(scores, 1))]


def test_auto_allows_no_less_for_more_tolerance() -> None:
    last = [decide("auto", learning(9), tolerance=t) for t in (0.0, 0.1, 0.25, 0.5, 0.7, 1.0, 5.0)]

    told = {(d.config.update, d.config.threshold, d.config.rule) for d in last}
    assert told == {("delta+ef", 0, "shape")}
    assert all(a <= b for a, b in itertools.pairwise(map(up, last)))
    assert up(last[0]) == pytest.approx(ALLOWED[0][1])
    assert up(last[-1]) == pytest.approx(ALLOWED[-1][1])
    assert down(last[-1]) == pytest.approx(ROUNDING * ALLOWED[-1][1], rel=1e-3)


def test_auto_starts_fine_and_grows_with_the_rounds_that_are_over_to_a_limit() -> None:
    """What clients hold back is noise in the model, however long the run."""
    bounds = [up(decide("auto", learning(n))) for n in range(60)]
    late, far = (decide("auto", learning(n)) for n in (39, 999))

    assert up(decide("auto")) == bounds[0] == pytest.approx(START[0] * UP)
    assert all(a <= b for a, b in itertools.pairwise(bounds))
    assert bounds[SHORT - 1] == pytest.approx(UP)
    assert bounds[11] == pytest.approx(12 / SHORT * UP)
    assert up(late) == up(far) == pytest.approx(MOST[0] * UP)
    assert down(decide("auto")) == pytest.approx(ROUNDING * START[1] * UP, rel=1e-3)
    assert down(decide("auto", learning(11))) == pytest.approx(ROUNDING * 1.2 * UP, rel=1e-3)
    assert down(late) == down(far) == pytest.approx(ROUNDING * MOST[1] * UP, rel=1e-3)


@pytest.mark.parametrize("other", [9.0, 1000.0])
def test_bounds_grow_in_long_runs_as_far_as_a_model_gains_little_by_then(other: float) -> None:
    for gains in ((3.0, other), (other, 3.0)):  # where one metric rises on, the other may tell more
        early, soon, late = (decide("auto", gaining(n, *gains)) for n in (9, 14, 39))
        assert up(early) == up(soon) == up(late) == pytest.approx(UP)
        assert up(decide("auto", gaining(39, *gains), tolerance=1)) == pytest.approx(
            ALLOWED[3][1] * PACE / 3, rel=0.03
        )
        part = PACE * 0.5 / 3
        assert down(early) == pytest.approx(ROUNDING * UP, rel=1e-3)
        assert down(soon) == pytest.approx(ROUNDING * UP * part**0.5, rel=0.05)
        assert down(late) == pytest.approx(ROUNDING * UP * part, rel=0.05)
        assert "still gaining" in late.why

    some, much = (decide("auto", gaining(39, n, 30)) for n in (1.3, 50))
    assert UP < up(some) < MOST[0] * UP
    assert up(much) == LEARNING[0] * UP
    assert down(much) == pytest.approx(ROUNDING * UP * LEARNING[1], rel=1e-3)


def test_a_client_that_misses_a_round_changes_little() -> None:
    """Five clients; one reply of round 3 is lost."""
    all_of_them = [
        msgspec.structs.replace(seen, clients=[client(str(i)) for i in range(5 * (seen.round > 0))])
        for seen in gaining(39, 5, 30)
    ]
    lost = msgspec.structs.replace(all_of_them[3], clients=all_of_them[3].clients[:4])
    usual = decide("auto", all_of_them)
    other = decide("auto", [*all_of_them[:3], lost, *all_of_them[4:]])
    assert up(other) == pytest.approx(up(usual), rel=0.02)
    assert down(other) == pytest.approx(down(usual), rel=0.02)


@pytest.mark.parametrize("gains", [(-5.0, 3.0), (3.0, -5.0), (0.0, 0.0)])
def test_overfitting_and_standing_still_are_no_reason_for_narrow_bounds(
    gains: tuple[float, float],
) -> None:
    late = decide("auto", gaining(39, *gains))
    assert up(late) == pytest.approx(MOST[0] * UP)
    assert down(late) == pytest.approx(ROUNDING * MOST[1] * UP, rel=1e-3)
    assert "gaining" not in late.why


def test_bounds_do_not_grow_where_nobody_knows_what_a_model_gains() -> None:
    unknown = [row(i, None, None) for i in range(40)]
    seldom = [row(i, *((0.1 + i / 100, None) if i % 16 == 8 else (None, None))) for i in range(16)]
    for history in (unknown, seldom):
        late = decide("auto", history)
        assert up(late) == pytest.approx(UP)
        assert down(late) == pytest.approx(ROUNDING * UP, rel=1e-3)


def test_auto_has_clients_begin_ahead_and_uniform_shrink_in_long_runs() -> None:
    def told(codec: str, rounds: int = SHORT) -> Settings:
        return decide("auto", learning(rounds), base=Settings(codec=codec)).config

    assert told("uniform").begins_ahead
    assert told("uniform", SHORT - 1).codec == "uniform"
    assert told("uniform", SHORT).codec == f"uniform:shrink={SHRINK}"
    assert told("uniform:effort=9").codec == f"uniform:effort=9,shrink={SHRINK}"
    assert told("uniform:shrink=0.1").codec == "uniform:shrink=0.1"
    assert told("szx").codec == "szx"


def test_clients_without_a_head_start_have_bounds_that_cost_as_little() -> None:
    first, later = (decide("auto", learning(n)).config for n in (0, SHORT - 1))

    assert not_ahead(first).bound.value == ALIKE
    assert not_ahead(later).bound.value == pytest.approx(UP / WIDER)
    assert not not_ahead(later).begins_ahead
    fine = later.replace(error_bound="step:0.3")
    assert not_ahead(fine).bound == fine.bound
    assert not_ahead(not_ahead(later)) == not_ahead(later)


def asked(rounds: int, clients: int, each: int) -> list[RoundRecord]:
    """Return the history of a run that asks ``each`` of its clients in turn."""
    drawn = itertools.cycle(range(clients))
    start, *trained = learning(rounds)
    return [
        start,
        *(
            msgspec.structs.replace(seen, clients=[client(str(next(drawn))) for _ in range(each)])
            for seen in trained
        ),
    ]


def test_auto_grows_with_the_rounds_that_a_client_took_part_in() -> None:
    """What a client holds back waits until it is asked again."""
    all_of_them, a_tenth = (decide("auto", asked(60, 40, each)) for each in (40, 4))

    assert up(all_of_them) == up(decide("auto", learning(60))) == pytest.approx(MOST[0] * UP)
    assert up(a_tenth) == up(decide("auto", learning(6)))
    assert "in turn 7 of a client" in a_tenth.why
    assert down(all_of_them) == pytest.approx(ROUNDING * UP * MOST[1], rel=1e-3)
    few = FEW + (1 - FEW) * 7 / 61
    assert down(a_tenth) == pytest.approx(ROUNDING * UP * few * 61 / SHORT, rel=1e-3)
    rarely = decide("auto", asked(200, 40, 4))
    few = FEW + (1 - FEW) * 21 / 201
    assert down(rarely) == pytest.approx(ROUNDING * UP * few * FURTHER, rel=1e-3)


def test_auto_tightens_while_clients_are_further_behind_than_their_bound_explains() -> None:
    *before, last = learning(9)
    usual = decide("auto", [*before, last])

    def behind(lag: float, bound: str) -> Decision:
        decision = Decision(config=usual.config.replace(error_bound=bound))
        return decide("auto", [*before, msgspec.structs.replace(last, lag=lag, decision=decision)])

    assert up(behind(0.6, "step:1")) == up(behind(5.0, "step:10")) == up(usual)
    assert up(behind(5.0, "step:1")) == pytest.approx(up(usual) * LEAST)
    assert "behind" in behind(5.0, "step:1").why


def test_auto_takes_overfitting_for_no_harm() -> None:
    """The loss is best in round 6, and the accuracy stays, but for noise."""
    noise = np.random.default_rng(0).normal(0, 0.005, 101)
    history = [row(i, 0.55 * min(1, i / 8) + noise[i], 2 - min(i, 12 - i) / 6) for i in range(101)]
    bounds = [up(decide("auto", history[: n + 1])) for n in range(100)]
    allowed = [up(decide("auto", learning(n))) for n in range(100)]

    assert sum(bounds) > 0.95 * sum(allowed)
    fallen = [row(i, history[-1].accuracy - 0.1, history[-1].loss + 0.5) for i in (101, 102)]
    assert up(decide("auto", [*history, fallen[0]])) == pytest.approx(allowed[-1], rel=1e-3)
    assert up(decide("auto", [*history, *fallen])) == pytest.approx(allowed[-1] / 2, rel=1e-3)


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
    flat = told(curve(*[0.1] * (PATIENCE + 1)))

    bounds = [up(decide("auto", flat[:n])) for n in range(1, len(flat) + 1)]

    assert bounds[0] == pytest.approx(START[0] * UP)
    assert bounds[1:PATIENCE] == pytest.approx((PATIENCE - 1) * [HELD * START[0] * UP])
    assert bounds[PATIENCE] == pytest.approx((PATIENCE + 1) / SHORT * UP)
    assert "nothing learned yet" in decide("auto", flat[:3]).why
    assert down(decide("auto", flat[:3])) == pytest.approx(HELD * down(decide("auto")), rel=1e-3)
    third = START[0] + (1 - START[0]) * 2 / RAMP
    late = decide("auto", told(curve(0.1, 0.1, 0.14)))
    assert up(late) == pytest.approx(third * UP)
    assert down(late) == down(decide("auto", learning(1)))  # one round less has counted
    # Nobody knows what was before round 1.
    assert up(decide("auto", told(curve(0.1, 0.1, 0.1))[1:])) > HELD * START[0] * UP
    assert (
        up(decide("auto", [row(0, None, 2.3), *told(curve(0.1, 0.1, 0.1))[1:]]))
        > HELD * START[0] * UP
    )


def test_a_loss_that_is_not_finite_has_learned_nothing_and_one_of_zero_all() -> None:
    start = row(0, None, 2.3)
    diverged = decide("auto", [start, row(1, None, None, diverged=True)])
    assert "nothing learned yet" in diverged.why
    assert up(diverged) == pytest.approx(HELD * START[0] * UP / 2)  # the guard, too
    assert "nothing" not in decide("auto", [start, row(1, None, 0.0)]).why
    # Nobody knows what a finite loss was before one that is not.
    odd = row(0, None, None, diverged=True)
    assert "nothing" not in decide("auto", [odd, row(1, None, 2.3)]).why
