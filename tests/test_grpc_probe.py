"""Probes of a link: on a server that waits, that works, that is busy; and what they may ask for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from fedsz.errors import ConfigError, LinkError
from fedsz.transport import probe as grpc_probe
from fedsz.transport.channel import SERVICE
from fedsz.transport.events import EventKind
from fedsz.transport.frames import CHUNK_BYTES
from fedsz.transport.probe import MAX_BYTES, PROBE_METHOD, probe
from fedsz.transport.tls import channel_credentials, server_credentials
from tests.certificates import Authority
from tests.links import LONG, RawClient, Server, waiting_app

if TYPE_CHECKING:
    from pathlib import Path

    Say = Callable[..., RawClient]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback needs no 64 MB to tell how fast it is."""
    monkeypatch.setattr(grpc_probe, "_LONG_ENOUGH", 0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


def asked(nbytes: int) -> bytes:
    """Return what asks for so many bytes."""
    return nbytes.to_bytes(8, "little")


def stream(server: Server, *said: bytes) -> RawClient:
    """Return a probe that says what it likes."""
    return RawClient(server.address, *said, method=PROBE_METHOD)


def test_a_server_that_waits_for_clients_is_measured_and_counts_nothing(server: Server) -> None:
    before, seen = server.grid.counters, len(server.events.seen)
    probed = probe(server.address)

    assert probed.up > 0
    assert probed.down > 0
    assert 0 < probed.latency < LONG
    assert server.grid.counters == before
    assert server.grid.get_node_ids() == []
    assert len(server.events.seen) == seen


def test_a_server_in_the_middle_of_a_round_is_measured(serve: Callable[..., Server]) -> None:
    server, go = serve(), threading.Event()
    client = server.client("c", waiting_app(go))
    replies = server.stream(size=1 << 16)
    client.events.wait(EventKind.RECEIVED)

    with stream(server, asked(1)) as first:
        assert len(next(first.raw)) == 1
        with pytest.raises(LinkError, match="probed by somebody else; try again"):
            probe(server.address)
        go.set()  # nor are clients kept waiting by a probe
        (reply,) = replies
        assert reply.has_content()
        first.say(None)
        assert list(first.raw) == []
    assert probe(server.address).up > 0


def test_under_tls_as_clients_are(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    credentials = server_credentials(*ours.issue("server"), ours.ca)
    with closing(Server(credentials=credentials)) as server:
        good = channel_credentials(ours.ca, *ours.issue("client"))
        assert probe(server.address, credentials=good).down > 0

        stranger = channel_credentials(ours.ca, *theirs.issue("bad"))
        for bad, why in (
            (None, "link to {}: the server speaks TLS"),
            (stranger, "probe of {}: UN"),
        ):
            with pytest.raises(LinkError, match=f"no {why.format(server.address)}"):
                probe(server.address, credentials=bad)


def test_one_that_vanishes_leaves_the_place_to_others(server: Server) -> None:
    with stream(server, asked(MAX_BYTES // 2)) as first:
        next(first.raw)

    deadline = time.monotonic() + LONG
    while True:  # until the server has noticed
        try:
            assert probe(server.address).up > 0
        except LinkError:
            assert time.monotonic() < deadline
        else:
            return


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([b""], "no such frame"),
        ([b"1234567"], "no such frame"),
        ([asked((8 << 20) + 1)], "a probe may send and ask for 8 MiB in all"),
        ([asked((1 << 64) - 1)], "a probe may send and ask for 8 MiB in all"),
        ([asked(0) + bytes(CHUNK_BYTES)] * 129, "a probe may send and ask for 8 MiB in all"),
        ([], "a probe may take 0.2 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} frames",
)
def test_it_may_not_do_what_it_likes(
    server: Server, monkeypatch: pytest.MonkeyPatch, said: list[bytes], why: str
) -> None:
    monkeypatch.setattr(grpc_probe, "MAX_BYTES", 8 << 20)
    if not said:
        monkeypatch.setattr(grpc_probe, "MAX_SECONDS", 0.2)
    with stream(server, *said) as greedy:
        refusal = greedy.refusal()

    assert refusal.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert why in str(refusal.details())


def test_a_down_of_so_many_bytes(server: Server) -> None:
    with stream(server, asked(CHUNK_BYTES + 3), asked(1)) as asking:
        assert [len(next(asking.raw)) for _ in range(3)] == [CHUNK_BYTES, 3, 1]


def test_a_probe_is_not_a_client(server: Server) -> None:
    with RawClient(server.address, asked(1)) as confused:
        (bye,) = confused.hear_out()

    assert bye.kind == "refused"


@pytest.mark.parametrize("server", ["", "localhost", "localhost:", "localhost:http"])
def test_a_server_is_host_and_port(server: str) -> None:
    with pytest.raises(ConfigError, match="a server is host:port, got"):
        probe(server)


@pytest.mark.parametrize(
    ("methods", "why"),
    [
        (None, r"no probe of 127\.0\.0\.1:\d+: UNAVAILABLE"),
        ({}, "UNIMPLEMENTED"),
        ({PROBE_METHOD: lambda requests, context: iter(())}, "it ended the stream early"),
    ],
)
def test_a_server_without_probes_or_that_is_not_there(
    methods: dict[str, Any] | None, why: str
) -> None:
    other = grpc.server(futures.ThreadPoolExecutor(1))
    handlers = {
        name: grpc.stream_stream_rpc_method_handler(serve)
        for name, serve in (methods or {}).items()
    }
    other.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = other.add_insecure_port("127.0.0.1:0")
    if methods is not None:
        other.start()
    else:
        port = 1
    try:
        with pytest.raises(LinkError, match=why):
            probe(f"127.0.0.1:{port}")
    finally:
        other.stop(0)
