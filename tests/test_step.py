"""A bound of kind `step`: of all that moved, and of each tensor's own share of it."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.codecs import CODECS
from fedsz.errors import ConfigError
from fedsz.update.config import CompressionConfig
from fedsz.update.reference import Reference
from fedsz.update.step import MOST, Arrival, bounds_of_step, energies
from tests.strategies import finite, seeds

BOUNDED = [c for c in CODECS if c.lossy and c.keeps_bound and c.missing() is None]
SCALES = {"large.weight": 1e-2, "small.weight": 1e-5, "frozen.weight": 0.0}


def pair(rng: np.random.Generator, dtype: Any = np.float32) -> tuple[dict[str, Any], Any]:
    """Return a model whose tensors move by decades apart, before and after."""
    before = {name: finite(rng.normal(size=(50, 60)), dtype) for name in SCALES}
    after = {
        name: (x + SCALES[name] * rng.normal(size=x.shape)).astype(x.dtype)
        for name, x in before.items()
    }
    count = {"count": np.array(3)}
    return before | count, after | count


def root_mean_square(x: Any) -> float:
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))


def test_the_bound_is_of_the_whole_step_and_of_a_tensors_own_at_most() -> None:
    before, after = pair(np.random.default_rng(0))
    config = CompressionConfig(error_bound="step:2", threshold=0, factors={"large.weight": 0.5})
    steps = {name: after[name] - before[name] for name in SCALES}
    whole = root_mean_square(np.stack(list(steps.values())))

    bounds = bounds_of_step(energies(after, Reference(before), config), config)

    own = root_mean_square(steps["small.weight"])
    assert bounds["large.weight"] == pytest.approx(0.5 * 2 * whole, rel=1e-5)
    assert bounds["small.weight"] == pytest.approx(2 * MOST * own, rel=1e-5)
    assert bounds["frozen.weight"] == pytest.approx(2 * whole, rel=1e-5)


@given(
    codec=st.sampled_from(BOUNDED),
    dtype=st.sampled_from([np.float32, np.float64, np.float16, ml_dtypes.bfloat16]),
    seed=seeds,
    value=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_no_error_exceeds_it(codec: Any, dtype: Any, seed: int, value: float) -> None:
    before, after = pair(np.random.default_rng(seed), dtype)
    config = CompressionConfig(error_bound=f"step:{value}")
    bounds = bounds_of_step(energies(after, Reference(before), config), config)

    blob = fedsz.compress(after, f"step:{value}", codec=codec, reference=before)
    back = fedsz.decompress(blob, reference=before, as_numpy=True)

    for name, x in after.items():
        error = np.abs(back[name].astype(np.float64) - x.astype(np.float64)).max()
        assert error <= bounds.get(name, 0.0)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_not_finite_comes_back_exactly(odd: float) -> None:
    before, after = pair(np.random.default_rng(1))
    after["large.weight"][3, 4] = odd
    before["large.weight"][3, 4] = -3e38

    blob = fedsz.compress(after, "step:1", reference=before)
    back = fedsz.decompress(blob, reference=before, as_numpy=True)

    assert back["large.weight"].tobytes() == after["large.weight"].tobytes()


def test_where_nothing_moves_nothing_is_lost() -> None:
    before, _ = pair(np.random.default_rng(2))

    blob = fedsz.compress(before, "step:1", reference=before)

    assert len(blob) < 600
    back = fedsz.decompress(blob, reference=before, as_numpy=True)
    assert all(back[name].tobytes() == x.tobytes() for name, x in before.items())


def test_a_step_needs_something_that_it_is_from() -> None:
    before, _ = pair(np.random.default_rng(2))
    with pytest.raises(ConfigError, match="reference="):
        fedsz.compress(before, "step:1")
    with pytest.raises(ConfigError, match="update"):
        CompressionConfig(error_bound="step:1", update="weights")


@given(seed=seeds)
def test_what_arrives_and_how_late_is_what_was_sent(seed: int) -> None:
    """A bound of a step leaves 1 / sqrt(3) of it: what a quantiser leaves is spread evenly."""
    rng = np.random.default_rng(seed)
    before = {"w": rng.normal(size=(50, 60)).astype(np.float32)}
    after = {"w": before["w"] + rng.normal(0, 1e-3, (50, 60)).astype(np.float32)}
    base = Reference(before)
    blob = fedsz.compress(after, "step:1", threshold=0, reference=base)

    arrived = fedsz.decompress(blob, reference=base, as_numpy=True)
    found = Arrival.of(after["w"], before["w"], after["w"], arrived["w"])

    assert 0.5 < found.kept < 0.8
    assert found.lag == pytest.approx(math.sqrt(1 - found.kept))
    assert 0.4 < found.lag < 0.65
