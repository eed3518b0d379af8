"""Servers, clients and a proxy for tests of the gRPC link, with events to wait for."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import grpc
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.transport.channel import METHOD, SERVICE
from fedsz.transport.frames import unpack
from fedsz.transport.grpc_client import run_client
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.link_events import EventKind, LinkEvent, OnEvent
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Serve = Callable[..., "Server"]
    Spawn = Callable[..., "ClientProcess"]

LONG = 60.0  # seconds; what is awaited comes much sooner, or the test has failed

app = ClientApp()


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)
E = TypeVar("E")


@app.train()
def add_number(message: Message, context: Context) -> Message:
    """Add this client's number to every weight; count the calls in the Context."""
    number = int(context.node_config.get("number", 0))
    calls = context.state.setdefault("calls", MetricRecord({"n": 0}))
    calls["n"] += 1
    weights = [a.numpy() + np.float32(number) for a in message.content["arrays"].values()]
    metrics = MetricRecord({"num-examples": 1, "calls": calls["n"]})
    return Message(
        RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message
    )


@app.query()
def fail(message: Message, context: Context) -> Message:
    raise ValueError("no such thing")


class Heard(Generic[E]):
    """Keeps what happened, so that tests can wait for it."""

    def __init__(self) -> None:
        self.seen: list[E] = []
        self._news = threading.Condition()

    def hear(self, event: E) -> None:
        with self._news:
            self.seen.append(event)
            self._news.notify_all()

    def until(self, happened: Callable[[], Any]) -> Any:
        """Return what is true of what happened, as soon as it is."""
        with self._news:
            found = self._news.wait_for(happened, LONG)
        assert found, self.seen[-9:]
        return found


class Events(Heard[LinkEvent]):
    """What happened on a link; ``show`` has seen it first."""

    def __init__(self, show: OnEvent = lambda _: None) -> None:
        super().__init__()
        self._show = show

    def __call__(self, event: LinkEvent) -> None:
        self._show(event)
        self.hear(event)

    def of(self, kind: EventKind, client_id: str | None = None) -> list[LinkEvent]:
        return [e for e in self.seen if e.kind == kind and client_id in (None, e.client_id)]

    def count(self, kind: EventKind, client_id: str | None = None) -> int:
        return len(self.of(kind, client_id))

    def wait(self, kind: EventKind, client_id: str | None = None, n: int = 1) -> LinkEvent:
        self.until(lambda: self.count(kind, client_id) >= n)
        return self.of(kind, client_id)[-1]


class Client:
    """`run_client` in a thread."""

    def __init__(
        self,
        server: str,
        client_id: str,
        app: ClientApp = app,
        *,
        show: OnEvent = lambda _: None,
        **options: Any,
    ) -> None:
        self.events = Events(show)
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self._run = lambda: run_client(
            app, server, client_id=client_id, on_event=self.events, stop=self.stop, **options
        )
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def _main(self) -> None:
        try:
            self._run()
        except Exception as err:
            self.error = err

    def ended(self) -> BaseException | None:
        self.thread.join(LONG)
        assert not self.thread.is_alive()
        return self.error


class Server:
    """A grid that serves, its events, and the clients a test starts."""

    def __init__(self, **options: Any) -> None:
        self.events = Events()
        options = {"port": 0, "reconnect_grace": LONG, "on_event": self.events} | options
        self.grid = GrpcGrid(**options).start()
        self.address = f"127.0.0.1:{self.grid.port}"
        self.clients: list[Client] = []
        self.proxies: list[Proxy] = []

    def client(self, client_id: str, app: ClientApp = app, **options: Any) -> Client:
        server = options.pop("server", self.address)
        joined = self.events.count(EventKind.JOINED, client_id)
        client = Client(server, client_id, app, **options)
        self.clients.append(client)
        self.events.wait(EventKind.JOINED, client_id, joined + 1)
        client.events.wait(EventKind.JOINED)
        return client

    def proxy(self, **stalls: int) -> Proxy:
        """Return a way to it that can be cut."""
        self.proxies.append(Proxy(self.grid.port, **stalls))
        return self.proxies[-1]

    def requests(self, size: int = 4, number: int = 0, kind: str = "train") -> list[Message]:
        """Return a message of a round for each client."""
        arrays, config = ArrayRecord([np.zeros(size, np.float32)]), ConfigRecord()
        config["server-round"] = number
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, kind) for node in self.grid.get_node_ids()]

    def stream(self, **options: Any) -> Any:
        """Ask all clients, and return the replies as they come."""
        return self.grid.stream_replies(self.requests(**options), timeout=LONG)

    def ask(self, **options: Any) -> list[Message]:
        """Ask all clients, and return their replies."""
        return list(self.stream(**options))

    def close(self) -> None:
        self.grid.close()
        for proxy in self.proxies:
            proxy.close()
        for client in self.clients:
            client.stop.set()
        for client in self.clients:
            client.ended()


class Proxy:
    """A TCP proxy that cuts its connections on command, or stalls one after some bytes."""

    def __init__(self, port: int, *, stall_up: int = 1 << 62, stall_down: int = 1 << 62) -> None:
        self.target = port
        self.stall_up, self.stall_down = stall_up, stall_down  # bytes that pass before it stalls
        self.stalled = threading.Event()
        self.resume = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                down, _ = self._listener.accept()
                try:
                    up = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    down.close()
                    continue
                self._sockets += [down, up]
                for ends in ((down, up, "stall_up"), (up, down, "stall_down")):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, limit: str) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                passed += len(data)
                if passed > getattr(self, limit):
                    self.stalled.set()
                    self.resume.wait(LONG)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """End all connections; the next ones do not stall."""
        self.stall_up = self.stall_down = 1 << 62
        while self._sockets:
            gone = self._sockets.pop()
            with contextlib.suppress(OSError):
                gone.shutdown(socket.SHUT_RDWR)
            gone.close()
        self.resume.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


class ClientProcess:
    """A process with clients whose replies have a given size in bytes; see `be_clients`."""

    def __init__(self, server: str, size: int, *client_ids: str) -> None:
        code = "from tests.links import be_clients; be_clients()"
        command = [sys.executable, "-c", code, server, str(size), *client_ids]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def be_clients() -> None:
    """Be the clients that the command line names, each in a thread."""
    _, server, size, first, *others = sys.argv
    large = ClientApp()

    @large.train()
    def reply(message: Message, context: Context) -> Message:
        arrays = ArrayRecord([np.ones(int(size) // 4, np.float32)])
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    run = partial(run_client, large, server)
    for name in others:
        threading.Thread(target=run, kwargs={"client_id": name}, daemon=True).start()
    run(client_id=first)


@contextlib.contextmanager
def closing_all(kind: Callable[..., T]) -> Iterator[Callable[..., T]]:
    """Give a maker of ``kind``; what it has made is closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(
            contextlib.closing(kind(*args, **options))
        )


def waiting_app(go: threading.Event) -> ClientApp:
    """An app that replies once ``go`` is set."""
    patient = ClientApp()

    @patient.train()
    def wait(message: Message, context: Context) -> Message:
        assert go.wait(LONG)
        return add_number(message, context)

    return patient


def free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class RawClient:
    """A client that says what it likes: any bytes as frames, and listens when asked to."""

    def __init__(
        self,
        server: str,
        *said: bytes,
        method: str = METHOD,
        credentials: grpc.ChannelCredentials | None = None,
        options: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self.say(*said)
        options = (("grpc.use_local_subchannel_pool", 1), *options)
        if credentials is None:
            self._channel = grpc.insecure_channel(server, options)
        else:
            self._channel = grpc.secure_channel(server, credentials, options)
        stream = self._channel.stream_stream(f"/{SERVICE}/{method}")
        self.raw = stream(iter(self._outbox.get, None), timeout=LONG)  # what the server says

    def say(self, *frames: bytes | None) -> None:
        """Send frames; None is the end of them."""
        for frame in frames:
            self._outbox.put(frame)

    def hear_out(self) -> list[Any]:
        """Return what the server says until it ends the stream."""
        return [unpack(raw) for raw in self.raw]

    def refusal(self) -> grpc.RpcError:
        """Return how gRPC ends the stream."""
        try:
            for _ in self.raw:
                pass
        except grpc.RpcError as err:
            return err
        raise AssertionError("the stream ended well")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._outbox.put(None)
        self._channel.close()


def reasons(replies: Sequence[Message]) -> list[str]:
    return [reply.error.reason or "" for reply in replies if reply.has_error()]
