"""Each message has one outcome, whatever the Grid and however the app asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedBuff, FedSZGrid, StreamingFedAvg
from fedsz.flower.wrapped_grid import WrappedGrid
from tests.federation import CLIENTS, app_of, around, grid_of, initial, moved, record_of
from tests.flower.faulty_grids import (
    FaultyGrid,
    error_first,
    for_another,
    in_its_own_name,
    never,
    superlink,
    twice,
)
from tests.links import Server


def trained(strategy: Any, grid: FedSZGrid, rounds: int = 3) -> Any:
    return strategy.start(
        grid=grid, initial_arrays=record_of(initial()), num_rounds=rounds, timeout=20
    )


def waiting(grid: FedSZGrid, rounds: int) -> int:
    """FedAvg, which waits for all; return how many updates have counted."""
    strategy, counted = FedAvg(fraction_evaluate=0), []
    strategy.train_metrics_aggr_fn = lambda contents, _: counted.extend(contents) or MetricRecord()
    trained(strategy, grid, rounds)
    return len(counted)


def streaming(grid: FedSZGrid, rounds: int) -> int:
    """StreamingFedAvg, which takes replies as they come."""
    strategy, counted = StreamingFedAvg(fraction_evaluate=0), []
    strategy.on_update = counted.append
    trained(strategy, grid, rounds)
    return len(counted)


def pushing(grid: FedSZGrid, rounds: int) -> int:
    """A strategy of an app's own, which pushes, and pulls until it has waited long enough."""
    strategy, model, counted = FedAvg(), record_of(initial()), 0
    for number in range(1, rounds + 1):
        asked = list(strategy.configure_train(number, model, ConfigRecord(), grid))
        missing, replies = set(grid.push_messages(asked)), []
        end = time.monotonic() + 20
        quiet = 0
        while missing and time.monotonic() < end and quiet < 50:
            here = list(grid.pull_messages(missing))
            replies += here
            missing -= {reply.metadata.reply_to_message_id for reply in here}
            quiet = 0 if here else quiet + 1
            if not here:
                time.sleep(0.01)
        good = [reply for reply in replies if not reply.has_error()]
        counted += len(good)
        averaged, _ = strategy.aggregate_train(number, good)
        model = averaged or model
    return counted


WAYS = {"waiting": waiting, "streaming": streaming, "pushing": pushing}


@contextmanager
def over_grpc(app: ClientApp) -> Iterator[Any]:
    server = Server()
    try:
        for i in range(CLIENTS):
            server.client(f"c{i}", app, node_config={"partition-id": i})
        yield server.grid
    finally:
        server.close()


@contextmanager
def on_superlink(app: ClientApp, *, over_http: bool) -> Iterator[Any]:
    with superlink(app, CLIENTS, over_http=over_http) as link:
        yield link.grid


ENGINES: dict[str, Callable[[ClientApp], Any]] = {
    "LocalGrid": lambda app: nullcontext(grid_of(app)),
    "InMemoryGrid": partial(on_superlink, over_http=False),
    "HttpGrid": partial(on_superlink, over_http=True),
    "push and pull": lambda app: nullcontext(FaultyGrid(grid_of(app))),
    "GrpcGrid": over_grpc,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_app_that_fails_is_counted_for_its_node(engine: str, way: str) -> None:
    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if client == 1:
            raise RuntimeError("not today")
        return moved(arrays, client)

    with ENGINES[engine](app_of(edit)) as inner:
        grid = FedSZGrid(inner, "std:1")
        records: list[Any] = []
        grid._statistics._on_round = records.append

        assert WAYS[way](grid, 2) == 2 * (CLIENTS - 1)
        grid._end_if_open()

    assert len(grid._requests) == 0
    failures = [failure for record in records for failure in record.failures]
    assert len(failures) == 2
    assert len({failure.client for failure in failures}) == 1
    assert all("not today" in failure.reason for failure in failures)


FAULTS: dict[str, tuple[Any, bool]] = {  # what a Grid does for a node, and whether that fails
    "in its own name": ({"answers": in_its_own_name}, True),
    "twice": ({"answers": twice}, False),
    "an error first": ({"answers": error_first}, True),
    "never": ({"answers": never}, True),
    "not taken, None": ({"named": [None]}, True),
    "not taken, empty": ({"named": [""]}, True),
    "not taken, left out": ({"named": []}, True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAULTS)
def test_faulty_answers_are_counted_for_who_was_asked(name: str, way: str) -> None:
    inner = grid_of(app_of())
    faulty = inner.get_node_ids()[1]
    does, fails = FAULTS[name]
    refuses = [faulty] if "named" in does else []
    answers = {faulty: does["answers"]} if "answers" in does else {}
    grid = FedSZGrid(FaultyGrid(inner, answers, refuses, does.get("named")), "std:1", rules="fleet")

    assert WAYS[way](grid, 2) == 2 * (CLIENTS - fails)

    counted = [failure.client for failure in grid.take_traffic().failures]
    if not (name == "never" and way == "pushing"):  # an app that gives up does not say so
        assert counted == ([str(faulty)] * 2 if fails else [])
        assert len(grid._requests) == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_reply_for_another_node_counts_for_who_was_asked(way: str) -> None:
    inner = grid_of(app_of())
    one, other, *_ = inner.get_node_ids()
    grid = FedSZGrid(FaultyGrid(inner, {one: for_another(other), other: for_another(one)}), "std:1")
    nodes: list[str] = []
    grid._statistics._on_round = lambda record: nodes.extend(
        client.node for client in record.clients
    )

    assert WAYS[way](grid, 3) == 3 * CLIENTS
    grid._end_if_open()

    assert sorted(nodes) == sorted(3 * [str(node) for node in inner.get_node_ids()])
    assert grid.take_traffic().failures == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("http", [False, True], ids=["InMemoryGrid", "HttpGrid"])
def test_flowers_own_grids_go_on_when_a_node_unregisters(http: bool, way: str) -> None:
    with superlink(app_of(), CLIENTS, over_http=http) as link:
        gone = next(iter(link.nodes))

        class Late(WrappedGrid):
            """A Grid whose list of nodes is of a moment ago."""

            def get_node_ids(self) -> list[int]:
                return list(link.nodes)

        grid = FedSZGrid(Late(link.grid), "std:1")
        link.unregister(gone)

        assert WAYS[way](grid, 2) == 2 * (CLIENTS - 1)

    assert [failure.client for failure in grid.take_traffic().failures] == [str(gone)] * 2


@pytest.mark.parametrize("answer", [in_its_own_name, error_first], ids=["gone", "an error first"])
@pytest.mark.parametrize("named", [[None], [""], []], ids=["None", "empty", "left out"])
def test_a_buffer_goes_on_without_nodes_that_vanish(answer: Any, named: list[Any]) -> None:
    inner = grid_of(app_of())
    gone, refused, *_ = inner.get_node_ids()
    grid = FedSZGrid(FaultyGrid(inner, {gone: answer}, refuses=[refused], named=named), "std:1")

    trained(FedBuff(fraction_evaluate=0, buffer=2), grid)

    traffic = grid.take_traffic()
    assert traffic.replies == 3 * 2
    assert {failure.client for failure in traffic.failures} == {str(gone), str(refused)}


def forgetful(rounds: set[int]) -> Any:
    """An app of which one client has lost what it kept, as each of these rounds begins."""

    def forget(client: int, message: Message, context: Context) -> None:
        number: Any = message.content["config"]["server-round"]
        if client == 1 and number in rounds:
            rounds.remove(number)
            context.state.clear()

    return around(app_of(), before=forget)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ["LocalGrid", "push and pull", "HttpGrid"])
def test_a_client_without_memory_is_helped_in_the_same_round(engine: str, way: str) -> None:
    rounds = {3, 4}
    with ENGINES[engine](forgetful(rounds)) as inner:
        grid = FedSZGrid(inner, "std:1", downlink="std:1")

        assert WAYS[way](grid, 5) == 5 * CLIENTS

    assert not rounds


def test_a_client_without_memory_is_helped_by_a_buffer() -> None:
    rounds = {2, 3}
    grid = FedSZGrid(FaultyGrid(grid_of(forgetful(rounds))), "std:1", downlink="std:1")

    trained(FedBuff(fraction_evaluate=0, buffer=CLIENTS), grid, rounds=4)

    assert (grid.take_traffic().replies, rounds) == (4 * CLIENTS, set())


def test_the_same_client_may_be_asked_twice() -> None:
    inner = grid_of(app_of())
    grid = FedSZGrid(inner, "std:1")
    (node, *_) = inner.get_node_ids()
    for number in (1, 2, 3):
        content = RecordDict(
            {"arrays": record_of(initial()), "config": ConfigRecord({"server-round": number})}
        )
        asked = [Message(content, node, MessageType.TRAIN) for _ in range(2)]

        replies = list(grid.send_and_receive(asked))

        assert [reply.has_error() for reply in replies] == [False, False]
        ids = [message.metadata.message_id for message in asked]
        assert sorted(reply.metadata.reply_to_message_id for reply in replies) == sorted(ids)
    assert len(grid._requests) == 0


def test_replies_nobody_pulls_are_not_kept_for_ever() -> None:
    """An app that goes on without slow clients asks for none of their replies later."""
    grid = FedSZGrid(FaultyGrid(grid_of(app_of())), "std:1")
    strategy = FedAvg()

    for number in range(1, 9):
        model = record_of({name: x + number for name, x in initial().items() if "fc" in name})
        grid.push_messages(strategy.configure_train(number, model, ConfigRecord(), grid))

    assert len(grid._requests) <= 2 * CLIENTS


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_a_run_that_only_evaluates_is_none_that_fails(strategy: type[FedAvg]) -> None:
    grid = FedSZGrid(grid_of(app_of()), rules="fleet")

    result = trained(strategy(fraction_train=0.0), grid, rounds=5)

    assert len(result.evaluate_metrics_clientapp) == 5
