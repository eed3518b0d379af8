"""A policy in any Flower app: one argument of the Grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedsz.control.policy import Controller
from fedsz.errors import ConfigError
from fedsz.flower import AdmissionRules, FedSZGrid, StreamingFedAvg
from fedsz.flower.deadline import Deadlines
from fedsz.flower.records import KEY
from fedsz.update.config import CompressionConfig
from tests.federation import CLIENTS, app_of, grid_of, initial, moved, record_of
from tests.test_grid import Watched

ROUNDS = 5


def bounds(watched: Watched) -> list[str]:
    """What clients were told in each round."""
    notes = [dict(content.config_records[KEY]) for content in watched.down[::CLIENTS]]
    return [str(note["error-bound"]) for note in notes]


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_auto_needs_nothing_from_the_app(strategy: type[FedAvg]) -> None:
    watched = Watched(grid_of(app_of()))
    grid = FedSZGrid(watched, policy="auto")

    strategy(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=ROUNDS)

    traffic = grid.take_traffic()
    assert (traffic.replies, traffic.failures) == (ROUNDS * CLIENTS, [])
    assert all(bound.startswith("step:") for bound in bounds(watched))
    told = dict(watched.down[-1].config_records[KEY])
    assert (told["update"], told["threshold"], told["rule"]) == ("delta+ef", 0, "shape")


def test_what_the_app_measures_tightens_the_bound() -> None:
    found = {}
    for name, accuracies in {
        "good": [0.1, 0.3, 0.5, 0.6, 0.7],
        "bad": [0.1, 0.7, 0.3, 0.2, 0.1],
    }.items():
        watched = Watched(grid_of(app_of(lambda i, arrays: moved(arrays, i))))
        grid = FedSZGrid(watched, policy="auto")

        def test(
            number: int, _: ArrayRecord, *, of: Any = accuracies, to: Any = grid
        ) -> MetricRecord:
            if number < ROUNDS:
                to.observe(accuracy=of[number])
            return MetricRecord()

        StreamingFedAvg(fraction_evaluate=0).start(
            grid, record_of(initial()), num_rounds=ROUNDS, evaluate_fn=test
        )
        found[name] = float(bounds(watched)[-1].removeprefix("step:"))
    assert found["bad"] < 0.8 * found["good"]


def test_a_schedule_runs_over_the_rounds_it_is_told_of() -> None:
    watched = Watched(grid_of(app_of()))
    grid = FedSZGrid(watched, policy="schedule:first=std:3,last=std:1,shape=linear", rounds=ROUNDS)
    FedAvg(fraction_evaluate=1).start(grid, record_of(initial()), num_rounds=ROUNDS)

    trained = [c for c in watched.down[::CLIENTS] if "config" in c.config_records][::2]
    told = [str(dict(c.config_records[KEY])["error-bound"]) for c in trained]
    assert told == ["std:3", "std:2.5", "std:2", "std:1.5", "std:1"]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("layers", "held-out set"),
        ("brave", "no policy 'brave'"),
        ("auto+layers", "held-out set"),
        ("schedule:first=std:3,last=std:1", "needs the number of rounds"),
    ],
)
def test_what_cannot_be_is_refused(policy: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FedSZGrid(grid_of(app_of()), "std:1", policy=policy)


@pytest.mark.parametrize("rounds", [0, -1])
def test_a_run_has_a_round_at_least(rounds: int) -> None:
    with pytest.raises(ConfigError, match="rounds must be at least 1"):
        FedSZGrid(grid_of(app_of()), rounds=rounds)


def test_a_model_that_became_nan_ends_no_run() -> None:
    def edit(i: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        after = moved(arrays, i)
        after["fc.weight"][0, 0] = np.nan
        return after

    grid = FedSZGrid(grid_of(app_of(edit)), policy="auto")
    StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=2)
    assert len(grid.take_traffic().failures) == 2 * CLIENTS


def test_a_server_that_ends_its_rounds_keeps_nothing_of_them() -> None:
    base = CompressionConfig()
    controller = Controller("fixed", base, tolerance=0.5, rounds=ROUNDS)
    grid = FedSZGrid.controlled(grid_of(app_of()), controller, AdmissionRules(), Deadlines())
    kept = []

    for number in range(ROUNDS):
        record = grid.end_round(accuracy=0.5)
        assert (record.round, record.replies) == (number, CLIENTS * (number > 0))
        StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=1)
        kept.append(sum(len(counter._admitted) for counter in grid._book._counters))

    assert kept == [CLIENTS] * ROUNDS
