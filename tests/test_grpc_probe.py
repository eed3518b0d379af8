"""Probes of a link: on a server that waits, that works, that is busy; and what they may ask for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from fedsz.errors import ConfigError, LinkError
from fedsz.transport import probe as grpc_probe
from fedsz.transport.channel import SERVICE
from fedsz.transport.events import EventKind
from fedsz.transport.frames import CHUNK_BYTES
from fedsz.transport.probe import DOWN, MAX_BYTES, PING, PROBE_METHOD, UP, probe
from fedsz.transport.tls import channel_credentials, server_credentials
from tests.certificates import Authority
from tests.links import LONG, RawClient, Server, waiting_app

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


class Stream:
    """A probe that says what it likes."""

    def __init__(self, server: str) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(server, [("grpc.use_local_subchannel_pool", 1)])
        self._call = self._channel.stream_stream(f"/{SERVICE}/{PROBE_METHOD}")(
            iter(self._outbox.get, None), timeout=LONG
        )

    def say(self, *frames: bytes | None) -> None:
        for frame in frames:
            self._outbox.put(frame)

    def hear(self) -> bytes:
        return bytes(next(self._call))

    def refusal(self) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self._call:
                pass
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        return str(caught.value.details())

    def close(self) -> None:
        self._outbox.put(None)
        self._channel.close()


@contextmanager
def stream(server: Server) -> Iterator[Stream]:
    with closing(Stream(server.address)) as opened:
        yield opened


def test_a_server_that_waits_for_clients_is_measured(server: Server) -> None:
    probed = probe(server.address)

    assert probed.up > 0
    assert probed.down > 0
    assert 0 < probed.latency < LONG


def test_what_a_probe_moves_is_nobodys_traffic(server: Server) -> None:
    before = server.grid.counters
    probe(server.address)

    assert server.grid.counters == before
    assert server.grid.get_node_ids() == []
    assert server.events.seen == []


def test_a_server_in_the_middle_of_a_round_is_measured(server: Server) -> None:
    go = threading.Event()
    client = server.client("c", waiting_app(go))
    replies = server.grid.stream_replies(server.requests(size=1 << 16), timeout=LONG)
    client.events.wait(EventKind.RECEIVED)

    assert probe(server.address).up > 0

    go.set()
    (reply,) = replies
    assert reply.has_content()


def test_under_tls_as_clients_are(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    credentials = server_credentials(*ours.issue("server"), ours.ca)
    with closing(Server(credentials=credentials)) as server:
        good = channel_credentials(ours.ca, *ours.issue("client"))
        assert probe(server.address, credentials=good).down > 0

        stranger = channel_credentials(ours.ca, *theirs.issue("bad"))
        for bad, why in ((None, "the server speaks TLS"), (stranger, "UNAVAILABLE")):
            with pytest.raises(LinkError, match=f"no probe of {server.address}: {why}"):
                probe(server.address, credentials=bad)


def test_one_at_a_time(server: Server) -> None:
    with stream(server) as first:
        first.say(PING)
        assert first.hear() == PING

        with pytest.raises(LinkError, match="probed by somebody else; try again"):
            probe(server.address)
        first.say(None)
        with pytest.raises(StopIteration):
            first.hear()

    assert probe(server.address).up > 0


def test_one_that_vanishes_leaves_the_place_to_others(server: Server) -> None:
    with stream(server) as first:
        first.say(DOWN + (MAX_BYTES // 2).to_bytes(8, "little"))
        first.hear()

    deadline = time.monotonic() + LONG
    while True:  # until the server has noticed
        try:
            assert probe(server.address).up > 0
        except LinkError:
            assert time.monotonic() < deadline
        else:
            return


@pytest.mark.parametrize("wanted", [MAX_BYTES + 1, (1 << 64) - 1])
def test_it_may_not_ask_for_more_than_there_is(server: Server, wanted: int) -> None:
    with stream(server) as greedy:
        greedy.say(DOWN + wanted.to_bytes(8, "little"))

        assert "256 MiB in all" in greedy.refusal()


def test_it_may_not_send_more_than_there_is(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_probe, "MAX_BYTES", 8 * CHUNK_BYTES)
    with stream(server) as generous:
        generous.say(*[UP + bytes(CHUNK_BYTES)] * 9)

        assert "may send and ask for" in generous.refusal()


def test_it_may_not_take_longer_than_it_may(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_probe, "MAX_SECONDS", 0.1)
    with stream(server) as slow:
        assert "a probe may take 0.1 s" in slow.refusal()


@pytest.mark.parametrize("frame", [b"", b"\x07", b"\x03x", DOWN, DOWN + b"1234567"])
def test_frames_that_there_are_not(server: Server, frame: bytes) -> None:
    with stream(server) as confused:
        confused.say(frame)

        assert "no such frame" in confused.refusal()


def test_a_down_of_so_many_bytes(server: Server) -> None:
    with stream(server) as asking:
        asking.say(DOWN + (CHUNK_BYTES + 3).to_bytes(8, "little"), PING)

        assert [len(asking.hear()) for _ in range(3)] == [CHUNK_BYTES, 3, 1]


def test_clients_are_not_kept_waiting_by_a_probe(server: Server) -> None:
    with stream(server) as first:
        first.say(PING)
        first.hear()
        server.client("c")
        (reply,) = server.grid.send_and_receive(server.requests(), timeout=LONG)

    assert reply.has_content()


def test_there_is_no_server() -> None:
    with pytest.raises(LinkError, match=r"no probe of 127\.0\.0\.1:1: UNAVAILABLE"):
        probe("127.0.0.1:1")


@pytest.mark.parametrize("server", ["", "localhost", "localhost:", "localhost:http"])
def test_a_server_is_host_and_port(server: str) -> None:
    with pytest.raises(ConfigError, match="a server is host:port, got"):
        probe(server)


@pytest.mark.parametrize(
    ("methods", "why"),
    [
        ({}, "UNIMPLEMENTED"),
        ({PROBE_METHOD: lambda requests, context: iter(())}, "it ended the stream early"),
    ],
)
def test_a_server_without_probes_says_so(methods: dict[str, Any], why: str) -> None:
    other = grpc.server(futures.ThreadPoolExecutor(1))
    handlers = {
        name: grpc.stream_stream_rpc_method_handler(serve) for name, serve in methods.items()
    }
    other.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        with pytest.raises(LinkError, match=why):
            probe(f"127.0.0.1:{port}")
    finally:
        other.stop(0)


def test_a_probe_is_not_a_client(server: Server) -> None:
    with RawClient(server.address, PING) as confused:
        (bye,) = confused.hear_out()

    assert bye.kind == "refused"
