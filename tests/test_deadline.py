"""Deadlines from recent rounds: over gRPC with clients that keep silent, and their rules alone."""

from __future__ import annotations

import math
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.deadline import Deadlines
from fedsz.transport.events import EventKind
from fedsz.transport.grpc_grid import GrpcGrid
from tests.federation import app_of
from tests.links import LONG

if TYPE_CHECKING:
    from tests.links import Serve, Spawn

NEVER = 1e6  # seconds; a test that waits so long fails
FLOOR = 1.0  # seconds, in place of five
LOW_FLOOR = 0.1  # where nobody may be given up, however late


@pytest.fixture(autouse=True)
def low_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsz.flower.deadline.FLOOR", FLOOR)


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


def test_a_stopped_process_does_not_hold_up_a_round(serve: Serve, spawn: Spawn) -> None:
    server = serve()
    child = spawn(server.address, 200, "stopped")
    server.events.wait(EventKind.JOINED, "stopped")
    for i in range(2):
        server.client(f"c{i}", quick_app())
    child.process.send_signal(signal.SIGSTOP)

    traffic = rounds(server.grid, 2, deadlines=Deadlines(quorum=2)).take_traffic()
    child.process.send_signal(signal.SIGCONT)

    assert traffic.replies == 2 * 2
    assert {failure.client for failure in traffic.failures} == {"stopped"}
    rounds(server.grid, 1, deadlines=Deadlines(quorum=3))
    server.events.wait(EventKind.RECEIVED, "stopped")  # it is asked as before


def test_a_slow_client_is_awaited(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsz.flower.deadline.FLOOR", LOW_FLOOR)
    server, go = serve(), threading.Event()
    for name, app in (("c0", quick_app()), ("c1", quick_app()), ("slow", quick_app(go))):
        server.client(name, app)
    threading.Timer(5 * LOW_FLOOR, go.set).start()

    grid = rounds(server.grid, 1, deadlines=Deadlines(math.inf))
    assert grid.take_traffic().failures == []


class Clock:
    """Time as a test sets it; replies take as long as it says."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def limits(
    deadlines: Deadlines, rounds: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Return the deadlines of rounds whose clients take so many seconds."""
    clock, found = Clock(), []
    monkeypatch.setattr("fedsz.flower.deadline.time", clock)
    for seconds in rounds:
        model = ArrayRecord([np.zeros(3, np.float32)])
        asked = [Message(RecordDict({"m": model}), i, "train") for i in range(len(seconds))]
        for i, message in enumerate(asked):
            message.metadata.__dict__["_message_id"] = str(i)
        begun, deadline = clock.now, deadlines.begin(asked, None)
        for message, took in sorted(zip(asked, seconds, strict=True), key=lambda one: one[1]):
            late = took >= deadline._limit
            clock.now = begun + min(took, deadline._limit)
            said: Any = Error(0, "late") if late else RecordDict()
            deadline.took(Message(said, reply_to=message))
        found.append(deadline._limit)
        deadline.end()
    return found


QUICK, NEVER_COMES = [1.0] * 4, math.inf


@pytest.mark.parametrize(
    ("options", "rounds", "expected"),
    [
        # Three clients take a second, two honest ones twelve: they are not left out for ever.
        ({}, [[1.0, 1.0, 1.0, 12.0, 12.0]] * 8, [3.0, 6.0, 12.0, *[24.0] * 5]),
        # Two wait until just before each deadline, and move none.
        ({}, [[*QUICK, 1.1, 1.1], *[[*QUICK, 2.9, 2.9]] * 9], [3.3, *[3.0] * 9]),
        # What somebody misses is doubled to a limit, and halved once all are quick.
        ({}, [[*QUICK, NEVER_COMES]] * 5 + [QUICK] * 4, [3, 6, 12, 24, 24, 24, 12, 6, 3]),
        # The median is of the last five rounds.
        ({}, [[9.0] * 9, *[[1.0]] * 6], [*[27.0] * 6, 3.0]),
        # A minority decides nothing, nor do fewer than a quorum.
        ({"factor": 2.0}, [[1.0, 9.0, 9.0]], [18.0]),
        ({"quorum": 5}, [[1.0, 1.0, 1.0, 9.0, 9.0]], [27.0]),
        ({"factor": math.inf}, [[1.0, 1.0, 1.0, 99.0]] * 2, [math.inf] * 2),
    ],
)
def test_how_long_replies_are_awaited(
    options: dict[str, Any],
    rounds: list[list[float]],
    expected: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert limits(Deadlines(**options), rounds, monkeypatch) == pytest.approx(expected)


@pytest.mark.parametrize(("factor", "quorum"), [(0.5, 1), (math.nan, 1), (2.0, 0)])
def test_numbers_out_of_range_are_refused(factor: float, quorum: int) -> None:
    with pytest.raises(ConfigError, match=r"a deadline's (factor|quorum) must be at least 1"):
        Deadlines(factor, quorum)
