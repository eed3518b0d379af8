"""Who is connected: clients that wait, leave, are replaced or sent home."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest
from flwr.app import Message, RecordDict

from fedsz.errors import ConfigError, LinkError
from fedsz.flower_compat import ErrorCode
from fedsz.transport.client import run_client
from fedsz.transport.events import EventKind
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.node import node_id
from tests.links import (
    LONG,
    Client,
    app,
    free_port,
    reasons,
    waiting_app,
)

if TYPE_CHECKING:
    from tests.links import Serve, Spawn


def test_a_client_waits_for_its_server(serve: Serve) -> None:
    port = free_port()
    early = Client(f"127.0.0.1:{port}", "early")
    assert "refused" in early.events.wait(EventKind.WAITING).detail
    server = serve(port=port)
    server.clients.append(early)
    server.events.wait(EventKind.JOINED, "early")

    assert list(server.grid.get_node_ids()) == [node_id("early")]


def test_a_client_without_a_server_gives_up(serve: Serve) -> None:
    address = f"127.0.0.1:{free_port()}"
    error = Client(address, "c", max_wait=2.0).ended()

    assert isinstance(error, LinkError)
    assert str(error).startswith(f"no link to {address} for 2 s: UNAVAILABLE: ")
    assert "Connection refused" in str(error)
    assert "\n" not in str(error)


def test_a_server_of_another_kind_is_noticed_at_once() -> None:
    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    error = Client(f"127.0.0.1:{port}", "c").ended()
    other.stop(0).wait()

    assert isinstance(error, LinkError)
    assert "UNIMPLEMENTED" in str(error)


def test_messages_to_nobody_are_errors_at_once(serve: Serve) -> None:
    server = serve(reconnect_grace=0.0)
    client = server.client("gone")
    request = server.requests()[0]
    client.stop.set()
    assert client.ended() is None
    server.events.wait(EventKind.LEFT, "gone")
    never = Message(RecordDict(), 5, "train")
    deadline = time.monotonic() + LONG
    while "is not connected" not in (reason := reasons(server.grid.send_and_receive([request]))[0]):
        assert time.monotonic() < deadline  # its grace, of no length, ends in the next instant

    assert reason == "client 'gone' is not connected"
    replies = server.grid.send_and_receive([never])
    assert reasons(replies) == ["node 5 is not connected"]
    assert replies[0].error.code == ErrorCode.NODE_UNAVAILABLE


def test_a_second_client_of_the_same_name_waits_until_the_first_has_left(serve: Serve) -> None:
    server = serve(reconnect_grace=0.1)
    go = threading.Event()
    first = server.client("twin", waiting_app(go))
    replies = server.grid.stream_replies(server.requests(), timeout=LONG)
    server.events.wait(EventKind.SENT, "twin")
    second = Client(server.address, "twin")
    server.clients.append(second)
    waiting = second.events.wait(EventKind.WAITING)
    assert waiting.detail.startswith("the client id 'twin' is in use; next try in ")

    go.set()
    assert next(replies).has_content()  # of the first, which has noticed nothing
    assert (first.events.count(EventKind.JOINED), first.events.count(EventKind.LEFT)) == (1, 0)
    first.stop.set()
    assert first.ended() is None
    second.events.wait(EventKind.JOINED)
    assert list(server.grid.get_node_ids()) == [node_id("twin")]


def test_a_second_client_of_the_same_name_gives_up(serve: Serve) -> None:
    server = serve()
    server.client("twin")
    error = Client(server.address, "twin", max_wait=1.0).ended()

    assert isinstance(error, LinkError)
    says = f"no link to {server.address} for 1 s: the client id 'twin' is in use"
    assert str(error) == says


def test_a_port_in_use_is_named(serve: Serve) -> None:
    server = serve()
    with pytest.raises(LinkError, match=f"{server.address}: Address already in use"):
        GrpcGrid(port=server.grid.port).start()
    with pytest.raises(ConfigError):
        GrpcGrid(port=70_000)


def test_closing_sends_everybody_home(serve: Serve) -> None:
    server = serve()
    go = threading.Event()
    client = server.client("busy", waiting_app(go))
    replies = server.grid.stream_replies(server.requests())
    server.events.wait(EventKind.SENT)
    server.grid.close("that was it")

    assert reasons(list(replies)) == ["the server was closed before client 'busy' replied"]
    assert client.events.wait(EventKind.LEFT).detail == "that was it"
    go.set()
    assert client.ended() is None
    with pytest.raises(LinkError, match="not serving"):
        server.grid.push_messages([])


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        run_client(app, "localhost", client_id="c")
    with pytest.raises(ConfigError, match="client_id"):
        run_client(app, "localhost:1", client_id="\ud800")
    with pytest.raises(ConfigError, match="node_config"):
        run_client(app, "localhost:1", client_id="c", node_config={"x": [1]})  # type: ignore[dict-item]


def test_ctrl_c_ends_a_waiting_client_at_once(serve: Serve, spawn: Spawn) -> None:
    server = serve()
    child = spawn(server.address, 4, "child")
    server.events.wait(EventKind.JOINED, "child")
    child.process.send_signal(signal.SIGINT)
    _, errors = child.process.communicate(timeout=LONG)

    assert errors.rstrip().endswith("KeyboardInterrupt")
