"""FetchSGD: the server feeds back what a sum of sketches has left out, in the sketch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, FetchSgd, LocalGrid, StreamingFedAvg
from fedsz.methods import Shared, TensorSpec
from fedsz.methods.base import VALUES, dense
from fedsz.methods.fetchsgd import SketchedFeedback
from fedsz.methods.settings import Count, Flag
from fedsz.methods.sketch import Sketch
from fedsz.training.federation import strategy_of
from fedsz.training.options import RunConfig
from tests.federation import app_of, record_of, to_arrays

SIZE = 2000
SPEC = TensorSpec((SIZE,), name="fc.weight")
NARROW = Sketch(columns=Count("20"), rows=5)  # 100 values of 2,000 elements
FIXED = Sketch(columns=Count("20"), rows=5, fixed=Flag(1))
WIDE = Sketch(columns=Count("200"), rows=5, fixed=Flag(1))
SHARED = Shared(SPEC, seed=1)
RATE = 0.12


def minimum() -> np.ndarray:
    """The minimum of a quadratic, of which three elements are not 0."""
    draws = np.random.default_rng(0)
    target = np.zeros(SIZE, np.float32)
    target[draws.choice(SIZE, 3, replace=False)] = draws.normal(size=3)
    return target


def sketched(x: np.ndarray, sketch: Sketch = FIXED) -> np.ndarray:
    return sketch.encode(x, {}, SHARED)[0][VALUES]


def test_it_finds_a_minimum_that_sketches_without_feedback_do_not() -> None:
    target, server = minimum(), SketchedFeedback(Count("1"), 0.0)
    fed_back, without = np.zeros_like(target), np.zeros_like(target)

    for number in range(100):
        fed_back += server.step(sketched(RATE * (target - fed_back)), FIXED, SHARED).dense()
        shared = Shared(SPEC, seed=1, round=number)
        sent = NARROW.encode(RATE * (target - without), {}, shared)[0]
        without += dense(NARROW.decode(sent, shared))

    start = np.square(target).sum()
    assert np.square(fed_back - target).sum() < 1e-6 * start
    assert np.square(without - target).sum() > start


def test_what_is_applied_is_no_longer_owed() -> None:
    target, server = minimum(), SketchedFeedback(Count("3"), 0.0)

    applied = server.step(sketched(target, WIDE), WIDE, SHARED)

    assert np.allclose(applied.dense(), target, atol=1e-6)
    assert np.abs(server.state["fc.weight"]["error"]).max() < 1e-6


def test_momentum_is_kept_in_the_sketch() -> None:
    target, server = minimum(), SketchedFeedback(Count("3"), 0.5)
    nothing = np.zeros_like(target)

    first = server.step(sketched(target, WIDE), WIDE, SHARED).dense()
    second = server.step(sketched(nothing, WIDE), WIDE, SHARED).dense()

    assert np.allclose(second, 0.5 * first, atol=1e-6)


def test_its_state_survives_a_restart() -> None:
    target, server = minimum(), SketchedFeedback(Count("1"), 0.5)
    server.step(sketched(target), FIXED, SHARED)
    saved = {name: load(save(state)) for name, state in server.state.items()}
    restarted = SketchedFeedback(Count("1"), 0.5, saved)

    one, other = (s.step(sketched(target), FIXED, SHARED).dense() for s in (server, restarted))

    assert np.array_equal(one, other)


def test_what_is_not_finite_is_forgotten() -> None:
    server = SketchedFeedback(Count("1"), 0.0)
    largest = np.full(100, np.finfo(np.float32).max, np.float32)
    for _ in range(3):
        applied = server.step(largest, FIXED, SHARED).dense()
        assert np.isfinite(applied).all()

    assert np.count_nonzero(server.step(sketched(minimum()), FIXED, SHARED).dense()) <= 1


def test_medians_are_no_larger_than_the_norm_that_a_reply_is_judged_by() -> None:
    gain = FIXED.gain(SHARED)
    assert gain is not None
    for seed in range(20):
        hostile = np.random.default_rng(seed).standard_cauchy(size=100).astype(np.float32)
        judged = float(gain @ np.square(hostile, dtype=np.float64))

        medians = np.square(FIXED.medians(hostile, SHARED), dtype=np.float64).sum()

        assert medians <= 2 * judged * (1 + 1e-6)


def strategy_run(strategy: StreamingFedAvg, update: str) -> np.ndarray:
    """Three rounds of two clients that take steps of a tenth towards 1 in three elements."""
    target = np.zeros((40, 50), np.float32)
    target[[1, 20, 30], [2, 3, 4]] = 1, -2, 3

    def edit(_: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: x + np.float32(0.1) * (target - x) for name, x in arrays.items()}

    nodes: list[Any] = [{"partition-id": i} for i in range(2)]
    grid = FedSZGrid(LocalGrid(app_of(edit), nodes), update=update, threshold=0)
    first = record_of({"fc.weight": np.zeros_like(target)})
    result = strategy.start(grid=grid, initial_arrays=first, num_rounds=3)
    return to_arrays(result.arrays)["fc.weight"] - (1 - 0.9**3) * target


def test_a_strategy_applies_the_heavy_elements_and_nothing_else() -> None:
    strategy = FetchSgd(k=3, fraction_evaluate=0.0)

    # Columns are drawn anew in each run: with so many rows no element shares most of them with
    # heavy ones, but in one run of eighty thousand.
    left = strategy_run(strategy, "sketch:columns=130,rows=13,fixed=1")

    assert np.abs(left).max() < 1e-5
    assert strategy.feedback.state.keys() == {"fc.weight"}


def test_a_strategy_goes_on_with_what_another_has_kept() -> None:
    first, wide = FetchSgd(k=3, momentum=0.5, fraction_evaluate=0.0), "sketch:columns=100,rows=5"
    strategy_run(first, f"{wide},fixed=1")
    kept = load(save(first.state()))
    second = FetchSgd(k=3, momentum=0.5, fraction_evaluate=0.0)

    second.restore(kept)

    assert kept.keys() == {"velocity/fc.weight", "error/fc.weight"}
    assert kept["velocity/fc.weight"].any()
    goes_on = second.feedback.state["fc.weight"]
    assert all(np.array_equal(goes_on[kind], kept[f"{kind}/fc.weight"]) for kind in goes_on)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"update": "sketch:rows=5"}, "needs --update 'sketch:rows=5,fixed=1'"),
        ({"update": "topk"}, "needs --update .*, got --update 'topk'"),
        ({"policy": "auto"}, "needs --update"),
        ({"update": "sketch:fixed=1", "policy": "auto"}, "cannot be used with --policy auto"),
        ({"update": "sketch:fixed=1", "policy": "auto+gate"}, "it sends no sketches"),
        ({"fetchsgd": "", "server_momentum": 0.5}, "--server-momentum needs --fetchsgd"),
        ({"update": "sketch:fixed=1", "buffer": 2}, "cannot be used with --buffer"),
        (
            {"update": "sketch:fixed=1", "fetchsgd": "0"},
            "FetchSGD's k must be a number of elements",
        ),
    ],
)
def test_a_run_that_fetchsgd_cannot_average_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        strategy_of(RunConfig(**{"fetchsgd": "1%", **options}))


def test_what_comes_otherwise_is_averaged_as_ever() -> None:
    strategy = FetchSgd(k=3, fraction_evaluate=0.0)

    left = strategy_run(strategy, "topk:k=3")

    assert np.abs(left).max() < 1e-5
    assert strategy.feedback.state == {}


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="momentum"):
        FetchSgd(momentum=1.0)
