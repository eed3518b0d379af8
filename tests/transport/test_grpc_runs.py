"""Runs over real gRPC on loopback: messages, replies and their counting."""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsz.transport.link_events import EventKind, LinkEvent
from tests.links import LONG, Events, reasons, waiting_app

if TYPE_CHECKING:
    from tests.links import Serve


def test_unmodified_flower_apps_run(serve: Serve) -> None:
    server = serve()
    clients = [server.client(f"c{i}", node_config={"number": i}) for i in range(3)]
    server_app = ServerApp()
    results = []

    @server_app.main()
    def main(grid: Any, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=3)
        initial = ArrayRecord([np.zeros((2, 3), np.float32)])
        results.append(strategy.start(grid, initial, num_rounds=3, timeout=LONG))

    server_app(server.grid, Context(0, 1, {}, RecordDict(), {}))
    server.grid.close()

    np.testing.assert_allclose(results[0].arrays["0"].numpy(), np.full((2, 3), 3.0), rtol=1e-5)
    assert results[0].train_metrics_clientapp[3]["calls"] == pytest.approx(3)  # Contexts last
    assert [client.ended() for client in clients] == [None] * 3


def test_large_messages_pass_and_are_counted_whatever_watches_them(serve: Serve) -> None:
    def spoil(event: LinkEvent) -> None:
        events(event)
        raise RuntimeError("a broken display")

    events = Events()
    server = serve(on_event=spoil)
    server.events = events
    client = server.client("big")
    before = server.grid.counters
    size = 2_000_000  # floats: 8 MB, twice what gRPC passes by default
    (reply,) = server.ask(size=size)
    after = server.grid.counters

    assert reply.content["arrays"]["0"].numpy().shape == (size,)
    assert (after.messages_sent, after.messages_received) == (1, 1)
    up = after.wire_bytes_received - before.wire_bytes_received
    down = after.wire_bytes_sent - before.wire_bytes_sent
    assert 4 * size < up == events.wait(EventKind.RECEIVED).wire_bytes < 4.01 * size
    sent = events.wait(EventKind.SENT).wire_bytes
    assert 4 * size < sent <= down < 4.01 * size  # WELCOME and ACK are in the total only
    assert client.events.wait(EventKind.RECEIVED).wire_bytes == sent
    assert client.events.wait(EventKind.SENT).wire_bytes == up


def test_replies_wait_in_few_files_until_they_are_pulled_once(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = serve(max_connections=2)
    server.client("a")
    to_nobody = Message(RecordDict(), 5, "train")
    ids = server.grid.push_messages([to_nobody])
    for n in range(1, 5):
        ids += server.grid.push_messages(server.requests(size=50_000))
        server.events.wait(EventKind.RECEIVED, n=n)
    # Nor is the model kept that was sent, once its sender has come to its end.
    deadline = time.monotonic() + LONG
    while open_files(tmp_path) != 2 and time.monotonic() < deadline:
        server.grid._call(lambda _: None)
        gc.collect()

    assert open_files(tmp_path) == 2
    nobody, *replies = server.grid.pull_messages(ids)
    assert nobody.error.reason == "node 5 is not connected"
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids[1:]
    assert [reply.has_content() for reply in replies] == [False] * 2 + [True] * 2
    why = "the reply of client 'a' was dropped: nobody asked for it before 2 others had come"
    assert reasons(replies) == [why] * 2
    assert open_files(tmp_path) == 0
    assert server.grid.pull_messages(ids) == []


def open_files(folder: Path) -> int:
    """Count the files in a folder, also those without a name, that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return sum(name.startswith(str(folder)) for name in found)


def test_replies_that_the_garbage_collector_frees_hold_nobody_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, go = serve(), threading.Event()
    server.client("a", waiting_app(go))
    circle: list[object] = [server.grid.stream_replies(server.requests())]
    circle.append(circle)
    del circle
    loop = server.grid._loop
    assert loop is not None
    inner = loop.call_soon_threadsafe

    def collecting(*args: Any) -> Any:
        gc.collect()  # as it may at any time
        return inner(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", collecting)
    push = threading.Thread(target=server.grid.push_messages, args=([],), daemon=True)
    push.start()
    push.join(20.0)
    stuck = push.is_alive()
    if stuck:
        server.grid._lock = threading.RLock()  # else `close` would be stuck, too

    assert not stuck
    go.set()
