"""Links that break, and messages that nobody waits for any more, over real gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fedsz.flower_compat import ErrorCode
from fedsz.transport import server_session
from fedsz.transport.link_events import EventKind
from fedsz.transport.node import node_id
from tests.links import LONG, reasons, resident_bytes

if TYPE_CHECKING:
    from tests.links import Serve, Spawn


def test_a_client_that_is_gone_does_not_hold_up_the_round(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_session, "NEWS_SECONDS", 0.0)
    server = serve(reconnect_grace=0.2)
    proxy = server.proxy(stall_up=3_000_000)
    victim = server.client("victim", server=proxy.address)
    server.client("other")
    replies = server.stream(size=2_000_000)
    assert next(replies).metadata.src_node_id == node_id("other")
    assert proxy.stalled.wait(LONG)
    server.events.wait(EventKind.RECEIVING, "victim")  # and the server has read some of it
    victim.stop.set()
    proxy.cut()

    (reply,) = replies
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE
    reason = reply.error.reason or ""
    assert reason.startswith("client 'victim' left during upload (")
    assert reason.endswith(" of 8.0 MB) and did not return within 0.2 s")
    assert list(server.grid.get_node_ids()) == [node_id("other")]

    assert victim.ended() is None
    server.client("victim")
    back = server.ask()
    assert sorted(r.metadata.src_node_id for r in back) == sorted(map(node_id, ("other", "victim")))
    assert reasons(back) == []


@pytest.mark.parametrize("way", ["stall_up", "stall_down"])
def test_what_was_cut_is_sent_again_and_not_trained_again(serve: Serve, way: str) -> None:
    server = serve()
    proxy = server.proxy(**{way: 3_000_000})
    client = server.client("c", server=proxy.address)
    replies = server.stream(size=2_000_000)
    assert proxy.stalled.wait(LONG)
    proxy.cut()
    reply = next(replies)

    assert reply.content["metrics"]["calls"] == 1
    assert client.events.count(EventKind.JOINED) == 2
    assert server.events.count(EventKind.SENT) == 1
    client.events.wait(EventKind.SENT)  # acknowledged, so it is not kept any longer


@pytest.mark.parametrize("way", ["stall_up", "stall_down"])
def test_what_nobody_waits_for_is_broken_off(serve: Serve, way: str) -> None:
    server = serve()
    proxy = server.proxy(**{way: 3_000_000})
    client = server.client("c", server=proxy.address)
    replies = server.stream(size=10_000_000)
    assert proxy.stalled.wait(LONG)
    replies.close()
    if way == "stall_up":
        client.events.wait(EventKind.FAILED)
    proxy.resume.set()
    (reply,) = server.ask()

    arrived = 2 if way == "stall_up" else 1  # messages
    assert list(replies) == []
    assert reply.content["metrics"]["calls"] == arrived
    assert client.events.count(EventKind.RECEIVED) == arrived
    crossed = server.grid.counters
    sizes = {"stall_up": crossed.wire_bytes_received, "stall_down": crossed.wire_bytes_sent}
    assert sizes[way] < 30_000_000


def test_replies_wait_on_disk_not_in_memory(serve: Serve, spawn: Spawn) -> None:
    server = serve()
    n, size = 4, 24_000_000
    spawn(server.address, size, *map(str, range(n)))
    server.events.wait(EventKind.JOINED, n=n)
    before = resident_bytes()
    replies = server.stream()
    server.events.wait(EventKind.RECEIVED, n=n)

    assert resident_bytes() - before < 1.5 * size
    for reply in replies:
        assert len(reply.content["arrays"]["0"].data) > size
        del reply
        assert resident_bytes() - before < 2.5 * size
