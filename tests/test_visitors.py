"""Connections of strangers, who say nothing, come too often or do not listen."""

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
from functools import partial
from typing import TYPE_CHECKING

import grpc
import pytest

from fedsz.training.fleet import _repeatable
from fedsz.training.options import RunConfig
from fedsz.transport import address, channel, grpc_grid
from fedsz.transport.channel import METHOD, SERVICE
from fedsz.transport.frames import Begin, Hello, pack
from fedsz.transport.grpc_server import Visit, Visitors, address_of
from fedsz.transport.link_events import EventKind
from tests.links import LONG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.links import Serve


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:192.0.2.7:40000", "192.0.2.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:40000", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:192.0.2.7]:1", "192.0.2.7"),
        ("ipv6:[::1]:1", "::1"),
        ("unix:/run/fedsz", "unix:/run/fedsz"),
    ],
)
def test_addresses(peer: str, name: str) -> None:
    assert address_of(peer) == name


def visited(visitors: Visitors, stack: contextlib.ExitStack, peer: str, *, hello: bool) -> Visit:
    visit = stack.enter_context(visitors.visit(peer))
    if hello:
        visitors.identify(visit)
    return visit


def test_one_address_does_not_take_all_places() -> None:
    visitors = Visitors(most=6, most_per_address=3)
    with contextlib.ExitStack() as stack:
        here = partial(visited, visitors, stack, hello=True)
        assert not any(here(f"ipv4:192.0.2.1:{port}").refused for port in range(3))
        with visitors.visit("ipv4:192.0.2.1:9") as fourth:
            assert fourth.refused == "192.0.2.1 has its 3 connections"
        assert not any(here(f"ipv4:127.0.0.1:{port}").refused for port in range(3))
        with visitors.visit("ipv4:192.0.2.2:1") as seventh:
            assert "has its 6 connections" in seventh.refused
    with visitors.visit("ipv4:192.0.2.1:9") as later:
        assert not later.refused


@pytest.mark.parametrize("where", ["192.0.2.1", "127.0.0.1"])  # limits of an address, and in all
def test_the_oldest_stream_without_hello_makes_room(where: str) -> None:
    visitors = Visitors(most=4, most_per_address=3)
    with contextlib.ExitStack() as stack:
        known = visited(visitors, stack, f"ipv4:{where}:1", hello=True)
        other = visited(visitors, stack, "ipv4:192.0.2.2:1", hello=True)
        silent = [visited(visitors, stack, f"ipv4:{where}:{i}", hello=False) for i in (2, 3)]
        assert not any(visit.refused for visit in silent)

        newcomer = visited(visitors, stack, f"ipv4:{where}:4", hello=False)

        assert silent[0].refused.endswith("and this one has not said HELLO")
        assert silent[0].refusal.is_set()
        assert not any(visit.refused for visit in (known, other, silent[1], newcomer))


def test_streams_without_hello_keep_nobody_out(serve: Serve) -> None:
    server, over = serve(max_connections=8), threading.Event()

    def silence() -> Iterator[bytes]:
        over.wait(LONG)
        yield from ()

    with grpc.insecure_channel(server.address) as opened:
        connect = opened.stream_stream(f"/{SERVICE}/{METHOD}")
        calls = [connect(silence()) for _ in range(9)]
        with pytest.raises(grpc.RpcError) as refused:
            next(calls[0])
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE  # a client comes again

        honest = server.client("honest")

        assert honest.events.count(EventKind.WAITING) == 0
        for call in calls:
            call.cancel()
        over.set()
    assert len(server.ask()) == 1


def ended(connection: socket.socket) -> bool:
    """Say whether a connection has ended, once something has come from it."""
    try:
        return not connection.recv(1 << 16)
    except ConnectionError:
        return True


def test_tcp_connections_beyond_the_limit_are_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_grid, "_REFUSABLE", 0)
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


def test_a_client_that_does_not_listen_is_not_heard(serve: Serve) -> None:
    server = serve()
    asked = itertools.count()

    def frames() -> Iterator[bytes]:
        yield pack(Hello(1, "deaf", {}, []))
        for _ in range(1_000_000):
            next(asked)
            yield pack(Begin("nobody-waits-for-this-" + "x" * 40, 100))

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
