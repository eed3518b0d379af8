"""`schedule`: bounds that are planned before the run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.bounds import ErrorBound
from tests.policies import factor_of, policy, row


@given(
    st.sampled_from(["geometric", "linear"]), st.integers(2, 50), st.floats(1, 9), st.floats(0.1, 1)
)
def test_a_schedule_goes_from_first_to_last_without_turning(
    shape: str, rounds: int, first: float, last: float
) -> None:
    spec = f"schedule:first=std:{first!r},last=std:{last!r},down_last=std:0.5,shape={shape}"
    chosen = policy(spec, rounds=rounds)
    decided = [chosen.decide([row(i) for i in range(n)]) for n in range(1, rounds + 1)]
    up = [factor_of(decision) for decision in decided]
    down = [ErrorBound.of(decision.config.downlink).value for decision in decided]

    assert (up[0], up[-1]) == pytest.approx((first, last), rel=1e-5)
    assert (down[0], down[-1]) == pytest.approx((1.0, 0.5), rel=1e-5)
    steps = np.diff(up if shape == "linear" else np.log(up))
    assert steps == pytest.approx([steps[0]] * (rounds - 1), abs=1e-4)
    assert (
        chosen.decide([row(0), row(rounds + 5)]).config.error_bound
        == decided[-1].config.error_bound
    )


def test_a_schedule_of_one_round_is_its_last() -> None:
    chosen = policy("schedule:first=std:4,last=std:1", rounds=1)
    assert chosen.decide([]).config.error_bound == "std:1"
