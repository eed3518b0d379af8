"""Who is connected, over real gRPC: clients that wait, leave, are sent home or make no sense."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest

from fedsz.errors import ConfigError, LinkError
from fedsz.transport.channel import METHOD, SERVICE
from fedsz.transport.frames import Begin, Bye, ByeKind, Hello, pack
from fedsz.transport.grpc_client import run_client
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.link_events import EventKind
from fedsz.transport.node import node_id
from tests.links import LONG, Client, RawClient, app, free_port, reasons, waiting_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.links import Serve, Spawn


def test_a_client_without_a_server_gives_up() -> None:
    address = f"127.0.0.1:{free_port()}"
    error = Client(address, "c", max_wait=1.0).ended()

    assert isinstance(error, LinkError)
    assert str(error).startswith(f"no link to {address} for 1 s: UNAVAILABLE: ")
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


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE"])
def test_a_busy_proxy_is_asked_again(code: str, serve: Serve) -> None:
    def refuse(_requests: object, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode[code], "busy")
        yield b""

    proxy = grpc.server(ThreadPoolExecutor(1))
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(refuse)}
    proxy.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = proxy.add_insecure_port("127.0.0.1:0")
    proxy.start()
    client = Client(f"127.0.0.1:{port}", "c")
    waiting = client.events.wait(EventKind.WAITING)
    assert waiting.detail.startswith(f"{code}: busy")
    proxy.stop(0).wait()

    server = serve(port=port)
    server.clients.append(client)
    client.events.wait(EventKind.JOINED)

    assert server.ask()[0].has_content()


def test_a_hello_that_no_server_takes_is_not_sent() -> None:
    with pytest.raises(ConfigError, match="a server takes"):
        run_client(app, "127.0.0.1:1", client_id="c", node_config={"x": "y" * (1 << 20)})


def test_a_second_client_of_the_same_name_waits_until_the_first_has_left(serve: Serve) -> None:
    server = serve(reconnect_grace=0.1)
    go = threading.Event()
    first = server.client("twin", waiting_app(go))
    replies = server.stream()
    server.events.wait(EventKind.SENT, "twin")
    second = Client(server.address, "twin")
    server.clients.append(second)
    waiting = second.events.wait(EventKind.WAITING)
    assert waiting.detail.startswith("the client id 'twin' is in use; next try in ")
    says = f"no link to {server.address} for 0.5 s: the client id 'twin' is in use"
    assert str(Client(server.address, "twin", max_wait=0.5).ended()) == says

    go.set()
    assert next(replies).has_content()  # of the first, which has noticed nothing
    assert (first.events.count(EventKind.JOINED), first.events.count(EventKind.LEFT)) == (1, 0)
    first.stop.set()
    assert first.ended() is None
    second.events.wait(EventKind.JOINED)
    assert list(server.grid.get_node_ids()) == [node_id("twin")]


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
    replies = server.stream()
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


def test_garbage_is_refused_and_others_do_not_notice(serve: Serve) -> None:
    server = serve()
    server.client("good")
    with RawClient(server.address, b"\xff\x00garbage") as client:
        assert client.hear_out() == [Bye(ByeKind.REFUSED, "no frame has type 255")]
    with RawClient(server.address, bytes(2 << 20)) as client:
        assert "larger than max" in str(client.refusal().details())

    assert server.events.count(EventKind.REFUSED) == 1
    assert len(server.ask()) == 1


def test_a_reply_that_is_unreadable_or_too_large_is_an_error(serve: Serve) -> None:
    server = serve(max_message_bytes=1_000_000)
    client = server.client("c")
    (why,) = reasons(server.ask(size=1_000_000))
    assert why == "ConfigError: a reply of 4.0 MB; the server takes 1.0 MB"
    assert client.error is None

    with RawClient(server.address, pack(Hello(1, "odd", {}, []))) as odd:
        server.events.wait(EventKind.JOINED, "odd")
        request = next(r for r in server.requests() if r.metadata.dst_node_id == node_id("odd"))
        replies = server.grid.stream_replies([request], timeout=LONG)
        nonsense = b"\x04\0\0\0\0\0\0\0\xff\xff\xff\xff"  # an envelope that is no protobuf
        odd.say(pack(Begin(request.metadata.message_id, 12)), b"\x04" + nonsense)
        (why,) = reasons(list(replies))
    assert why.startswith("client 'odd' sent a reply that cannot be read: not a Flower message")
