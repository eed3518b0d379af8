"""Clients that are slow, fail or are too few: the quorum of a round, and deadlines.

Deadlines over gRPC with clients that keep silent, and their rules alone.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsz.errors import ConfigError, TooFewReplies
from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.liveness import MOST_MISSED, Deadlines, Quorum
from fedsz.training.federation import strategy_of
from fedsz.training.local_fleet import run_local
from fedsz.training.options import RunConfig
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.link_events import EventKind
from tests.federation import CLIENTS, app_of, around, grid_of, initial, record_of, to_arrays
from tests.links import LONG

if TYPE_CHECKING:
    from tests.links import Serve


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsz.flower.liveness.PAUSE", 0.0)


def failing(app: ClientApp, when: set[tuple[int, int]]) -> Any:
    """Return an app that fails in some rounds, of some clients, before it does anything."""

    def fail(client: int, message: Message, context: Context) -> None:
        if (message.content["config"]["server-round"], client) in when:
            raise RuntimeError("not today")

    return around(app, before=fail)


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(x, other[name]) for name, x in one.items())


BUFFERED = RunConfig(clients=4, clients_per_round=2, buffer=2)


def test_a_round_below_quorum_leaves_the_model() -> None:
    others = {(2, client) for client in range(1, CLIENTS)}
    grid = FedSZGrid(grid_of(failing(app_of(), others)), 1e-2)
    models: list[dict[str, np.ndarray]] = []

    StreamingFedAvg(fraction_evaluate=0, min_replies=2).start(
        grid,
        record_of(floats(initial())),
        num_rounds=2,
        evaluate_fn=lambda _, arrays: models.append(to_arrays(arrays)),
    )

    assert not equal(models[0], models[1])
    assert equal(models[1], models[2])


def floats(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x for name, x in arrays.items() if x.dtype.kind == "f" and x.size}


@pytest.mark.parametrize("rounds", [5, 50])  # the last of them have none after them
def test_three_rounds_below_quorum_end_the_run(rounds: int) -> None:
    """One that counts makes up for those before."""
    when = {(number, client) for number in (1, 3, 4, 5, 6) for client in range(2)}
    models: list[dict[str, np.ndarray]] = []
    strategy = StreamingFedAvg(fraction_evaluate=0, min_replies=CLIENTS - 1)

    with pytest.raises(TooFewReplies, match="3 rounds in a row do not count; the last got 2 of 3 "):
        strategy.start(
            FedSZGrid(grid_of(failing(app_of(), when))),
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
def test_evaluations_without_weight_end_no_run_and_updates_end_it_with_the_reason(
    strategy: Any,
) -> None:
    def run(kind: str) -> Any:
        def tell(_: int, message: Message, reply: Message) -> None:
            if message.metadata.message_type == kind:
                reply.content["metrics"] = MetricRecord({"num-examples": 0, "loss": 1.0})

        grid = FedSZGrid(grid_of(around(app_of(), after=tell)), 1e-2, rules="fleet")
        return strategy().start(grid, record_of(initial()), num_rounds=2)

    result = run("evaluate")
    assert not equal(to_arrays(result.arrays), initial())
    assert not result.evaluate_metrics_clientapp
    with pytest.raises(TooFewReplies, match="all 4 replies were refused: weight: it has none"):
        run("train")


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


NEVER = 1e6  # seconds; a test that waits so long fails
FLOOR = 1.0  # seconds, in place of five


@pytest.fixture(autouse=True)
def low_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsz.flower.liveness.FLOOR", FLOOR)


def quick_app(go: threading.Event | None = None) -> ClientApp:
    """An app that does nothing but reply, once ``go`` is set."""

    def edit(_: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert go is None or go.wait(LONG)
        return {name: x + 1 for name, x in arrays.items()}

    return app_of(edit, examples=lambda _: 1)


def rounds(grid: GrpcGrid, number: int, **options: Any) -> FedSZGrid:
    wrapped = FedSZGrid(grid, "std:1", rules="fleet", **options)
    model = ArrayRecord([np.zeros(50, np.float32)])
    strategy = StreamingFedAvg(fraction_evaluate=0)
    strategy.start(wrapped, model, num_rounds=number, timeout=NEVER)
    return wrapped


def test_two_silent_clients_of_eight_do_not_hold_up_a_round(serve: Serve) -> None:
    server, go = serve(), threading.Event()
    for i in range(6):
        server.client(f"c{i}", quick_app())
    silent = [server.client(f"silent{i}", quick_app(go)) for i in range(2)]

    # However slow the machine, nobody is given up before all the others have replied.
    traffic = rounds(server.grid, 2, deadlines=Deadlines(quorum=6)).take_traffic()

    assert traffic.replies == 2 * 6
    assert {failure.client for failure in traffic.failures} == {"silent0", "silent1"}
    assert all(f.reason.startswith("no reply from client 'silent") for f in traffic.failures)
    go.set()
    for client in silent:
        event = client.events.wait(EventKind.FAILED)
        assert event.detail == "too late, the server goes on without this reply"


class Clock:
    """Time as a test sets it; replies take as long as it says."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("options", "seconds", "expected"),
    [
        # Two wait until just before the deadline, and do not move it.
        ({}, [1.0, 1.0, 1.0, 1.0, 2.9, 2.9], 3.0),
        # When most are slow, nobody is too slow.
        ({}, [1.0, 1.0, 9.0, 9.0, 20.0], 27.0),
        # A minority decides nothing, nor do fewer than a quorum.
        ({"factor": 2.0}, [1.0, 9.0, 9.0], 18.0),
        ({"quorum": 5}, [1.0, 1.0, 1.0, 9.0, 9.0], 27.0),
        ({"factor": math.inf}, [1.0, 1.0, 1.0, 99.0], math.inf),
        ({}, [0.1, 0.1, 0.1, 0.1, 2.0], FLOOR),
    ],
)
def test_how_long_replies_are_awaited(
    options: dict[str, Any],
    seconds: list[float],
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("fedsz.flower.liveness.time", clock)
    model = ArrayRecord([np.zeros(3, np.float32)])
    asked = [Message(RecordDict({"m": model}), i, "train") for i in range(len(seconds))]
    for i, message in enumerate(asked):
        message.metadata.__dict__["_message_id"] = str(i)
    deadline = Deadlines(**options).begin(asked, None)
    for message, took in sorted(zip(asked, seconds, strict=True), key=lambda one: one[1]):
        late = took >= deadline._limit
        clock.now = min(took, deadline._limit)
        said: Any = Error(0, "late") if late else RecordDict()
        deadline.took(Message(said, reply_to=message))
    assert deadline._limit == pytest.approx(expected)


@pytest.mark.parametrize(("factor", "quorum"), [(0.5, 1), (math.nan, 1), (2.0, 0)])
def test_numbers_out_of_range_are_refused(factor: float, quorum: int) -> None:
    with pytest.raises(ConfigError, match=r"a deadline's (factor|quorum) must be at least 1"):
        Deadlines(factor, quorum)
