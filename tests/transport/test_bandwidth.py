"""What the server learns of its clients' links from their uploads, and how fast those may be."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

import pytest

from fedsz.transport.frames import CHUNK_BYTES, PROTOCOL, Begin, Hello, pack
from fedsz.transport.link_events import EventKind
from fedsz.transport.node import node_id
from fedsz.transport.server_session import TIMED_BYTES, Upload
from tests.links import LONG
from tests.session_links import Door

if TYPE_CHECKING:
    from tests.links import Serve

CHUNK = 8 * CHUNK_BYTES  # bits


@pytest.mark.parametrize(
    ("nbytes", "pause", "bandwidth"),
    [
        (9 * CHUNK_BYTES, 0.04, CHUNK / 0.04),  # the first chunk is not counted
        (CHUNK_BYTES + TIMED_BYTES, 0.5, CHUNK / 0.5),
        (5 * CHUNK_BYTES, 0.0, None),  # in no time at all
        (CHUNK_BYTES + TIMED_BYTES - 1, 0.1, None),  # too little after the first chunk
        (1000, 0.2, None),
    ],
)
def test_the_bandwidth_of_an_upload(nbytes: int, pause: float, bandwidth: float | None) -> None:
    upload, now = Upload(Begin("m", nbytes), None, 0.0, limit=nbytes), 0.0
    for offset in range(0, nbytes, CHUNK_BYTES):
        now += pause
        upload.take(memoryview(bytes(min(CHUNK_BYTES, nbytes - offset))), now)

    assert upload.bandwidth(now) == (bandwidth and pytest.approx(bandwidth))


def test_an_upload_that_was_broken_off_tells_nothing() -> None:
    door = Door(max_message_bytes=1 << 20)
    door.knock("link", Hello(PROTOCOL, "c", {}, []))
    door.post("c")
    door.says("link", pack(Begin("m", 10 * CHUNK_BYTES)))
    door.wait(5.0)
    door.says("link", b"\x04" + bytes(CHUNK_BYTES))
    assert (door.events[-1].kind, door.events[-1].passed) == (EventKind.RECEIVING, CHUNK_BYTES)
    assert door.session.bandwidths == {}
    door.says("link", pack(Begin("m", 3 * CHUNK_BYTES)))
    for _ in range(3):
        door.wait(0.1)
        door.says("link", b"\x04" + bytes(CHUNK_BYTES))

    assert door.session.bandwidths == {node_id("c"): pytest.approx(CHUNK / 0.1)}


def test_an_upload_tells_of_itself_once_a_second() -> None:
    size = 100_000
    upload, unwanted = (
        Upload(Begin("m", size), to, 0.0, limit=size) for to in (io.BytesIO(), None)
    )
    told = []
    for step in range(99):  # 1 kB each 0.1 s
        now = 0.1 * (step + 1)
        for each in (upload, unwanted):
            each.take(memoryview(bytes(1000)), now)
        if (news := upload.news("pi", now)) is not None:
            told.append((news.client_id, news.message_id, news.passed, news.size))
        assert unwanted.news("pi", now) is None

    assert told == [("pi", "m", 10_000 * second, size) for second in range(1, 10)]


def test_loopback_is_as_fast_as_its_uploads_and_a_held_back_link_is_not(serve: Serve) -> None:
    server, bits = serve(), 8e6
    assert server.grid.bandwidths == {}
    server.client("fast")
    server.client("slow", max_bits=bits)
    start = time.perf_counter()
    replies = server.grid.send_and_receive(server.requests(size=80_000), timeout=LONG)
    seconds = time.perf_counter() - start
    known = server.grid.bandwidths

    assert not any(reply.has_error() for reply in replies)
    # An upload takes less than its round does, and no memory is as fast as that.
    assert 8 * (320_000 - CHUNK_BYTES) / seconds < known[node_id("fast")] < 1e12
    assert known[node_id("slow")] < 1.5 * bits  # the first of its chunks is not held up
