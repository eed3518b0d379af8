"""Rounds that count and rounds that do not: quorum, what a run does below it, what goes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
from tests.federation import CLIENTS, app_of, grid_of, initial, record_of, to_arrays

App = Callable[[Message, Context], Message]


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


def failing(app: ClientApp, when: set[tuple[int, int]]) -> App:
    """Return an app that fails in some rounds, of some clients, before it does anything."""

    def answer(message: Message, context: Context) -> Message:
        number: Any = message.content["config"]["server-round"]
        if (number, int(context.node_config["partition-id"])) in when:
            raise RuntimeError("not today")
        return app(message, context)

    return answer


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


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_the_last_rounds_count_too(strategy: type[FedAvg]) -> None:
    failures = {(number, client) for number in range(2, 9) for client in range(CLIENTS)}
    grid = FedSZGrid(grid_of(failing(app_of(), failures)), 1e-2, rules="fleet")

    with pytest.raises(TooFewReplies, match="3 rounds in a row do not count"):
        strategy(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=4)


def test_a_round_below_quorum_leaves_the_model_and_three_end_the_run() -> None:
    failures = {(number, client) for number in range(1, 9) for client in range(2)}
    models: list[dict[str, np.ndarray]] = []
    strategy = StreamingFedAvg(fraction_evaluate=0, min_replies=CLIENTS - 1)

    with pytest.raises(TooFewReplies, match="3 rounds in a row do not count; the last got 2 of 3 "):
        strategy.start(
            FedSZGrid(grid_of(failing(app_of(), failures))),
            record_of(initial()),
            num_rounds=50,
            evaluate_fn=lambda _, arrays: models.append(to_arrays(arrays)),
        )

    assert len(models) == 1 + MOST_MISSED
    assert all(equal(initial(), model) for model in models)


def test_a_good_round_makes_up_for_those_before() -> None:
    failures = {(number, client) for number in (1, 2, 4) for client in range(CLIENTS)}

    assert not equal(initial(), trained(FedSZGrid(grid_of(failing(app_of(), failures))), 4))


def without_weight(when: set[int]) -> App:
    """Return an app whose replies weigh nothing in some rounds."""
    app = app_of()

    def answer(message: Message, context: Context) -> Message:
        number: Any = message.content["config"]["server-round"]
        reply = app(message, context)
        if number in when:
            reply.content["metrics"] = MetricRecord({**reply.content["metrics"], "num-examples": 0})
        return reply

    return answer


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


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_rounds_without_weight_end_no_run(strategy: Any) -> None:
    models: list[dict[str, np.ndarray]] = []

    strategy(fraction_evaluate=0).start(
        FedSZGrid(grid_of(without_weight({2})), 1e-2, rules="fleet"),
        record_of(initial()),
        num_rounds=2,
        evaluate_fn=lambda _, arrays: models.append(to_arrays(arrays)),
    )

    assert equal(models[1], models[2])


def test_an_evaluation_without_weight_ends_no_run() -> None:
    app = app_of()

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "evaluate":
            reply.content["metrics"] = MetricRecord({"num-examples": 0, "loss": 1.0})
        return reply

    grid = FedSZGrid(grid_of(answer), 1e-2, rules="fleet")
    result = FedAvg().start(grid, record_of(initial()), num_rounds=2)

    assert not equal(to_arrays(result.arrays), initial())
    assert result.evaluate_metrics_clientapp == {}


def test_no_round_needs_no_reply() -> None:
    with pytest.raises(ConfigError, match="min_replies must be at least 1, got 0"):
        Quorum(0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"clients": 4, "min_replies": 5}, "4 clients a round cannot give --min-replies 5"),
        (
            {"clients": 4, "clients_per_round": 2, "min_replies": 3},
            "2 clients a round cannot give --min-replies 3",
        ),
        ({"clients": 4, "clients_per_round": 9}, "--clients-per-round 9 is more than 4 clients"),
    ],
)
def test_a_run_of_too_few_clients_does_not_begin(options: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        next(run_local(RunConfig(**options)))


def test_a_buffer_asks_whoever_is_free() -> None:
    with pytest.raises(ConfigError, match="--clients-per-round cannot be used with --buffer"):
        strategy_of(RunConfig(clients=4, clients_per_round=2, buffer=2))
