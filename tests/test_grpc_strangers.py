"""Clients that break the rules or the limits, over real gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from flwr.app import Message, RecordDict

from fedsz.transport.events import EventKind
from fedsz.transport.frames import Begin, Bye, ByeKind, Hello, Welcome, frames, pack
from fedsz.transport.messages import encode_message
from tests.links import (
    LONG,
    RawClient,
    reasons,
)

if TYPE_CHECKING:
    from tests.links import Serve


def test_garbage_is_refused_and_others_do_not_notice(serve: Serve) -> None:
    server = serve()
    server.client("good")
    for raw, why in (
        (b"\xff\x00garbage", "no frame has type 255"),
        (b"", "a frame without a type"),
        (b"\x01\x94garbage", "not a frame of type 1"),
        (pack(Begin("x", 100)), "the first frame is not HELLO"),
        (pack(Hello(99, "future", {}, [])), "protocol 99; this server speaks 1"),
    ):
        with RawClient(server.address, raw) as client:
            (bye,) = client.hear_out()
        assert isinstance(bye, Bye)
        assert bye.kind == ByeKind.REFUSED
        assert why in bye.reason
    with (
        RawClient(server.address, bytes(2 << 20)) as client,
        pytest.raises(grpc.RpcError, match="larger than max"),
    ):
        client.hear_out()

    assert server.events.count(EventKind.REFUSED) == 5
    assert len(server.grid.send_and_receive(server.requests(), timeout=LONG)) == 1


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([pack(Begin("x", 1 << 50))], "at most 4295.0 MB"),
        ([b"\x04data"], "a frame of type 4 out of place"),
        ([pack(Begin("x", 10)), b"\x04too much data"], "1 to 10 were due"),
        ([pack(Hello(1, "c", {}, []))], "a frame of type 1 out of place"),
    ],
    ids=["too large", "unannounced", "too long", "twice"],
)
def test_broken_rules_are_refused(serve: Serve, frames: list[bytes], why: str) -> None:
    server = serve()
    with RawClient(server.address, pack(Hello(1, "bad", {}, [])), *frames) as client:
        heard = client.hear_out()

    assert isinstance(heard[0], Welcome)
    assert isinstance(heard[-1], Bye)
    assert why in heard[-1].reason


def test_what_a_refused_client_owes_is_an_error(serve: Serve) -> None:
    server = serve()
    with RawClient(server.address, pack(Hello(1, "bad", {}, []))) as client:
        server.events.wait(EventKind.JOINED, "bad")
        replies = server.grid.stream_replies(server.requests(), timeout=LONG)
        server.events.wait(EventKind.SENT, "bad")
        client.say(b"\x04data")

        assert reasons(list(replies)) == [
            "client 'bad' was refused: a frame of type 4 out of place"
        ]


def test_an_unreadable_reply_is_an_error(serve: Serve) -> None:
    server = serve()
    with RawClient(server.address, pack(Hello(1, "odd", {}, []))) as client:
        server.events.wait(EventKind.JOINED, "odd")
        (request,) = server.requests()
        replies = server.grid.stream_replies([request], timeout=LONG)
        nonsense = b"\x04\0\0\0\0\0\0\0\xff\xff\xff\xff"  # an envelope that is no protobuf
        client.say(pack(Begin(request.metadata.message_id, 12)), b"\x04" + nonsense)
        (reason,) = reasons(list(replies))

    assert reason.startswith("client 'odd' sent a reply that cannot be read: not a Flower message")


def test_a_broken_off_reply_can_be_begun_again(serve: Serve) -> None:
    server = serve()
    with RawClient(server.address, pack(Hello(1, "c", {}, []))) as client:
        server.events.wait(EventKind.JOINED, "c")
        (request,) = server.requests()
        replies = server.grid.stream_replies([request], timeout=LONG)
        message_id = request.metadata.message_id
        encoded = encode_message(Message(RecordDict(), reply_to=request), message_id)
        client.say(pack(Begin(message_id, 100)), b"\x04half a", *frames(encoded))

        assert next(replies).has_content()


def test_a_reply_over_the_servers_limit_is_an_error_reply(serve: Serve) -> None:
    server = serve(max_message_bytes=1_000_000)
    client = server.client("c")
    (reply,) = server.grid.send_and_receive(server.requests(size=1_000_000), timeout=LONG)

    assert reply.error.reason == "ConfigError: a reply of 4.0 MB; the server takes 1.0 MB"
    assert client.error is None
