"""What clients of secure sums begin with, and that nothing of their steps is lost or sent twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message

from fedsz.flower import (
    FedSZGrid,
    FedSZMod,
    LocalGrid,
    PrivateFedAvg,
    SecureMember,
    SecureSum,
    StreamingFedAvg,
)
from tests.eigen_fleet import model
from tests.federation import app_of, around, record_of, to_arrays

CLIENTS, ROUNDS = 5, 5
Arrays = dict[str, np.ndarray]


class Fleet:
    """Clients that train at random.

    Attributes:
        held, begun: by client, in turn: the model that it was sent, and what its app began with.
        steps: likewise, how far it went from there.
        tested: likewise, whether it has tested the model that it holds.
        means: by round, the mean that the server has taken.
    """

    def __init__(self, secure: SecureSum, **options: Any) -> None:
        self.contexts: dict[int, Context] = {}
        self.held: dict[int, list[Arrays]] = {i: [] for i in range(CLIENTS)}
        self.begun: dict[int, list[Arrays]] = {i: [] for i in range(CLIENTS)}
        self.steps: dict[int, list[Arrays]] = {i: [] for i in range(CLIENTS)}
        self.tested: list[bool] = []
        self.means: list[Arrays] = []

        def note(client: int, _: Message, context: Context) -> None:
            self.contexts[client] = context

        def watch(message: Message, context: Context, call_next: Any) -> Message:
            if message.metadata.message_type == "evaluate":
                (record,) = message.content.array_records.values()
                client = int(context.node_config["partition-id"])
                self.tested.append(same(to_arrays(record), self.model_of(client)))
            reply: Message = call_next(message, context)
            return reply

        def train(client: int, x: Arrays) -> Arrays:
            rng = np.random.default_rng((client, len(self.begun[client])))
            after = {k: a + rng.normal(0, 0.05, a.shape).astype(a.dtype) for k, a in x.items()}
            self.held[client].append(self.model_of(client))
            self.begun[client].append(x)
            self.steps[client].append({k: after[k] - a.astype(float) for k, a in x.items()})
            return after

        mods = [FedSZMod(secure=SecureMember()), watch]
        app = around(app_of(train, mods=mods, examples=lambda _: 1), before=note)
        inner = LocalGrid(app, [{"partition-id": i} for i in range(CLIENTS)])
        self.grid = FedSZGrid(inner, secure=secure, **options)

    def model_of(self, client: int) -> Arrays:
        record = self.contexts[client].state["fedsz.model.arrays"]
        assert isinstance(record, ArrayRecord)
        return to_arrays(record)

    def run(self, strategy: StreamingFedAvg) -> None:
        def keep(_: int, arrays: ArrayRecord) -> None:
            self.means.append(to_arrays(arrays))

        strategy.start(self.grid, record_of(model()), ROUNDS, evaluate_fn=keep)
        del self.means[0]  # the model before any training

    def ahead(self, turn: int) -> float:
        """The most that an element is ahead of the model as a round begins."""
        both = [(self.begun[i][turn], self.held[i][turn]) for i in range(CLIENTS)]
        return max(
            float(np.abs(x - held[k]).max()) for begun, held in both for k, x in begun.items()
        )


def same(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(x, other[k]) for k, x in one.items())


@pytest.mark.parametrize(
    ("secure", "ahead"),
    [
        (SecureSum(bits=16), False),
        (SecureSum(bits=8, share=0.5), False),
        (SecureSum(bits=0.8), True),  # as its plan says
    ],
)
def test_sums_and_what_stays_behind_are_all_steps(secure: SecureSum, *, ahead: bool) -> None:
    fleet = Fleet(secure)
    fleet.run(StreamingFedAvg(fraction_evaluate=1.0, min_train_nodes=CLIENTS))

    assert [fleet.ahead(turn) > 0.02 for turn in range(1, ROUNDS)] == (ROUNDS - 1) * [ahead]
    assert fleet.tested == [True] * CLIENTS * ROUNDS
    residuals = []
    for context in fleet.contexts.values():
        record = context.state["fedsz.residual.arrays"]
        assert isinstance(record, ArrayRecord)
        residuals.append(to_arrays(record))
    for name, x in model().items():
        steps = sum(step[name] for own in fleet.steps.values() for step in own)
        went = sum(
            CLIENTS * (mean[name].astype(float) - held[name])
            for mean, held in zip(fleet.means, fleet.held[0], strict=True)
        )
        left = sum(own[name].reshape(x.shape).astype(float) for own in residuals)
        np.testing.assert_allclose(went + left, steps, atol=1e-4)


@pytest.mark.parametrize(("at", "bits"), [("sum", 16), ("client", 16), ("client", 0.8)])
def test_clients_that_add_noise_begin_with_the_model(at: str, bits: float) -> None:
    fleet = Fleet(SecureSum(bits=bits))
    plan: dict[str, Any] = {"epsilon": 8, "delta": 1e-5, "rounds": ROUNDS, "clip": 1.0, "at": at}
    fleet.run(PrivateFedAvg(fraction_evaluate=0, min_available_nodes=CLIENTS, **plan))

    assert [fleet.ahead(turn) for turn in range(ROUNDS)] == ROUNDS * [0]
