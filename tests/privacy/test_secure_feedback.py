"""Clients of secure sums: nothing of their steps is lost or sent twice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message

from fedsz.core.feedback import RESIDUAL, by_tensor
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, SecureMember, SecureSum, StreamingFedAvg
from fedsz.flower.store import RecordStore
from tests.federation import app_of, around, record_of, to_arrays

CLIENTS, ROUNDS = 5, 5
Arrays = dict[str, np.ndarray]


def model() -> Arrays:
    rng = np.random.default_rng(3)
    shapes = {"conv.weight": (8, 6, 3, 3), "fc.weight": (20, 30), "fc.bias": (20,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("options", [{}, {"downlink": "exact"}, {"downlink": "std:1"}], ids=str)
@pytest.mark.parametrize("bits", [16, 5])
def test_sums_and_residuals_are_all_steps(bits: int, options: dict[str, Any]) -> None:
    """Also where clients hold a coarser model than the server's, which steps go onto."""
    contexts: dict[int, Context] = {}
    steps: list[Arrays] = []
    models: list[Arrays] = []

    def note(client: int, _: Message, context: Context) -> None:
        contexts[client] = context

    def train(client: int, x: Arrays) -> Arrays:
        rng = np.random.default_rng((client, len(steps)))
        after = {k: a + rng.normal(0, 0.05, a.shape).astype(a.dtype) for k, a in x.items()}
        steps.append({k: after[k] - a.astype(float) for k, a in x.items()})
        return after

    def keep(_: int, arrays: ArrayRecord) -> None:
        models.append(to_arrays(arrays))

    mods = [FedSZMod(secure=SecureMember())]
    app = around(app_of(train, mods=mods, examples=lambda _: 1), before=note)
    inner = LocalGrid(app, [{"partition-id": i} for i in range(CLIENTS)])
    grid = FedSZGrid(inner, secure=SecureSum(bits=bits), **options)
    strategy = StreamingFedAvg(fraction_evaluate=0, min_train_nodes=CLIENTS)
    strategy.start(grid, record_of(model()), ROUNDS, evaluate_fn=keep)

    assert len(steps) == CLIENTS * ROUNDS
    stores = [RecordStore(context.state) for context in contexts.values()]
    kept = [by_tensor(store.memory("arrays")[0]) for store in stores]
    for name in model():
        went = sum(CLIENTS * (b[name].astype(float) - a[name]) for a, b in pairwise(models))
        left = sum(own[name][RESIDUAL].astype(float) for own in kept if name in own)
        np.testing.assert_allclose(went + left, sum(step[name] for step in steps), atol=2e-4)
