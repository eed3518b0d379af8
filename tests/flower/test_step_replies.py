"""Apps that reply with what training has moved, in place of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg

from fedsz.core.feedback import RESIDUAL, by_tensor
from fedsz.core.reference import Reference, is_step
from fedsz.flower import FedSZGrid, LocalGrid
from fedsz.flower.store import RecordStore
from tests.federation import app_of, around, record_of, to_arrays
from tests.small_model import model

STEP = 0.01  # its deviation; that of the model is 1
ROUNDS = 8
FIXED: dict[str, Any] = {"error_bound": "step:2", "threshold": 0, "downlink": "step:0.5"}
Arrays = dict[str, np.ndarray]


@pytest.mark.parametrize("options", [{}, FIXED], ids=str)
def test_none_is_lost_and_each_arrives_within_bounds_of_its_own_scale(
    options: dict[str, Any],
) -> None:
    contexts: dict[int, Context] = {}
    steps: list[Arrays] = []
    arrived: list[Arrays] = []

    def note(client: int, _: Message, context: Context) -> None:
        contexts[client] = context

    def train(_: int, x: Arrays) -> Arrays:
        rng = np.random.default_rng(len(steps))
        steps.append({k: rng.normal(0, STEP, a.shape).astype(a.dtype) for k, a in x.items()})
        return steps[-1]

    app = around(app_of(train), before=note)
    grid = FedSZGrid(LocalGrid(app, [{"partition-id": 0}]), **options)
    strategy, sent = FedAvg(min_train_nodes=1, min_available_nodes=1), model()
    for number in range(1, ROUNDS + 1):
        asked = strategy.configure_train(number, record_of(sent), ConfigRecord(), grid)
        (reply,) = grid.send_and_receive(list(asked))
        arrived.append(to_arrays(reply.content.array_records["arrays"]))
        sent = {k: x + arrived[-1][k] for k, x in sent.items()}

    kept = by_tensor(RecordStore(contexts[0].state).memory("arrays")[0])
    for name in model():
        residual = kept[name][RESIDUAL]
        came, trained = (sum(y[name].astype(float) for y in all_) for all_ in (arrived, steps))
        np.testing.assert_allclose(came + residual, trained, atol=1e-5)
        assert STEP / 2 < np.abs(residual).max() < 4 * STEP


def test_a_model_is_no_step_and_a_step_is_no_model() -> None:
    rng = np.random.default_rng(1)
    start = Reference({**model(), "counter": np.arange(1000)})
    moves = {k: rng.normal(0, 0.3, x.shape).astype(x.dtype) for k, x in model().items()}
    moved = {k: x + moves[k] for k, x in model().items()}

    assert not is_step(moved, start)
    assert not is_step({k: 0.5 * x for k, x in moved.items()}, start)
    assert is_step({**moves, "counter": np.arange(1000)}, start)
    assert not is_step(moves, Reference({k: np.zeros_like(x) for k, x in moves.items()}))
    assert not is_step({"fc.bias": np.full(40, np.nan, np.float32)}, start)
    assert not is_step({}, start)
