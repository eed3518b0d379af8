"""`auto`: bounds from the tolerance and the size of the first step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import pytest

from fedsz.bounds import ErrorBound
from fedsz.control.auto import ALLOWED, FIRST
from fedsz.control.record import Decision
from tests.policies import factor_of, policy, row


def bounds_of(decisions: Sequence[Decision]) -> list[float]:
    return [factor_of(decision) for decision in decisions]


def test_auto_allows_no_less_for_more_tolerance() -> None:
    spread = {"a.weight": (900, 0.01), "b.weight": (100, 0.03)}
    smooth = [row(i, 0.1 * i, 2.0 - 0.2 * i, spread=spread if i else {}) for i in range(9)]
    step = math.sqrt((900 * 0.01**2 + 100 * 0.03**2) / 1000)
    tolerances = [0.0, 0.1, 0.25, 0.5, 0.7, 1.0, 5.0]
    last = [policy("auto", tolerance=t).decide(smooth) for t in tolerances]

    assert all(
        (d.config.update, d.config.threshold, d.config.rule) == ("delta+ef", 0, "parameters")
        for d in last
    )
    assert all(a <= b for a, b in itertools.pairwise(bounds_of(last)))
    assert bounds_of(last)[0] == pytest.approx(ALLOWED[0][1] * step, rel=1e-3)
    assert bounds_of(last)[-1] == pytest.approx(ALLOWED[-1][1] * step, rel=1e-3)
    down = [ErrorBound.of(d.config.downlink).value for d in last]
    assert down[-1] == pytest.approx(ALLOWED[-1][2] * step, rel=1e-3)


def test_auto_starts_by_the_step_and_then_stays() -> None:
    spread = {"a.weight": (900, 0.01)}
    steps = [row(0), *(row(i, 0.1 * i, 2 - 0.2 * i, spread=spread) for i in range(1, 6))]
    shrinking = [
        msgspec.structs.replace(o, spread={"a.weight": (900, 0.01 / max(o.round, 1))})
        if o.round
        else o
        for o in steps
    ]
    auto = policy("auto")

    assert (
        auto.decide([]).config.error_bound
        == auto.decide(steps[:1]).config.error_bound
        == str(FIRST)
    )
    bounds = {auto.decide(shrinking[:n]).config.error_bound for n in range(2, 7)}
    assert len(bounds) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_auto_waits_for_a_step_that_is_one(bad: float) -> None:
    history = [row(0), row(1, spread={"a.weight": (900, bad)})]
    assert policy("auto").decide(history).config.error_bound == str(FIRST)
