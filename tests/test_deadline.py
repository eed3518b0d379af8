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
from fedsz.flower.deadline import LONGEST_STRETCH, Deadlines, RecentTimes
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

    traffic = rounds(server.grid, 2).take_traffic()

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

    traffic = rounds(server.grid, 2).take_traffic()
    child.process.send_signal(signal.SIGCONT)

    assert traffic.replies == 2 * 2
    assert {failure.client for failure in traffic.failures} == {"stopped"}
    rounds(server.grid, 1)
    server.events.wait(EventKind.RECEIVED, "stopped")  # it is asked as before


@pytest.mark.parametrize(
    ("deadlines", "quick"),
    [(Deadlines(math.inf), 3), (Deadlines(2.0), 1), (Deadlines(quorum=5), 3)],
    ids=["off", "minority", "quorum"],
)
def test_a_slow_client_is_awaited(
    serve: Serve, deadlines: Deadlines, quick: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsz.flower.deadline.FLOOR", LOW_FLOOR)
    server, go = serve(), threading.Event()
    for i in range(quick):
        server.client(f"c{i}", quick_app())
    for i in range(2):
        server.client(f"slow{i}", quick_app(go))
    threading.Timer(5 * LOW_FLOOR, go.set).start()

    assert rounds(server.grid, 1, deadlines=deadlines).take_traffic().failures == []


def test_a_deadline_comes_from_the_median_of_recent_replies() -> None:
    recent = RecentTimes()
    assert recent.usual() is None
    recent.end_round([1.0, 2.0, 3.0], late=0, limit=9.0)
    recent.end_round([4.0, 5.0, 6.0, 100.0], late=1, limit=9.0)
    assert recent.usual() == 4.0

    for _ in range(5):
        recent.end_round([2.0], late=0, limit=9.0)
    assert recent.usual() == 2.0  # older rounds are forgotten


def test_a_deadline_that_somebody_misses_is_doubled_to_a_limit() -> None:
    recent, stretches = RecentTimes(), []
    for times, late in (([2.0], 1), ([2.0], 1), ([9.0], 0), ([2.0], 0), ([2.0], 0), ([2.0], 0)):
        recent.end_round(times, late, limit=10.0)
        stretches.append(recent.stretch)
    assert stretches == [2, 4, 4, 2, 1, 1]
    for _ in range(9):
        recent.end_round([2.0], 1, limit=10.0)
    assert recent.stretch == LONGEST_STRETCH


class Clock:
    """Time as a test sets it; replies take as long as it says."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def limits(rounds: list[list[float]], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the deadlines of rounds whose clients take so many seconds."""
    clock, deadlines, found = Clock(), Deadlines(), []
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


OTHERS = [1.0] * 4


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        # Three clients take a second, two honest ones twelve: they are not left out for ever.
        ([[1.0, 1.0, 1.0, 12.0, 12.0]] * 8, [3.0, 6.0, 12.0, *[24.0] * 5]),
        # Two wait until just before each deadline.
        ([[*OTHERS, 1.1, 1.1], *[[*OTHERS, 2.9, 2.9]] * 9], [3.3, *[3.0] * 9]),
        # One never answers.
        ([[*OTHERS, math.inf]] * 5, [3.0, 6.0, 12.0, 24.0, 24.0]),
    ],
)
def test_who_moves_a_deadline(
    rounds: list[list[float]], expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits(rounds, monkeypatch) == pytest.approx(expected)


@pytest.mark.parametrize(("factor", "quorum"), [(0.5, 1), (math.nan, 1), (2.0, 0)])
def test_numbers_out_of_range_are_refused(factor: float, quorum: int) -> None:
    with pytest.raises(ConfigError, match=r"a deadline's (factor|quorum) must be at least 1"):
        Deadlines(factor, quorum)
