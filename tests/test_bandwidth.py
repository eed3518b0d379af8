"""What the server learns of its clients' links from their uploads, on real gRPC."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fedsz.transport.events import EventKind
from fedsz.transport.frames import CHUNK_BYTES, Begin, Hello, pack
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.node import node_id
from fedsz.transport.upload import TIMED_BYTES, Upload
from tests.links import LONG, RawClient, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = node_id("c")


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    with RawClient(server.address, pack(Hello(1, "c", {}, []))) as raw:
        server.events.wait(EventKind.JOINED, "c")
        yield raw


def upload(server: Server, client: RawClient, nbytes: int, pause: float) -> tuple[float, float]:
    """Send so many bytes as a reply, with a pause before each chunk.

    Returns:
        The bandwidth that is known of this client afterwards, and the seconds that its chunks
        took, from the first to the last, as the sender knows.
    """
    before = server.events.count(EventKind.RECEIVED)
    client.say(pack(Begin("reply", nbytes)))
    start = time.perf_counter()
    for offset in range(0, nbytes, CHUNK_BYTES):
        time.sleep(pause)
        if not offset:
            start = time.perf_counter()
        client.say(b"\x04" + bytes(min(CHUNK_BYTES, nbytes - offset)))
    seconds = time.perf_counter() - start
    server.events.wait(EventKind.RECEIVED, "c", before + 1)
    return server.grid.bandwidths[NODE], seconds


def test_nothing_is_known_before_anything_has_come() -> None:
    assert GrpcGrid(port=0).bandwidths == {}


def test_loopback_is_as_fast_as_its_uploads(server: Server) -> None:
    for name in ("a", "b"):
        server.client(name)
    start = time.perf_counter()
    replies = server.grid.send_and_receive(server.requests(size=1_000_000), timeout=LONG)
    seconds = time.perf_counter() - start
    known = server.grid.bandwidths

    assert not any(reply.has_error() for reply in replies)
    assert known.keys() == {node_id("a"), node_id("b")}
    # An upload takes less than its round does, and no memory is as fast as that.
    assert all(8 * (4_000_000 - CHUNK_BYTES) / seconds < rate < 1e12 for rate in known.values())


@pytest.mark.parametrize("pause", [0.04, 0.1])
def test_a_sender_that_is_held_back_is_known_to_be(
    server: Server, client: RawClient, pause: float
) -> None:
    nbytes = 9 * CHUNK_BYTES
    known, seconds = upload(server, client, nbytes, pause)

    assert known == pytest.approx(8 * 8 * CHUNK_BYTES / seconds, rel=0.25)


def test_the_last_upload_counts_whether_faster_or_slower(server: Server, client: RawClient) -> None:
    fast, _ = upload(server, client, 5 * CHUNK_BYTES, 0.0)
    slow, _ = upload(server, client, 5 * CHUNK_BYTES, 0.05)
    again, _ = upload(server, client, 5 * CHUNK_BYTES, 0.0)

    assert slow < 20e6 < min(fast, again)


def test_a_short_upload_only_ever_raises_it(server: Server, client: RawClient) -> None:
    first, _ = upload(server, client, 1000, 0.2)
    assert 0 < first <= 8 * 1000 / 0.1
    slow, _ = upload(server, client, 3 * CHUNK_BYTES, 0.1)
    assert slow > first
    assert upload(server, client, 1000, 0.2)[0] == slow
    assert upload(server, client, TIMED_BYTES - 1, 0.0)[0] > slow


def test_an_upload_of_one_chunk_is_timed_from_its_announcement(
    server: Server, client: RawClient
) -> None:
    upload(server, client, 5 * CHUNK_BYTES, 0.0)
    known, _ = upload(server, client, TIMED_BYTES, 0.1)

    assert 8 * TIMED_BYTES / 1.0 < known < 8 * TIMED_BYTES / 0.05


def test_an_upload_that_was_broken_off_tells_nothing(server: Server, client: RawClient) -> None:
    known, _ = upload(server, client, 5 * CHUNK_BYTES, 0.0)
    client.say(pack(Begin("cut", 10 * CHUNK_BYTES)), b"\x04" + bytes(CHUNK_BYTES))
    time.sleep(0.2)
    assert server.grid.bandwidths == {NODE: known}
    after, seconds = upload(server, client, 5 * CHUNK_BYTES, 0.06)
    assert after == pytest.approx(8 * 4 * CHUNK_BYTES / seconds, rel=0.25)


def test_measuring_costs_nothing_that_counts() -> None:
    """A chunk takes some 100 us to receive; to time it, less than one of them."""
    upload = Upload(Begin("x", 10_000 * CHUNK_BYTES), None, 0.0, limit=1 << 40)
    piece = memoryview(bytes(CHUNK_BYTES))
    start = time.perf_counter()
    for _ in range(10_000):
        upload.take(piece, time.monotonic())
    assert (time.perf_counter() - start) / 10_000 < 20e-6
    assert upload.bandwidth(0.0, time.monotonic()) > 0
