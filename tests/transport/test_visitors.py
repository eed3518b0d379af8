"""Connections that send nothing, come too often or do not read."""

from __future__ import annotations

import contextlib
import itertools
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import grpc
import pytest

from fedsz.training.fleet import _repeatable
from fedsz.training.options import RunConfig
from fedsz.transport import address, channel, grpc_grid
from fedsz.transport.channel import METHOD, SERVICE
from fedsz.transport.frames import Begin, Hello, pack
from fedsz.transport.link_events import EventKind
from tests.links import LONG, Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.links import Serve


def test_a_client_without_a_place_comes_again(serve: Serve) -> None:
    server = serve(max_connections=1)
    first = server.client("first")
    second = Client(server.address, "second")
    server.clients.append(second)
    assert second.events.wait(EventKind.WAITING).detail.startswith("UNAVAILABLE: ")
    first.stop.set()
    assert first.ended() is None

    second.events.wait(EventKind.JOINED)


def test_a_connection_has_one_stream(serve: Serve) -> None:
    server, over = serve(), threading.Event()

    def greeting(name: str) -> Iterator[bytes]:
        yield pack(Hello(1, name, {}, []))
        over.wait(LONG)

    with grpc.insecure_channel(server.address) as opened:
        connect = opened.stream_stream(f"/{SERVICE}/{METHOD}")
        calls = [connect(greeting(name)) for name in ("one", "another")]
        server.events.wait(EventKind.JOINED, "one")
        server.client("honest")
        assert server.events.count(EventKind.JOINED, "another") == 0
        over.set()
        for call in calls:
            call.cancel()


def ended(connection: socket.socket) -> bool:
    """Say whether a connection has ended, once something has come from it."""
    try:
        return not connection.recv(1 << 16)
    except ConnectionError:
        return True


def test_tcp_connections_beyond_the_limit_are_closed(serve: Serve) -> None:
    server = serve(max_connections=4)
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.grid.port)
        # Those that are let in hear gRPC's SETTINGS; for the others it is over at once.
        let_in = {stack.enter_context(socket.create_connection(address)) for _ in range(12)}
        while len(let_in) > 4:
            heard, _, _ = select.select(let_in, [], [], LONG)
            assert heard, f"{len(let_in)} connections are open"
            let_in -= set(filter(ended, heard))
    server.client("honest")


def test_tcp_connections_that_say_nothing_end(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = (("grpc.server_handshake_timeout_ms", 200), ("grpc.max_connection_idle_ms", 200))
    options = tuple({**dict(channel.SERVER_OPTIONS), **dict(soon)}.items())
    monkeypatch.setattr(grpc_grid, "SERVER_OPTIONS", options)
    server = serve()
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    for said in (b"", preface):
        with socket.create_connection(("127.0.0.1", server.grid.port), LONG) as stranger:
            stranger.sendall(said)
            while not ended(stranger):
                pass


def test_a_client_that_does_not_read_is_not_read(serve: Serve) -> None:
    server = serve()
    asked = itertools.count()

    def frames() -> Iterator[bytes]:
        yield pack(Hello(1, "deaf", {}, []))
        for _ in range(1_000_000):
            next(asked)
            yield pack(Begin("not-awaited-" + "x" * 40, 100))

    little = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 14))
    with grpc.insecure_channel(server.address, little) as opened:  # what it hears without listening
        call = opened.stream_stream(f"/{SERVICE}/{METHOD}")(frames())
        server.events.wait(EventKind.JOINED, "deaf")
        before, now = -1, server.grid.counters.wire_bytes_received
        while before != now:
            before = now
            time.sleep(0.5)
            now = server.grid.counters.wire_bytes_received
        call.cancel()

    assert next(asked) < 100_000


def test_the_limit_of_file_descriptors_is_raised() -> None:
    code = (
        "import resource; from fedsz.system import raise_descriptor_limit;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard));"
        "print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    raised, soft = map(int, done.stdout.split())

    assert raised == soft
    assert soft == min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], raised)
    assert soft > 64


@pytest.mark.parametrize(
    ("descriptors", "clients", "web"),
    [(20_000, 9868, 100), (1024, 380, 100), (512, 168, 56), (128, 24, 8), (64, 4, 4)],
)
def test_connections_follow_from_descriptors(
    descriptors: int, clients: int, web: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "raise_descriptor_limit", lambda: descriptors)

    assert address.connections_for_clients() == clients
    assert address.connections_for_web() == web


def test_more_clients_than_one_machine_repeats() -> None:
    kept = _repeatable(RunConfig(min_clients=1003, insecure=True))

    assert (kept.min_clients, kept.clients) == (1003, 1000)
