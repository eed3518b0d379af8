"""Clients that train by steps which a test can add up, and strategies that note what they send."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg

Arrays = dict[str, np.ndarray]
BOUND = "staggered:step:0.5"
FINE = "abs:1e-8"  # of updates, so that all of them arrives
IN_BASIS = f"feedback>eigen>uniform@{FINE}"
ROUNDS = 6


class Fleet:
    """Clients that train by steps which a test can add up, and note what they train from."""

    def __init__(
        self, clients: int, weights: Callable[[int], int] = lambda _: 1, dtype: type = np.float32
    ) -> None:
        self.app, self.clients = ClientApp(mods=[FedSZMod()]), clients
        self.begun: dict[int, list[np.ndarray]] = {i: [] for i in range(clients)}
        self.steps: list[list[np.ndarray]] = []
        self.weights = weights
        turns = dict.fromkeys(range(clients), 0)

        @self.app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            metrics = MetricRecord({"num-examples": 1, "eval_loss": 1.0})
            return Message(RecordDict({"m": metrics}), reply_to=message)

        @self.app.train()
        def train(message: Message, context: Context) -> Message:
            client = int(context.node_config["partition-id"])
            (x,) = message.content["arrays"].to_numpy_ndarrays()
            turn = turns[client]
            turns[client] += 1
            self.begun[client].append(x)
            content = RecordDict({
                "arrays": ArrayRecord([x.astype(dtype) + self.step(turn, client)]),
                "metrics": MetricRecord({"num-examples": weights(client)}),
            })  # fmt: skip
            return Message(content, reply_to=message)

    def step(self, turn: int, client: int) -> np.ndarray:
        common = np.random.default_rng([turn, 99]).normal(0, 1e-3, (60, 60))
        own = np.random.default_rng([turn, client]).normal(0, 1e-3, (60, 60))
        return (common + own).astype(np.float32)

    def grid(self) -> LocalGrid:
        nodes = [{"partition-id": i, "num-partitions": self.clients} for i in range(self.clients)]
        return LocalGrid(self.app, nodes)

    def mean_step(self, turn: int) -> np.ndarray:
        weights = [self.weights(i) for i in range(self.clients)]
        steps = [self.step(turn, i).astype(np.float64) for i in range(self.clients)]
        return np.average(steps, axis=0, weights=weights)


class Watched(FedAvg):
    """Flower's FedAvg, noting what it sends."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.sent: list[np.ndarray] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.sent.append(arrays.to_numpy_ndarrays()[0])
        return super().configure_train(server_round, arrays, config, grid)


class WatchedStream(StreamingFedAvg, Watched):
    """StreamingFedAvg, likewise."""


def first() -> np.ndarray:
    return np.random.default_rng(7).normal(0, 0.05, (60, 60)).astype(np.float32)


def grid_of(fleet: Fleet, **how: Any) -> FedSZGrid:
    named = {"downlink": BOUND, "update": "delta", **how}
    return FedSZGrid(fleet.grid(), FINE, **named)


def rounds(
    grid: FedSZGrid, made: Watched, model: ArrayRecord, first: int, last: int
) -> ArrayRecord:
    """Train from one round to another, as Flower's loop does, and test after each on two nodes."""
    for number in range(first, last):
        asked = list(made.configure_train(number + 1, model, ConfigRecord(), grid))
        model = made.aggregate_train(number + 1, grid.send_and_receive(asked))[0] or model
        content = RecordDict({"arrays": model, "config": ConfigRecord({})})
        nodes = sorted(grid.get_node_ids())[:2]
        tested = [make_message(content, node, "evaluate") for node in nodes]
        grid.send_and_receive(tested)
    return model


def make_message(content: RecordDict, node: int, kind: str) -> Message:
    return Message(content, dst_node_id=node, message_type=kind)
