"""GrpcGrid and run_client over real gRPC on loopback, and what happens when links break."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsz.errors import ConfigError, LinkError
from fedsz.flower_compat import ErrorCode
from fedsz.transport.client import run_client
from fedsz.transport.events import EventKind, LinkEvent
from fedsz.transport.frames import Ack, Begin, Bye, ByeKind, Hello, Welcome, frames, pack
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.messages import encode_message
from fedsz.transport.node import node_id
from tests.links import (
    LONG,
    Client,
    Events,
    Proxy,
    RawClient,
    Server,
    app,
    free_port,
    reasons,
    resident_bytes,
    waiting_app,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Serve = Callable[..., Server]
    ProxyTo = Callable[[int], Proxy]
    Spawn = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def start(**options: Any) -> Server:
        servers.append(Server(**options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def proxy_to() -> Iterator[ProxyTo]:
    proxies: list[Proxy] = []

    def start(port: int) -> Proxy:
        proxies.append(Proxy(port))
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.close()


CHILD = """
import sys, threading
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from fedsz.transport.client import run_client

app = ClientApp()

@app.train()
def large(message, context):
    arrays = ArrayRecord([np.ones(int(sys.argv[2]) // 4, np.float32)])
    return Message(RecordDict({"arrays": arrays}), reply_to=message)

def run(client_id):
    run_client(app, sys.argv[1], client_id=client_id)

first, *others = sys.argv[3:]
for client_id in others:
    threading.Thread(target=run, args=(client_id,), daemon=True).start()
run(first)
"""


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a process with clients whose replies have a given size in bytes."""
    children: list[subprocess.Popen[str]] = []

    def start(server: str, size: int, *client_ids: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, server, str(size), *client_ids],
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


# What a run is made of


def test_unmodified_flower_apps_run(serve: Serve) -> None:
    server = serve()
    clients = [server.client(f"c{i}", node_config={"number": i}) for i in range(3)]
    server_app = ServerApp()
    results = []

    @server_app.main()
    def main(grid: Any, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=3)
        initial = ArrayRecord([np.zeros((2, 3), np.float32)])
        results.append(strategy.start(grid, initial, num_rounds=3, timeout=LONG))

    server_app(server.grid, Context(0, 1, {}, RecordDict(), {}))
    server.grid.close()

    np.testing.assert_allclose(results[0].arrays["0"].numpy(), np.full((2, 3), 3.0), rtol=1e-5)
    assert results[0].train_metrics_clientapp[3]["calls"] == pytest.approx(3)  # Contexts last
    assert [client.ended() for client in clients] == [None] * 3


def test_large_messages_pass_and_are_counted(serve: Serve) -> None:
    server = serve()
    client = server.client("big")
    before = server.grid.counters
    size = 2_000_000  # floats: 8 MB, twice what gRPC passes by default
    (reply,) = server.grid.send_and_receive(server.requests(size=size), timeout=LONG)
    after = server.grid.counters

    assert reply.content["arrays"]["0"].numpy().shape == (size,)
    assert (after.messages_sent, after.messages_received) == (1, 1)
    up = after.wire_bytes_received - before.wire_bytes_received
    down = after.wire_bytes_sent - before.wire_bytes_sent
    assert 4 * size < up == server.events.wait(EventKind.RECEIVED).wire_bytes < 4.01 * size
    sent = server.events.wait(EventKind.SENT).wire_bytes
    assert 4 * size < sent <= down < 4.01 * size  # WELCOME and ACK are in the total only
    assert client.events.wait(EventKind.RECEIVED).wire_bytes == sent
    assert client.events.wait(EventKind.SENT).wire_bytes == up


def test_a_failing_app_is_an_error_reply_and_goes_on(serve: Serve) -> None:
    server = serve()
    server.client("c")
    (failed,) = server.grid.send_and_receive(server.requests("query"), timeout=LONG)
    (reply,) = server.grid.send_and_receive(server.requests(), timeout=LONG)

    assert failed.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert failed.error.reason == "ValueError: no such thing"
    assert reply.has_content()


def test_push_and_pull(serve: Serve) -> None:
    server = serve()
    server.client("a")
    server.client("b")
    ids = server.grid.push_messages(server.requests())
    server.events.wait(EventKind.RECEIVED, n=2)
    pulled: list[Message] = []
    deadline = time.monotonic() + LONG
    while len(pulled) < 2 and time.monotonic() < deadline:
        pulled += server.grid.pull_messages(ids)

    assert {reply.metadata.reply_to_message_id for reply in pulled} == set(ids)
    assert server.grid.pull_messages(ids) == []


def test_replies_stream_in_the_order_they_come(serve: Serve) -> None:
    server = serve()
    go = threading.Event()
    server.client("slow", waiting_app(go))
    server.client("quick")
    replies = server.grid.stream_replies(server.requests(), timeout=LONG)
    first = next(replies)
    go.set()

    assert first.metadata.src_node_id == node_id("quick")
    assert [reply.metadata.src_node_id for reply in replies] == [node_id("slow")]


def test_a_stream_that_is_closed_early_gives_up_the_rest(serve: Serve) -> None:
    server = serve()
    go = threading.Event()
    slow = server.client("slow", waiting_app(go))
    server.client("quick")
    replies = server.grid.stream_replies(server.requests())
    next(replies)
    slow.events.wait(EventKind.RECEIVED)
    replies.close()  # type: ignore[attr-defined]
    slow.events.wait(EventKind.FAILED)
    go.set()

    assert server.events.count(EventKind.RECEIVED) == 1


def test_reply_metadata_is_the_servers_own(serve: Serve) -> None:
    liar = ClientApp()

    @liar.train()
    def lie(message: Message, context: Context) -> Message:
        reply = Message(RecordDict(), reply_to=message)
        reply.metadata.__dict__.update(_src_node_id=7, _reply_to_message_id="other", _run_id=9)
        return reply

    server = serve()
    server.client("liar", liar)
    (request,) = server.requests()
    (reply,) = server.grid.send_and_receive([request], timeout=LONG)

    assert reply.metadata.src_node_id == node_id("liar")
    assert reply.metadata.reply_to_message_id == request.metadata.message_id
    assert reply.metadata.run_id == server.grid.run.run_id


def test_on_event_may_fail(serve: Serve) -> None:
    def spoil(event: LinkEvent) -> None:
        events(event)
        raise RuntimeError("a broken display")

    events = Events()
    server = serve(on_event=spoil)
    server.events = events
    server.client("c")

    assert len(server.grid.send_and_receive(server.requests(), timeout=LONG)) == 1


# Who is there, who is not


def test_a_client_waits_for_its_server(serve: Serve) -> None:
    port = free_port()
    early = Client(f"127.0.0.1:{port}", "early")
    assert "refused" in early.events.wait(EventKind.WAITING).detail
    server = serve(port=port)
    server.clients.append(early)
    server.events.wait(EventKind.JOINED, "early")

    assert list(server.grid.get_node_ids()) == [node_id("early")]


def test_a_client_without_a_server_gives_up(serve: Serve) -> None:
    address = f"127.0.0.1:{free_port()}"
    error = Client(address, "c", max_wait=0.1).ended()

    assert isinstance(error, LinkError)
    assert str(error).startswith(f"no fedsz server at {address} for 0.1 s: UNAVAILABLE: ")
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


def test_messages_to_nobody_are_errors_at_once(serve: Serve) -> None:
    server = serve(reconnect_grace=0.0)
    client = server.client("gone")
    request = server.requests()[0]
    client.stop.set()
    assert client.ended() is None
    server.events.wait(EventKind.LEFT, "gone")
    never = Message(RecordDict(), 5, "train")
    deadline = time.monotonic() + LONG
    while "is not connected" not in (reason := reasons(server.grid.send_and_receive([request]))[0]):
        assert time.monotonic() < deadline  # its grace, of no length, ends in the next instant

    assert reason == "client 'gone' is not connected"
    replies = server.grid.send_and_receive([never])
    assert reasons(replies) == ["node 5 is not connected"]
    assert replies[0].error.code == ErrorCode.NODE_UNAVAILABLE


def test_a_second_client_of_the_same_name_replaces_the_first(serve: Serve) -> None:
    server = serve()
    go = threading.Event()
    first = server.client("twin", waiting_app(go))
    replies = server.grid.stream_replies(server.requests(), timeout=LONG)
    server.events.wait(EventKind.SENT, "twin")
    server.client("twin")

    assert next(replies).has_content()  # the message went out again
    go.set()
    assert isinstance(first.ended(), LinkError)
    assert "replaced" in str(first.error)
    assert "'twin'" in str(first.error)
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
    replies = server.grid.stream_replies(server.requests())
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
        run_client(app, "localhost:1", client_id="")
    with pytest.raises(ConfigError, match="node_config"):
        run_client(app, "localhost:1", client_id="c", node_config={"x": [1]})  # type: ignore[dict-item]


def test_ctrl_c_ends_a_waiting_client_at_once(serve: Serve, spawn: Spawn) -> None:
    server = serve()
    child = spawn(server.address, 4, "child")
    server.events.wait(EventKind.JOINED, "child")
    child.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, errors = child.communicate(timeout=LONG)

    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert time.monotonic() - start < 3


# Links that break


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
    child.kill()
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
    child.kill()

    assert "client 'victim' left " in reasons(list(replies))[0]


def test_an_upload_that_was_cut_is_repeated_not_trained_again(
    serve: Serve, proxy_to: ProxyTo
) -> None:
    server = serve()
    proxy = proxy_to(server.grid.port)
    proxy.stall_up = 3_000_000
    client = server.client("c", server=proxy.address)
    replies = server.grid.stream_replies(server.requests(size=2_000_000), timeout=LONG)
    assert proxy.stalled.wait(LONG)
    proxy.stall_up = 1 << 62
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


def test_a_message_that_was_cut_is_sent_again(serve: Serve, proxy_to: ProxyTo) -> None:
    server = serve()
    proxy = proxy_to(server.grid.port)
    proxy.stall_down = 3_000_000
    client = server.client("c", server=proxy.address)
    replies = server.grid.stream_replies(server.requests(size=5_000_000), timeout=LONG)
    assert proxy.stalled.wait(LONG)
    proxy.stall_down = 1 << 62
    proxy.cut()
    reply = next(replies)

    assert reply.content["metrics"]["calls"] == 1
    assert client.events.count(EventKind.JOINED) == 2
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
        replies = server.grid.stream_replies([request], timeout=1)
        begin = pack(Begin(request.metadata.message_id, 40_000_000))
        client.say(begin, b"\x04" + bytes(600_000), b"\x04" + bytes(600_000))

        assert reasons(list(replies)) == [
            "no reply from client 'c' within 1 s, given up during upload (1.2 of 40.0 MB)"
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


# Strangers and mistakes


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


def test_a_message_over_the_clients_limit_ends_it(serve: Serve) -> None:
    server = serve(reconnect_grace=0.0)
    client = server.client("c", max_message_bytes=1_000_000)
    replies = server.grid.send_and_receive(server.requests(size=1_000_000), timeout=LONG)

    assert isinstance(client.ended(), LinkError)
    assert "a message of 4.0 MB, at most 1.0 MB" in str(client.error)
    assert len(reasons(replies)) == 1
