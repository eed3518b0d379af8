"""A policy in any Flower app: one argument of the Grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedsz.control.controller import Controller
from fedsz.control.record import RoundRecord, median_metrics
from fedsz.core.protocol import Request
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.records import note_of, to_array
from tests.federation import CLIENTS, Watched, app_of, grid_of, initial, moved, record_of

ROUNDS = 5


def bounds(watched: Watched) -> list[str]:
    """What clients were told in each round."""
    notes = [note_of(content) for content in watched.down[::CLIENTS]]
    return [Request.decode(note).settings.error_bound for note in notes]


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_auto_needs_nothing_from_the_app(strategy: type[FedAvg]) -> None:
    watched = Watched(grid_of(app_of()))
    grid = FedSZGrid(watched, policy="auto")

    strategy(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=ROUNDS)

    traffic = grid.take_traffic()
    assert (traffic.replies, traffic.failures) == (ROUNDS * CLIENTS, [])
    assert all(bound.startswith("step:") for bound in bounds(watched))
    asked = Request.decode(note_of(watched.down[-1])).settings
    assert (asked.update, asked.threshold, asked.rule) == ("delta+ef", 0, "shape")


def test_what_the_app_measures_tightens_the_bound() -> None:
    found = {}
    for name, accuracies in {
        "good": [0.1, *[0.7] * 7],
        "bad": [0.1, *[0.7] * 5, 0.2, 0.1],
    }.items():
        watched = Watched(grid_of(app_of(lambda i, arrays: moved(arrays, i))))
        grid = FedSZGrid(watched, policy="auto")

        def test(
            number: int, _: ArrayRecord, *, of: Any = accuracies, to: Any = grid
        ) -> MetricRecord:
            if number < len(of):
                to.observe(accuracy=of[number])
            return MetricRecord()

        StreamingFedAvg(fraction_evaluate=0).start(
            grid, record_of(initial()), num_rounds=len(accuracies), evaluate_fn=test
        )
        found[name] = float(bounds(watched)[-1].removeprefix("step:"))
    assert found["bad"] == pytest.approx(found["good"] / 2, rel=1e-3)


Tell = Callable[[int, int], dict[str, float]]
JUMP = 3  # the round from which on models are said to be bad


def evaluated(
    tell: Tell, rounds: int = JUMP + 1, **grid_options: Any
) -> tuple[list[float], list[RoundRecord]]:
    """Run an app whose client i tells ``tell(i, round)`` of a round's model.

    Returns:
        The bounds of the rounds, and the records by which they were decided: that of the model
        before any training, and of each round but the last.
    """
    app = app_of(examples=lambda _: 1, tell=tell)
    ended: list[RoundRecord] = []
    records: list[RoundRecord] = []
    grid = FedSZGrid(grid_of(app), on_round=ended.append, **grid_options)
    controller = grid._statistics.controller
    decide = controller.decide
    controller.decide = lambda record: records.append(record) or decide(record)
    first = ArrayRecord({"w": to_array(np.ones((20, 20), np.float32))})
    FedAvg().start(grid, first, num_rounds=rounds)
    return [one.decision.config.bound.value for one in ended if one.decision], records


def loss_of(client: int, number: int, *, odd: int = 0, value: float = math.nan) -> dict[str, float]:
    """A loss that falls, but not for the first ``odd`` clients from one round on."""
    return {"num-examples": 10, "loss": value if client < odd and number >= JUMP else 1 / number}


@pytest.mark.parametrize("rules", [None, "fleet"])
def test_a_loss_that_is_not_finite_at_most_clients_is_behind(rules: str | None) -> None:
    usual, _ = evaluated(loss_of, rules=rules)
    of_few, _ = evaluated(partial(loss_of, odd=CLIENTS // 2), rules=rules)
    of_most, records = evaluated(partial(loss_of, odd=CLIENTS // 2 + 1), rules=rules)

    assert of_few == usual
    assert of_most == pytest.approx([*usual[:-1], usual[-1] / 2], rel=1e-3)
    assert [record.diverged for record in records] == [i >= JUMP for i in range(JUMP + 1)]
    assert records[JUMP].loss is None


def test_a_loss_that_jumps_tightens_and_a_metric_of_another_name_says_nothing() -> None:
    def renamed(client: int, number: int) -> dict[str, float]:
        told = loss_of(client, number, odd=CLIENTS, value=7.5e7)
        return {"num-examples": 10, "rmse": told["loss"]}

    usual, _ = evaluated(loss_of, JUMP + 2)
    jumped, records = evaluated(partial(loss_of, odd=CLIENTS, value=7.5e7), JUMP + 2)
    unknown, others = evaluated(renamed, JUMP + 2)

    assert jumped == pytest.approx([*usual[:-1], usual[-1] / 2], rel=1e-3)
    assert records[JUMP].loss == 7.5e7
    assert unknown == usual
    assert {record.loss for record in others} == {None}


def test_one_of_ten_clients_does_not_set_what_all_evaluate() -> None:
    for lie in ({"accuracy": 0.0, "loss": 1e300}, {"accuracy": 1.0, "loss": math.inf}):
        told = [
            {"num-examples": 10, "accuracy": 0.9 + client / 100, "eval_loss": 0.1}
            for client in range(10)
        ]
        told[9] |= {"num-examples": 10**12, **lie}
        accuracy, loss = median_metrics(told)
        assert accuracy == pytest.approx(0.945, abs=0.01)
        assert loss == 0.1


def test_a_schedule_runs_over_the_rounds_it_is_told_of() -> None:
    watched = Watched(grid_of(app_of()))
    grid = FedSZGrid(watched, policy="schedule:first=std:16,last=std:1", rounds=ROUNDS)
    FedAvg(fraction_evaluate=1).start(grid, record_of(initial()), num_rounds=ROUNDS)

    trained = [c for c in watched.down[::CLIENTS] if "config" in c.config_records][::2]
    asked = [Request.decode(note_of(content)).settings.error_bound for content in trained]
    assert asked == ["std:16", "std:8", "std:4", "std:2", "std:1"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": "layers"}, "held-out set"),
        ({"policy": "brave"}, "no policy 'brave'"),
        ({"policy": "auto+layers"}, "held-out set"),
        ({"policy": "schedule:first=std:3,last=std:1"}, "needs the number of rounds"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"rounds": -1}, "rounds must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FedSZGrid(grid_of(app_of()), "std:1", **options)


def test_a_model_that_became_nan_ends_no_run() -> None:
    def edit(i: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        after = moved(arrays, i)
        after["fc.weight"][0, 0] = np.nan
        return after

    grid = FedSZGrid(grid_of(app_of(edit)), policy="auto")
    StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=2)
    assert len(grid.take_traffic().failures) == 2 * CLIENTS


def test_a_server_that_ends_its_rounds_keeps_nothing_of_them() -> None:
    base = Settings()
    controller = Controller("fixed", base, tolerance=0.5, rounds=ROUNDS)
    grid = FedSZGrid(grid_of(app_of()), policy=controller, rules="fleet")
    kept = []

    for number in range(ROUNDS):
        record = grid.end_round(accuracy=0.5)
        assert (record.round, record.replies) == (number, CLIENTS * (number > 0))
        StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=1)
        kept.append(len(grid._statistics.replies))

    assert kept == [CLIENTS] * ROUNDS
