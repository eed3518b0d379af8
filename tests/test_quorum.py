"""Rounds that count and rounds that do not: quorum, what a run does below it, what goes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg, Krum

from fedsz.errors import ConfigError, TooFewReplies
from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.quorum import MOST_MISSED, Quorum
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.flower_compat import ErrorCode, make_message
from fedsz.training.federation import strategy_of
from fedsz.training.local_fleet import run_local
from fedsz.training.options import RunConfig
from tests.federation import CLIENTS, app_of, around, grid_of, initial, record_of, to_arrays


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsz.flower.quorum.PAUSE", 0.0)


class Unheard(WrappedGrid):
    """Loses replies on the way here, after their senders have done all their work."""

    def __init__(self, inner: Any, lost: set[tuple[int, int]]) -> None:
        super().__init__(inner)
        self._lost, self._round = lost, 0

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        pushed = list(messages)
        self._round += bool(pushed)
        replies = super().stream_replies(pushed, timeout=timeout)
        for client, reply in enumerate(replies):
            if (self._round, client) in self._lost:
                error = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "no reply within 1 s")
                yield make_message(reply.metadata, error=error)
            else:
                yield reply


def failing(app: ClientApp, when: set[tuple[int, int]]) -> Any:
    """Return an app that fails in some rounds, of some clients, before it does anything."""

    def fail(client: int, message: Message, context: Context) -> None:
        if (message.content["config"]["server-round"], client) in when:
            raise RuntimeError("not today")

    return around(app, before=fail)


def trained(grid: Any, rounds: int = 3, **options: Any) -> dict[str, np.ndarray]:
    strategy = StreamingFedAvg(fraction_evaluate=0, **options)
    result = strategy.start(grid, record_of(initial()), num_rounds=rounds)
    return to_arrays(result.arrays)


def in_order(grid: Any) -> Any:
    """Return a grid whose strategies ask its nodes in one order: sums are equal to the bit."""

    class Sorted(WrappedGrid):
        def stream_replies(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            places = {node: i for i, node in enumerate(self.get_node_ids())}
            ordered = sorted(messages, key=lambda m: places[m.metadata.dst_node_id])
            return super().stream_replies(ordered, timeout=timeout)

    return Sorted(grid)


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(x, other[name]) for name, x in one.items())


def test_a_reply_that_was_lost_leaves_its_client_as_if_it_had_not_been_asked() -> None:
    lost = {(2, 1), (3, 1), (3, 2)}
    late = FedSZGrid(Unheard(in_order(grid_of(app_of())), lost), "std:2")
    absent = FedSZGrid(in_order(grid_of(failing(app_of(), lost))), "std:2")

    assert equal(trained(late, 5), trained(absent, 5))


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_what_a_round_below_quorum_took_goes_back(strategy: type[FedAvg]) -> None:
    others = {(2, client) for client in range(1, CLIENTS)}
    nobody = {(2, client) for client in range(CLIENTS)}
    streams = strategy is StreamingFedAvg
    models, reasons = [], []
    for when in (others, nobody):
        inner = in_order(grid_of(failing(app_of(), when)))
        grid = FedSZGrid(inner, "std:2", min_replies=None if streams else 2)
        chosen = strategy(fraction_evaluate=0, **({"min_replies": 2} if streams else {}))
        result = chosen.start(grid, record_of(initial()), num_rounds=4)
        models.append(to_arrays(result.arrays))
        reasons.append([failure.reason for failure in grid.take_traffic().failures])

    assert equal(*models)
    short = "quorum: the round does not count: 1 of 2 usable replies that it needs"
    assert reasons[0].count(short) == 1


BUFFERED = RunConfig(clients=4, clients_per_round=2, buffer=2)
FLOWERS = [FedAvg, FedAvgM, FedAdam, FedMedian, FedTrimmedAvg, Krum, StreamingFedAvg]


@pytest.mark.parametrize("strategy", FLOWERS)
def test_a_round_below_quorum_leaves_the_model_of_flowers_strategies(strategy: Any) -> None:
    others = {(2, client) for client in range(1, CLIENTS)}
    grid = FedSZGrid(grid_of(failing(app_of(), others)), 1e-2, min_replies=2)
    named = {"min_replies": 2} if strategy is StreamingFedAvg else {}
    models: list[dict[str, np.ndarray]] = []

    strategy(fraction_evaluate=0, **named).start(
        grid,
        record_of(floats(initial())),
        num_rounds=2,
        evaluate_fn=lambda _, arrays: models.append(to_arrays(arrays)),
    )

    assert not equal(models[0], models[1])
    assert equal(models[1], models[2])
    kinds = [failure.kind for failure in grid.take_traffic().failures]
    assert sorted(kinds) == ["failed"] * (CLIENTS - 1) + ["quorum"]


def floats(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x for name, x in arrays.items() if x.dtype.kind == "f" and x.size}


@pytest.mark.parametrize("rounds", [5, 50])  # the last of them have none after them
@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_three_rounds_below_quorum_end_the_run(strategy: Any, rounds: int) -> None:
    """One that counts makes up for those before."""
    when = {(number, client) for number in (1, 3, 4, 5, 6) for client in range(2)}
    models: list[dict[str, np.ndarray]] = []
    streams = strategy is StreamingFedAvg
    grid = FedSZGrid(grid_of(failing(app_of(), when)), min_replies=None if streams else CLIENTS - 1)
    named = {"min_replies": CLIENTS - 1} if streams else {}

    with pytest.raises(TooFewReplies, match="3 rounds in a row do not count; the last got 2 of 3 "):
        strategy(fraction_evaluate=0, **named).start(
            grid,
            record_of(initial()),
            num_rounds=rounds,
            evaluate_fn=lambda _, arrays: models.append(to_arrays(arrays)),
        )

    start, first, *others = models
    assert equal(start, first)
    assert not equal(first, others[0])
    assert all(equal(others[0], model) for model in others[1:])
    assert len(others) <= MOST_MISSED + 1


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_replies_without_weight_end_no_run(strategy: Any, kind: str) -> None:
    def tell(_: int, message: Message, reply: Message) -> None:
        if message.metadata.message_type == kind:
            reply.content["metrics"] = MetricRecord({"num-examples": 0, "loss": 1.0})

    grid = FedSZGrid(grid_of(around(app_of(), after=tell)), 1e-2, rules="fleet")
    result = strategy().start(grid, record_of(initial()), num_rounds=2)

    arrays = to_arrays(result.arrays) or initial()  # Flower's result of no round is empty
    assert equal(arrays, initial()) == (kind == "train")
    assert result.evaluate_metrics_clientapp.keys() == ({1, 2} if kind == "train" else set())


def begin(**options: int) -> None:
    next(run_local(RunConfig(clients=4, **options)))


@pytest.mark.parametrize(
    ("begins", "says"),
    [
        (partial(Quorum, 0), "min_replies must be at least 1, got 0"),
        (partial(begin, min_replies=5), "4 clients a round cannot give --min-replies 5"),
        (partial(begin, min_replies=3, clients_per_round=2), "2 clients a round cannot give --min"),
        (partial(begin, clients_per_round=9), "--clients-per-round 9 is more than 4 clients"),
        (partial(strategy_of, BUFFERED), "--clients-per-round cannot be used with --buffer"),
    ],
)
def test_what_too_few_clients_do_does_not_begin(begins: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        begins()
