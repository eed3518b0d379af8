"""Replies that never come: what clients hold back goes neither lost with them, nor twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedSZGrid, LocalGrid
from tests.eigen_fleet import model
from tests.federation import app_of, record_of, to_arrays

CLIENTS, ROUNDS = 4, 14
NAME = "fc.weight"
Arrays = dict[str, np.ndarray]


class Fleet:
    """Clients whose replies may be lost, once they have kept what they leave out.

    Attributes:
        total: of each client, what its steps that have counted, less what has arrived of them, are.
        lost: who has replied in vain since the last reply that came.
    """

    def __init__(self, lost: float, **named: Any) -> None:
        self.contexts: dict[int, Context] = {}
        self.total = {i: np.zeros(model()[NAME].shape) for i in range(CLIENTS)}
        self.lost: set[int] = set()
        self._steps: dict[int, np.ndarray] = {}
        self._held: dict[int, np.ndarray] = {}
        self._chance, self._rng = lost, np.random.default_rng(2)
        app = app_of(self._train, examples=lambda _: 1)

        def answer(message: Message, context: Context) -> Message:
            client = int(context.node_config["partition-id"])
            self.contexts[client] = context
            reply: Message = app(message, context)
            if message.metadata.message_type == "train" and self._rng.random() < self._chance:
                self.lost.add(client)
                raise ConnectionError("the reply is lost")
            return reply

        self.inner = LocalGrid(answer, [{"partition-id": i} for i in range(CLIENTS)])
        self.grid, self.round, self.model = FedSZGrid(self.inner, **named), 0, record_of(model())

    def _train(self, client: int, x: Arrays) -> Arrays:
        record = self.contexts[client].state["fedsz.model.arrays"]
        assert isinstance(record, ArrayRecord)
        self._held[client] = to_arrays(record)[NAME]
        after = {k: (a + self._rng.normal(0, 0.05, a.shape)).astype(a.dtype) for k, a in x.items()}
        self._steps[client] = after[NAME] - x[NAME].astype(float)
        return after

    def run(self, rounds: int, *, tests: bool) -> None:
        strategy = FedAvg(fraction_evaluate=float(tests))
        of = {}
        for _ in range(rounds):
            self.round += 1
            asked = strategy.configure_train(self.round, self.model, ConfigRecord(), self.grid)
            replies = list(self.grid.send_and_receive(list(asked)))
            of = {context.node_id: i for i, context in self.contexts.items()}
            for reply in (reply for reply in replies if not reply.has_error()):
                client = of[reply.metadata.src_node_id]
                came = to_arrays(reply.content.array_records["arrays"])[NAME]
                self.total[client] += self._steps[client] - (came - self._base(client))
                self.lost.discard(client)
            averaged, _ = strategy.aggregate_train(self.round, replies)
            self.model = averaged or self.model
            if tests:
                asked = strategy.configure_evaluate(
                    self.round, self.model, ConfigRecord(), self.grid
                )
                self.grid.send_and_receive(list(asked))

    def _base(self, client: int) -> np.ndarray:
        """What a client's step counts from: what all hold, or once they do not, what was sent."""
        sent = to_arrays(self.model)[NAME].astype(float)
        first, *others = self._held.values()
        if all(np.array_equal(first, other) for other in others):
            self._left, self._parted = sent - first, 0
            return first.astype(float)
        self._parted = self._parted or self.round
        return sent + self._left * (self.round == self._parted)

    def left_of(self, client: int) -> np.ndarray:
        before = "fedsz.before." if client in self.lost else ""  # which it will go back to
        record = self.contexts[client].state[f"{before}fedsz.residual.arrays"]
        assert isinstance(record, ArrayRecord)
        return to_arrays(record)[NAME]


@pytest.mark.parametrize("tests", [False, True])
def test_what_is_held_back_goes_with_the_next_reply_that_comes(*, tests: bool) -> None:
    """The model of a lost reply's message is not what the server says that the client holds."""
    fleet = Fleet(lost=0.3)
    fleet.run(ROUNDS, tests=tests)

    assert set(range(CLIENTS)) - fleet.lost
    for client in range(CLIENTS):
        left = fleet.left_of(client)
        np.testing.assert_allclose(left, fleet.total[client], atol=1e-5)
        assert np.abs(left).max() > 0.01


def test_what_is_of_rounds_that_the_server_has_lost_is_forgotten() -> None:
    named: dict[str, Any] = {"error_bound": "step:2", "downlink": "step:0.5", "threshold": 0}
    fleet = Fleet(lost=0.0, update="delta+ef", **named)
    fleet.run(2, tests=False)
    fleet.grid.end_round()
    state, was = fleet.grid.state(), fleet.model
    fleet.run(2, tests=False)
    of_lost_rounds = [fleet.left_of(client) for client in range(CLIENTS)]
    assert min(np.abs(left).max() for left in of_lost_rounds) > 0.01

    fleet.grid, fleet.model, fleet.round = (
        FedSZGrid(fleet.inner, update="delta+ef", **named),
        was,
        2,
    )
    fleet.grid.restore(state)
    fleet.total = {client: np.zeros_like(x) for client, x in fleet.total.items()}
    fleet.run(1, tests=False)

    for client in range(CLIENTS):
        np.testing.assert_allclose(fleet.left_of(client), fleet.total[client], atol=1e-5)
