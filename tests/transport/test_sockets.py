"""The link over real gRPC on loopback; tests/transport/test_session.py has the order of events."""

from __future__ import annotations

import gc
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsz.data_share import Share
from fedsz.errors import ConfigError, LinkError
from fedsz.transport.channel import METHOD, SERVICE
from fedsz.transport.frames import Begin, Bye, ByeKind, Hello, pack
from fedsz.transport.grpc_client import run_client
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.link_events import EventKind, LinkEvent
from fedsz.transport.node import node_id
from tests.links import (
    LONG,
    Client,
    Events,
    RawClient,
    app,
    free_port,
    reasons,
    resident_bytes,
    waiting_app,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.links import Serve, Spawn


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


def test_large_messages_pass_and_are_counted_though_a_display_is_broken(serve: Serve) -> None:
    def spoil(event: LinkEvent) -> None:
        events(event)
        raise RuntimeError("a broken display")

    events = Events()
    server = serve(on_event=spoil)
    server.events = events
    client = server.client("big")
    before = server.grid.counters
    size = 2_000_000  # floats: 8 MB, twice what gRPC passes by default
    start = time.perf_counter()
    (reply,) = server.ask(size=size)
    seconds = time.perf_counter() - start
    after = server.grid.counters

    assert reply.content["arrays"]["0"].numpy().shape == (size,)
    up = after.wire_bytes_received - before.wire_bytes_received
    down = after.wire_bytes_sent - before.wire_bytes_sent
    sizes = [(server, EventKind.RECEIVED, up)]
    sizes += [(client, EventKind.RECEIVED, down), (client, EventKind.SENT, up)]
    for end, kind, crossed in sizes:
        assert 4 * size < end.events.wait(kind).size < crossed < 4.01 * size
    # An upload takes less than its round does, and no memory is as fast as that.
    assert 32 * size / seconds < server.grid.bandwidths[node_id("big")] < 1e12


def open_files(folder: Path) -> int:
    """Count the files in a folder, also those without a name, that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return sum(name.startswith(str(folder)) for name in found)


def test_replies_wait_in_few_files_until_they_are_pulled_once(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = serve(max_connections=2)
    server.client("a")
    ids = server.grid.push_messages([Message(RecordDict(), 5, "train")])
    for n in range(1, 5):
        ids += server.grid.push_messages(server.requests(size=50_000))
        server.events.wait(EventKind.RECEIVED, n=n)
        if n == 1:
            (absent,) = server.grid.pull_messages([ids.pop(0)])
            assert absent.error.reason == "node 5 is not connected"
    # The model that was sent goes, too, once its sender has come to its end.
    deadline = time.monotonic() + LONG
    while open_files(tmp_path) > 2 and time.monotonic() < deadline:
        server.grid._call(lambda _: None)
        gc.collect()

    assert open_files(tmp_path) == 2
    replies = server.grid.pull_messages(ids)
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids[2:]
    assert all(reply.has_content() for reply in replies)
    assert server.grid.pull_messages(ids) == []


def test_replies_that_the_garbage_collector_frees_cause_no_deadlock(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, go = serve(), threading.Event()
    server.client("a", waiting_app(go))
    circle: list[object] = [server.grid.stream_replies(server.requests())]
    circle.append(circle)
    del circle
    loop = server.grid._loop
    assert loop is not None
    inner = loop.call_soon_threadsafe

    def collecting(*args: Any) -> Any:
        gc.collect()  # as it may at any time
        return inner(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", collecting)
    push = threading.Thread(target=server.grid.push_messages, args=([],), daemon=True)
    push.start()
    push.join(20.0)
    stuck = push.is_alive()
    if stuck:
        server.grid._lock = threading.RLock()  # else `close` would be stuck, too

    assert not stuck
    go.set()


@pytest.mark.parametrize("way", ["stall_up", "stall_down"])
def test_a_cut_message_is_sent_again_and_not_trained_again(serve: Serve, way: str) -> None:
    server = serve()
    proxy = server.proxy(**{way: 3_000_000})
    client = server.client("c", server=proxy.address)
    replies = server.stream(size=2_000_000)
    assert proxy.stalled.wait(LONG)
    proxy.cut()
    reply = next(replies)

    assert reply.content["metrics"]["calls"] == 1
    assert client.events.count(EventKind.JOINED) == 2
    assert client.events.count(EventKind.RECEIVED) == 1
    client.events.wait(EventKind.SENT)  # acknowledged, so it is not kept any longer


@pytest.mark.parametrize("way", ["stall_up", "stall_down"])
def test_a_message_that_is_not_awaited_is_broken_off(serve: Serve, way: str) -> None:
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
    child = spawn(server.address, size, *map(str, range(n)))
    server.events.wait(EventKind.JOINED, n=n)
    before = resident_bytes()
    replies = server.stream()
    server.events.wait(EventKind.RECEIVED, n=n)

    assert resident_bytes() - before < 1.5 * size
    for reply in replies:
        assert len(reply.content["arrays"]["0"].data) > size
        del reply
        assert resident_bytes() - before < 2.5 * size
    child.process.send_signal(signal.SIGINT)  # ends a client that waits at once
    assert child.process.communicate(timeout=LONG)[1].rstrip().endswith("KeyboardInterrupt")


def test_a_server_that_is_absent_or_of_another_kind() -> None:
    address = f"127.0.0.1:{free_port()}"
    error = str(Client(address, "c", max_wait=1.0).ended())
    assert error.startswith(f"no link to {address} for 1 s: UNAVAILABLE: ")
    assert "Connection refused" in error
    assert "\n" not in error

    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    of_another_kind = Client(f"127.0.0.1:{port}", "c").ended()
    other.stop(0).wait()
    assert isinstance(of_another_kind, LinkError)
    assert "UNIMPLEMENTED" in str(of_another_kind)


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE"])
def test_a_busy_proxy_is_tried_again(code: str, serve: Serve) -> None:
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


def test_options_are_checked(serve: Serve) -> None:
    for config, why in (({"x": [1]}, "node_config"), ({"x": "y" * (1 << 20)}, "a server takes")):
        with pytest.raises(ConfigError, match=why):
            run_client(app, "localhost:1", client_id="c", node_config=config)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="host:port"):
        run_client(app, "localhost", client_id="c")
    with pytest.raises(ConfigError, match="client_id"):
        run_client(app, "localhost:1", client_id="\ud800")
    server = serve()
    with pytest.raises(LinkError, match=f"{server.address}: Address already in use"):
        GrpcGrid(port=server.grid.port).start()
    with pytest.raises(ConfigError):
        GrpcGrid(port=70_000)


def test_closing_disconnects_all(serve: Serve) -> None:
    server = serve()
    go = threading.Event()
    client = server.client("busy", waiting_app(go))
    replies = server.stream()
    client.events.wait(EventKind.RECEIVED)
    server.grid.close("that was it")

    assert reasons(list(replies)) == ["the server was closed before client 'busy' replied"]
    assert client.events.wait(EventKind.LEFT).detail == "that was it"
    go.set()
    assert client.ended() is None
    with pytest.raises(LinkError, match="not serving"):
        server.grid.push_messages([])


def test_bad_bytes_fail_one_client_and_no_other(serve: Serve) -> None:
    server = serve(max_message_bytes=1_000_000)
    client = server.client("good")
    with RawClient(server.address, b"\xff\x00garbage") as bad:
        assert bad.hear_out() == [Bye(ByeKind.REFUSED, "no frame has type 255")]
    with RawClient(server.address, bytes(2 << 20)) as bad:
        assert "larger than max" in str(bad.refusal().details())
    assert server.events.count(EventKind.REFUSED) == 1
    (why,) = reasons(server.ask(size=1_000_000))
    assert why == "ConfigError: a reply of 4.0 MB; the server takes 1.0 MB"

    with RawClient(server.address, pack(Hello(1, "odd", {}, []))) as odd:
        server.events.wait(EventKind.JOINED, "odd")
        request = next(r for r in server.requests() if r.metadata.dst_node_id == node_id("odd"))
        replies = server.grid.stream_replies([request], timeout=LONG)
        nonsense = b"\x04\0\0\0\0\0\0\0\xff\xff\xff\xff"  # an envelope that is no protobuf
        odd.say(pack(Begin(request.metadata.message_id, 12)), b"\x04" + nonsense)
        (why,) = reasons(list(replies))
    assert why.startswith("client 'odd' sent a reply that cannot be read: not a Flower message")
    assert client.error is None


reporter = ClientApp()


@reporter.train()
def report_share(message: Message, context: Context) -> Message:
    """Reply with the share of the data that this client has."""
    share = Share.of(context.node_config)
    assert share is not None
    return Message(RecordDict({"share": MetricRecord(share._asdict())}), reply_to=message)


def shares_of(server: Any) -> dict[str, Share]:
    """Return the clients' shares, as their apps see them."""
    replies = {reply.metadata.src_node_id: reply.content["share"] for reply in server.ask()}
    return {server.grid.client_name(node): Share(**dict(own)) for node, own in replies.items()}


def test_a_process_has_the_share_and_the_name_of_the_one_before(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve(shares=2, reconnect_grace=0.0)
    options: dict[str, Any] = {"wants_share": True, "state_dir": tmp_path}
    before = Client(server.address, "", reporter, **options)
    name = server.events.wait(EventKind.JOINED).client_id
    assert shares_of(server) == {name: Share(0, 2)}
    before.stop.set()
    assert before.ended() is None

    # Another server, which knows of no client: all that is known is in the folder.
    for first, second in ((Share(1, 2), Share(0, 2)), (Share(0, 2), Share(1, 2))):
        other = serve(shares=2)
        other.client("first to come", reporter, node_config=first.as_config())
        after = Client(other.address, "", reporter, **options)
        other.clients.append(after)
        other.events.wait(EventKind.JOINED, name)
        assert shares_of(other) == {"first to come": first, name: second}
        after.stop.set()
        assert after.ended() is None

    error = Client(serve().address, "a", reporter, wants_share=True).ended()
    assert str(error) == "the server gives no shares of the data: name one by --partition I/N"
