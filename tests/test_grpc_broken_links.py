"""Links that break, and replies that come too late, over real gRPC."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from fedsz.flower_compat import ErrorCode
from fedsz.transport.events import EventKind
from fedsz.transport.frames import Ack, Begin, Hello, Welcome, pack
from fedsz.transport.node import node_id
from tests.links import (
    LONG,
    Proxy,
    RawClient,
    closing_all,
    reasons,
    resident_bytes,
    waiting_app,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.links import ProxyTo, Serve, Spawn


@pytest.fixture
def proxy_to() -> Iterator[ProxyTo]:
    with closing_all(Proxy) as start:
        yield start


def test_a_killed_client_does_not_hold_up_the_round(
    serve: Serve, spawn: Spawn, proxy_to: ProxyTo
) -> None:
    server = serve(reconnect_grace=0.2)
    proxy = proxy_to(server.grid.port)
    proxy.stall_up = 3_000_000
    child = spawn(proxy.address, 8_000_000, "victim")
    server.events.wait(EventKind.JOINED, "victim")
    server.client("other")
    replies = server.grid.stream_replies(server.requests(), timeout=LONG)
    assert next(replies).metadata.src_node_id == node_id("other")
    assert proxy.stalled.wait(LONG)
    child.process.kill()
    proxy.cut()  # what the kernel of the killed process does to a direct connection

    (reply,) = replies
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE
    reason = reply.error.reason or ""
    assert reason.startswith("client 'victim' left during upload (")
    assert reason.endswith(" of 8.0 MB) and did not return within 0.2 s")
    assert list(server.grid.get_node_ids()) == [node_id("other")]

    spawn(server.address, 8_000_000, "victim")
    server.events.wait(EventKind.JOINED, "victim", 2)
    back = server.grid.send_and_receive(server.requests(), timeout=LONG)
    assert sorted(r.metadata.src_node_id for r in back) == sorted(map(node_id, ("other", "victim")))
    assert reasons(back) == []


def test_kill_without_a_proxy_is_noticed(serve: Serve, spawn: Spawn) -> None:
    server = serve(reconnect_grace=0.0)
    child = spawn(server.address, 400_000_000, "victim")  # long enough to be killed in
    server.events.wait(EventKind.JOINED, "victim")
    replies = server.grid.stream_replies(server.requests(), timeout=LONG)
    server.events.wait(EventKind.SENT, "victim")
    child.process.kill()

    assert "client 'victim' left " in reasons(list(replies))[0]


@pytest.mark.parametrize("way", ["stall_up", "stall_down"])
def test_what_was_cut_is_sent_again_and_not_trained_again(
    serve: Serve, proxy_to: ProxyTo, way: str
) -> None:
    server = serve()
    proxy = proxy_to(server.grid.port)
    setattr(proxy, way, 3_000_000)
    client = server.client("c", server=proxy.address)
    replies = server.grid.stream_replies(server.requests(size=2_000_000), timeout=LONG)
    assert proxy.stalled.wait(LONG)
    setattr(proxy, way, 1 << 62)
    proxy.cut()
    reply = next(replies)

    assert reply.content["metrics"]["calls"] == 1
    assert client.events.count(EventKind.JOINED) == 2
    assert server.events.count(EventKind.SENT) == 1
    client.events.wait(EventKind.SENT)  # acknowledged, so it is not kept any longer


def test_a_link_is_restored_while_the_app_works(serve: Serve, proxy_to: ProxyTo) -> None:
    server = serve()
    proxy = proxy_to(server.grid.port)
    go = threading.Event()
    client = server.client("c", waiting_app(go), server=proxy.address)
    replies = server.grid.stream_replies(server.requests(), timeout=LONG)
    client.events.wait(EventKind.RECEIVED)
    proxy.cut()
    server.events.wait(EventKind.JOINED, "c", 2)
    go.set()

    assert next(replies).has_content()
    assert server.events.count(EventKind.SENT) == 1


def test_a_message_can_be_left_for_a_client_that_may_return(
    serve: Serve, proxy_to: ProxyTo
) -> None:
    server = serve()
    proxy = proxy_to(server.grid.port)
    client = server.client("c", server=proxy.address)
    requests = server.requests()
    proxy.cut()
    server.events.wait(EventKind.LEFT, "c")
    (reply,) = server.grid.send_and_receive(requests, timeout=LONG)

    assert reply.has_content()
    assert client.events.count(EventKind.JOINED) == 2


def test_a_restarted_server_finds_its_clients_and_their_contexts(
    serve: Serve, proxy_to: ProxyTo
) -> None:
    first, second = serve(run_id=7), serve(run_id=7)
    proxy = proxy_to(first.grid.port)
    client = first.client("c", server=proxy.address)
    first.grid.send_and_receive(first.requests(), timeout=LONG)
    proxy.target = second.grid.port  # the first one has crashed without a word
    proxy.cut()
    second.events.wait(EventKind.JOINED, "c")
    (reply,) = second.grid.send_and_receive(second.requests(), timeout=LONG)

    assert reply.content["metrics"]["calls"] == 2
    assert client.error is None


def test_a_timeout_names_the_client_which_goes_on(serve: Serve) -> None:
    server = serve()
    go = threading.Event()
    client = server.client("slow", waiting_app(go))
    (reply,) = server.grid.send_and_receive(server.requests(), timeout=0.2)
    client.events.wait(EventKind.FAILED)  # told that it need not upload
    go.set()
    (next_reply,) = server.grid.send_and_receive(server.requests(), timeout=LONG)

    assert reply.error.code == ErrorCode.REPLY_MESSAGE_UNAVAILABLE
    assert reply.error.reason == "no reply from client 'slow' within 0.2 s"
    assert next_reply.has_content()
    assert server.events.count(EventKind.RECEIVED) == 1


def test_a_message_nobody_waits_for_is_broken_off(serve: Serve, proxy_to: ProxyTo) -> None:
    server = serve()
    proxy = proxy_to(server.grid.port)
    proxy.stall_down = 3_000_000
    client = server.client("c", server=proxy.address)
    (late,) = server.grid.send_and_receive(server.requests(size=10_000_000), timeout=0.5)
    proxy.resume.set()
    (reply,) = server.grid.send_and_receive(server.requests(), timeout=LONG)

    assert late.has_error()
    assert reply.content["metrics"]["calls"] == 1
    assert client.events.count(EventKind.RECEIVED) == 1
    assert server.grid.counters.wire_bytes_sent < 30_000_000


def test_a_reply_nobody_waits_for_is_broken_off(serve: Serve, proxy_to: ProxyTo) -> None:
    server = serve()
    proxy = proxy_to(server.grid.port)
    proxy.stall_up = 3_000_000
    client = server.client("c", server=proxy.address)
    replies = server.grid.stream_replies(server.requests(size=10_000_000))
    assert proxy.stalled.wait(LONG)
    replies.close()  # type: ignore[attr-defined]
    client.events.wait(EventKind.FAILED)
    proxy.resume.set()
    (reply,) = server.grid.send_and_receive(server.requests(), timeout=LONG)

    assert list(replies) == []
    assert reply.content["metrics"]["calls"] == 2
    assert server.grid.counters.wire_bytes_received < 30_000_000


def test_a_timeout_tells_how_far_the_upload_was(serve: Serve) -> None:
    server = serve()
    with RawClient(server.address, pack(Hello(1, "c", {}, []))) as client:
        server.events.wait(EventKind.JOINED, "c")
        (request,) = server.requests()
        replies = server.grid.stream_replies([request], timeout=LONG)
        begin = pack(Begin(request.metadata.message_id, 40_000_000))
        client.say(begin, b"\x04" + bytes(600_000), b"\x04" + bytes(600_000))
        server.events.wait(EventKind.SENT, "c")
        deadline = time.monotonic() + LONG
        while server.grid.counters.wire_bytes_received < 1_200_000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        replies.give_up_after(0.1)  # type: ignore[attr-defined]

        assert reasons(list(replies)) == [
            "no reply from client 'c' within 0.1 s, given up during upload (1.2 of 40.0 MB)"
        ]


def test_an_unwanted_reply_is_read_and_dropped(serve: Serve) -> None:
    server = serve()
    hello = pack(Hello(1, "old", {}, ["stale"]))
    with RawClient(server.address, hello) as client:
        welcome = client.hear()
        client.say(pack(Begin("stale", 12)), b"\x04" + bytes(12))

        assert isinstance(welcome, Welcome)
        assert welcome.wanted == []
        assert client.hear() == Ack("stale", received=False)
        assert "dropped" in server.events.wait(EventKind.RECEIVED, "old").detail


def test_replies_wait_on_disk_not_in_memory(serve: Serve, spawn: Spawn) -> None:
    server = serve()
    n, size = 6, 24_000_000
    spawn(server.address, size, *map(str, range(n)))
    server.events.wait(EventKind.JOINED, n=n)
    before = resident_bytes()
    replies = server.grid.stream_replies(server.requests(), timeout=LONG)
    server.events.wait(EventKind.RECEIVED, n=n)

    assert resident_bytes() - before < 2 * size
    for reply in replies:
        assert len(reply.content["arrays"]["0"].data) > size
        del reply
        assert resident_bytes() - before < 3 * size
