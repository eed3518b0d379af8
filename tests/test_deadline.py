"""Deadlines from recent rounds: over gRPC with clients that keep silent, and their rules alone."""

from __future__ import annotations

import math
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, FedSZMod, StreamingFedAvg
from fedsz.flower.deadline import FLOOR, Deadlines, RecentTimes
from fedsz.transport.events import EventKind
from fedsz.transport.grpc_grid import GrpcGrid
from tests.links import LONG

if TYPE_CHECKING:
    from tests.links import Serve, Spawn

NEVER = 1e6  # seconds; a test that waits so long fails


def quick_app(go: threading.Event | None = None) -> ClientApp:
    """An app that does nothing but reply, once ``go`` is set."""
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        assert go is None or go.wait(LONG)
        arrays = ArrayRecord([array.numpy() + 1 for array in message.content["arrays"].values()])
        records = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(records), reply_to=message)

    return app


def rounds(grid: GrpcGrid, number: int, **options: Any) -> FedSZGrid:
    wrapped = FedSZGrid(grid, "std:1", **options)
    model = ArrayRecord([np.zeros(50, np.float32)])
    strategy = StreamingFedAvg(fraction_evaluate=0)
    strategy.start(wrapped, model, num_rounds=number, timeout=NEVER)
    return wrapped


def test_two_silent_clients_of_twenty_do_not_hold_up_a_round(serve: Serve) -> None:
    server, go = serve(), threading.Event()
    for i in range(18):
        server.client(f"c{i}", quick_app())
    silent = [server.client(f"silent{i}", quick_app(go)) for i in range(2)]

    traffic = rounds(server.grid, 3).take_traffic()

    assert traffic.replies == 3 * 18
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


def test_nobody_is_given_up_before_the_quorum_has_replied(serve: Serve) -> None:
    server, go = serve(), threading.Event()
    for i in range(3):
        server.client(f"c{i}", quick_app())
    server.client("slow", quick_app(go))
    threading.Timer(2 * FLOOR, go.set).start()

    assert rounds(server.grid, 1, deadlines=Deadlines(quorum=4)).take_traffic().replies == 4


@pytest.mark.parametrize(("factor", "quick"), [(math.inf, 3), (2.0, 1)], ids=["off", "minority"])
def test_a_slow_client_is_awaited(serve: Serve, factor: float, quick: int) -> None:
    server, go = serve(), threading.Event()
    for i in range(quick):
        server.client(f"c{i}", quick_app())
    for i in range(2):
        server.client(f"slow{i}", quick_app(go))
    threading.Timer(2 * FLOOR, go.set).start()

    assert rounds(server.grid, 1, deadlines=Deadlines(factor)).take_traffic().failures == []


def test_a_deadline_comes_from_nine_in_ten_of_recent_replies() -> None:
    recent = RecentTimes()
    assert recent.usual() is None
    recent.end_round([1.0, 2.0, 3.0, 4.0], late=0)
    recent.end_round([5.0, 6.0, 7.0, 8.0, 9.0, 100.0], late=1)
    assert recent.usual() == 9.0

    for _ in range(5):
        recent.end_round([2.0], late=0)
    assert recent.usual() == 2.0  # older rounds are forgotten


def test_a_deadline_that_most_miss_is_doubled_until_fewer_do() -> None:
    recent = RecentTimes()
    recent.end_round([2.0], late=0)
    usual = []
    for late in (2, 2, 1):
        recent.end_round([2.0], late)
        usual.append(recent.usual())
    assert usual == [4.0, 8.0, 2.0]


@pytest.mark.parametrize(("factor", "quorum"), [(0.5, 1), (math.nan, 1), (2.0, 0)])
def test_numbers_out_of_range_are_refused(factor: float, quorum: int) -> None:
    with pytest.raises(ConfigError, match=r"a deadline's (factor|quorum) must be at least 1"):
        Deadlines(factor, quorum)
