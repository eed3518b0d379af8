"""`layers`: bits go to the tensors in which errors cost most."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.control.layers import allot
from fedsz.control.quantiser_rate import distortion, rate
from tests.policies import BASE, policy, row


@given(
    st.lists(
        st.tuples(st.integers(1, 10**7), st.floats(0.01, 8.0), st.floats(1e-6, 1e6)),
        min_size=1,
        max_size=20,
    )
)
def test_layers_keep_the_rate_and_cost_no_more(
    tensors: list[tuple[int, float, float]],
) -> None:
    counts, present, weights = (
        np.array(column, dtype=np.float64) for column in zip(*tensors, strict=True)
    )
    factors = allot(counts, present, np.log(weights), 8.0)
    before, after = counts @ rate(present), counts @ rate(present * factors)

    assert ((factors >= 1 / 8) & (factors <= 8)).all()
    assert after == pytest.approx(before, rel=1e-3, abs=1e-6 * counts.sum())
    cost = (counts * weights) @ distortion(present)
    assert (counts * weights) @ distortion(present * factors) <= cost * (1 + 1e-3)


@given(st.lists(st.floats(0.01, 8.0), min_size=2, max_size=6), st.floats(1e-3, 1e3))
def test_layers_spend_more_where_errors_cost_more(bounds: list[float], weight: float) -> None:
    counts, present = np.full(len(bounds), 1000.0), np.full(len(bounds), bounds[0])
    alike = allot(counts, present, np.full(len(bounds), math.log(weight)), 8.0)
    weights = weight * np.array(bounds)
    factors = allot(counts, present, np.log(weights), 8.0)
    order = np.argsort(weights)

    assert alike == pytest.approx(1.0, rel=1e-6)
    assert (np.diff(factors[order]) <= 1e-9).all()


def test_layers_with_fine_bounds_are_reverse_water_filling() -> None:
    counts, weights = np.array([1e3, 1e5, 1e4]), np.array([1.0, 2.0, 0.25])
    factors = allot(counts, np.full(3, 0.01), np.log(weights), 8.0)
    level = np.exp((counts @ np.log(weights)) / counts.sum())  # c_l D_l equal, at the same rate

    assert factors == pytest.approx(np.sqrt(level / weights), rel=2e-3)


def test_layers_by_squared_error_make_fine_bounds_equal() -> None:
    spread = {"a": (1000, 1.0), "b": (3000, 2.0), "c": (10, 0.7)}
    fine = BASE.replace(error_bound="std:0.01")
    factors = policy("layers:cost=mse", fine).decide([row(0), row(1, spread=spread)]).config.factors
    bounds = [factors[name] * deviation for name, (_, deviation) in spread.items()]
    assert bounds == pytest.approx([bounds[0]] * 3, rel=3e-3)

    same = BASE.replace(error_bound="abs:0.001")
    assert policy("layers:cost=mse", same).decide(
        [row(0), row(1, spread=spread)]
    ).config.factors == (pytest.approx(dict.fromkeys(spread, 1.0), rel=1e-3))


def test_layers_wait_for_what_they_need_and_leave_out_what_cannot_be_known() -> None:
    spread = {"a": (1000, 1.0), "b": (1000, 1.0), "gone": (0, 1.0), "still": (9, 0.0)}
    chosen = policy("layers")
    unknown = row(1, spread=spread)
    assert chosen.decide([row(0), unknown]).config.factors == {}
    lost = msgspec.structs.replace(unknown, sensitivity={"a": math.nan, "b": 0.0})
    assert chosen.decide([row(0), lost]).config.factors == {}
    known = row(2, sensitivity={"a": 1.0, "b": 2.0, "gone": 1.0, "still": 1.0})
    factors = chosen.decide([row(0), lost, known]).config.factors

    assert factors.keys() == {"a", "b"}
    assert factors["a"] == pytest.approx(1.0, rel=1e-3)  # b's mean is 1, as a's is
    before = BASE.replace(factors={"a": 0.5, "other": 2.0})
    assert policy("layers", before).decide([row(0), unknown]).config.factors == before.factors
