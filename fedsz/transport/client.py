"""`run_client`: a Flower ClientApp at the other end of a `GrpcGrid`."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import msgspec

from fedsz.errors import ConfigError, CorruptStream, LinkError
from fedsz.transport.frames import (
    PROTOCOL,
    Ack,
    Arrival,
    Begin,
    Bye,
    ByeKind,
    Hello,
    Welcome,
    frames,
    message_wire_size,
    pack,
    unpack,
)
from fedsz.transport.link import (
    CHANNEL_OPTIONS,
    DEFAULT_MAX_MESSAGE_BYTES,
    METHOD,
    SERVICE,
    EventKind,
    LinkEvent,
    OnEvent,
    tell,
)
from fedsz.transport.messages import Buffer, decode_message
from fedsz.transport.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from flwr.app import UserConfig
    from flwr.clientapp import ClientApp

    from fedsz.transport.messages import Encoded

    # Messages of a connection as they are to be written, each an iterable of frames; None ends it.
    _Outbox = queue.SimpleQueue[Iterable[bytes] | None]

_POLL_SECONDS = 0.5  # between looks at the clock and at `stop` while there is nothing to do
_PART_SECONDS = 1.0
_JOIN_SECONDS = 2.0
_FIRST_DELAY, _LAST_DELAY = 0.5, 30.0  # seconds between attempts to connect

# Answers that another attempt would only hear again.
_FINAL_CODES = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # HELLO is larger than a frame may be
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)


def run_client(
    app: ClientApp,
    server: str,
    *,
    client_id: str,
    node_config: UserConfig | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    run_config: UserConfig | None = None,
    max_wait: float | None = None,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    on_event: OnEvent | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Answer a server's messages with ``app`` until the server says that the run is over.

    The app runs in the calling thread, one message after another; another thread keeps the
    connection meanwhile and restores it whenever it breaks, waiting longer after each failure
    (half a second at first, half a minute at most). A reply is kept until the server has
    acknowledged it, so a broken upload is repeated and not trained again.

    Args:
        app: a Flower ClientApp; what it raises becomes an error reply.
        server: ``host:port``.
        client_id: names this client; a second one of the same name replaces the first.
        node_config: the app's ``context.node_config``; also told to the server.
        credentials: for TLS, see `fedsz.transport.tls.channel_credentials`; None sends plain text.
        run_config: the app's ``context.run_config``.
        max_wait: seconds to go on without a server, at first and later; None never gives up.
        max_message_bytes: the largest message taken from the server.
        on_event: told of the link and of messages, from the link's thread: must not block.
        stop: ends the client when set, after the message in work.

    Raises:
        ConfigError: ``server``, ``client_id`` or ``node_config`` is not usable.
        LinkError: the server cannot be reached, refuses this client, or took another in its place.
    """
    if not server.rpartition(":")[2].isdecimal():
        raise ConfigError(f"a server is host:port, got {server!r}")
    hello = Hello(PROTOCOL, client_id, dict(node_config or {}), [])
    try:
        unpack(pack(hello))
    except (TypeError, ValueError) as err:
        raise ConfigError(f"client_id or node_config cannot be sent: {err}") from err
    node = Node(app, hello.node_config, run_config)
    link = _Link(
        server,
        hello,
        credentials=credentials,
        max_message_bytes=max_message_bytes,
        on_event=on_event,
    )
    with link:
        while stop is None or not stop.is_set():
            link.raise_if_over(max_wait)
            if link.finished:
                return
            try:
                task = link.tasks.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if task is not None:
                _work(node, link, task)


@dataclass(frozen=True)
class _Task:
    """A request that has arrived whole, and how large a reply its server takes."""

    message_id: str
    buffer: Buffer
    size: int
    reply_limit: int


def _work(node: Node, link: _Link, task: _Task) -> None:
    """Run the app on a request and hand its reply to the link.

    Raises:
        LinkError: the request is unreadable.
    """
    if not link.owes(task.message_id):
        return
    try:
        message = decode_message(task.buffer, task.size)
    except CorruptStream as err:
        raise LinkError(f"{link.server} sent a message that cannot be read: {err}") from err
    link.hand_in(node.answer(message, limit=task.reply_limit))


class _Link:
    """The connection to the server, kept up by a thread of its own while the app works.

    Attributes:
        server: its address.
        tasks: requests for the app; None wakes the reader up to look at how things stand.
        finished: the server has said that the run is over.
    """

    def __init__(
        self,
        server: str,
        hello: Hello,
        *,
        credentials: grpc.ChannelCredentials | None,
        max_message_bytes: int,
        on_event: OnEvent | None,
    ) -> None:
        self.server = server
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.finished = False
        self._hello = hello
        self._credentials = credentials
        self._max_message_bytes = max_message_bytes
        self._on_event = on_event
        self._failure: Exception | None = None
        self._alone_since: float | None = time.monotonic()
        self._trouble = "no answer yet"
        self._closed = threading.Event()
        self._call: grpc.Call | None = None
        # Requests that have arrived whole, and the reply to each as soon as there is one. An entry
        # stays until the server acknowledges the reply or says that it does not want it any more.
        self._owed: dict[str, Encoded | None] = {}
        self._outbox: _Outbox | None = None  # of the connection, once the server has welcomed us
        self._lock = threading.Lock()  # over _owed and _outbox
        self._thread = threading.Thread(target=self._run, name="fedsz-link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join(_JOIN_SECONDS)

    def raise_if_over(self, max_wait: float | None) -> None:
        """Raise what has ended the link, or LinkError after ``max_wait`` seconds without one."""
        if self._failure is not None:
            raise self._failure
        alone_since = self._alone_since
        if max_wait is None or alone_since is None:
            return
        if time.monotonic() - alone_since > max_wait:
            raise LinkError(f"no fedsz server at {self.server} for {max_wait:g} s: {self._trouble}")

    def owes(self, message_id: str) -> bool:
        """Return whether the server still waits for the reply to this request."""
        with self._lock:
            return message_id in self._owed

    def hand_in(self, reply: Encoded) -> None:
        """Send a reply, now or as soon as there is a connection, until the server has it."""
        with self._lock:
            if reply.message_id not in self._owed:
                return
            self._owed[reply.message_id] = reply
            if self._outbox is not None:
                self._outbox.put(self._upload(reply))

    def _upload(self, reply: Encoded) -> Iterator[bytes]:
        """Yield the frames of a reply for as long as the server wants it."""
        for frame in frames(reply):
            if not self.owes(reply.message_id):
                return
            yield frame

    def _run(self) -> None:
        try:
            self._keep_up()
        except Exception as err:
            self._failure = err
        finally:
            self.tasks.put(None)

    def _keep_up(self) -> None:
        """Connect again and again, until the server or the app's side ends it.

        Raises:
            LinkError: the server sent this client away, or cannot be talked to.
        """
        delay = _FIRST_DELAY
        while not self._closed.is_set():
            bye = self._converse()
            if self._closed.is_set():
                return
            if bye is not None and bye.kind == ByeKind.FINISHED:
                self.finished = True
                self._tell(EventKind.LEFT, detail=bye.reason)
                return
            if bye is not None:
                raise LinkError(f"{self.server} has {bye.kind} this client: {bye.reason}")
            if self._alone_since is None:  # it was a good connection until now
                self._alone_since = time.monotonic()
                self._tell(EventKind.LEFT, detail=self._trouble)
                delay = _FIRST_DELAY
            # Clients that lost the same server must not all come back at the same moment.
            pause = delay * random.uniform(0.5, 1.0)  # noqa: S311
            delay = min(2 * delay, _LAST_DELAY)
            self._tell(EventKind.WAITING, detail=f"{self._trouble}; next try in {pause:.1f} s")
            self._closed.wait(pause)

    def _converse(self) -> Bye | None:
        """Hold one connection until it ends; return the server's last word if there was one."""
        outbox: _Outbox = queue.SimpleQueue()
        with self._lock:
            hello = msgspec.structs.replace(self._hello, have=list(self._owed))
        outbox.put([pack(hello)])
        with self._channel() as channel:
            # gRPC takes all that is ever written to a stream from one iterator.
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(_drain(outbox))
            self._call = call
            try:
                bye = None if self._closed.is_set() else self._listen(call, outbox)
                if bye is not None:
                    _part(call, outbox)
                return bye
            except grpc.RpcError as err:
                self._trouble = _one_line(err)
                if err.code() in _FINAL_CODES or "CERTIFICATE_VERIFY_FAILED" in self._trouble:
                    raise LinkError(f"no link to {self.server}: {self._trouble}") from err
                return None
            except CorruptStream as err:
                raise LinkError(f"{self.server} breaks the protocol: {err.what}") from err
            finally:
                with self._lock:
                    self._outbox = None
                outbox.put(None)
                call.cancel()

    def _channel(self) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(self.server, CHANNEL_OPTIONS)
        return grpc.secure_channel(self.server, self._credentials, CHANNEL_OPTIONS)

    def _listen(self, call: Iterable[bytes], outbox: _Outbox) -> Bye | None:
        arrival: Arrival[Buffer] | None = None
        reply_limit = 0
        for raw in call:
            frame = unpack(raw)
            if isinstance(frame, memoryview) and arrival is not None:
                arrival.feed(frame)
            elif isinstance(frame, Begin):
                arrival = Arrival(frame, Buffer(), limit=self._max_message_bytes)
            elif isinstance(frame, Welcome):
                reply_limit = frame.max_message_bytes
                self._welcomed(frame, outbox)
            elif isinstance(frame, Ack):
                self._acknowledged(frame)
            elif isinstance(frame, Bye):
                return frame
            else:
                raise CorruptStream(f"a frame of type {raw[0]} out of place")
            if arrival is not None and arrival.complete:
                self._arrived(arrival, reply_limit)
                arrival = None
        self._trouble = "the server closed the connection"
        return None

    def _welcomed(self, welcome: Welcome, outbox: _Outbox) -> None:
        with self._lock:
            self._owed = {i: self._owed[i] for i in welcome.wanted if i in self._owed}
            for reply in self._owed.values():
                if reply is not None:
                    outbox.put(self._upload(reply))
            self._outbox = outbox
        self._alone_since = None
        self._tell(EventKind.JOINED)

    def _arrived(self, arrival: Arrival[Buffer], reply_limit: int) -> None:
        with self._lock:
            if arrival.sink is None or arrival.message_id in self._owed:
                return
            self._owed[arrival.message_id] = None
        self._tell(EventKind.RECEIVED, arrival.message_id, arrival.wire_bytes)
        self.tasks.put(_Task(arrival.message_id, arrival.sink, arrival.size, reply_limit))

    def _acknowledged(self, ack: Ack) -> None:
        with self._lock:
            reply = self._owed.pop(ack.message_id, None)
        if not ack.received:
            detail = "the server no longer waits for this reply"
            self._tell(EventKind.FAILED, ack.message_id, detail=detail)
        elif reply is not None:
            self._tell(EventKind.SENT, ack.message_id, message_wire_size(reply))

    def _tell(
        self, kind: EventKind, message_id: str = "", wire_bytes: int = 0, detail: str = ""
    ) -> None:
        client_id = self._hello.client_id
        tell(self._on_event, LinkEvent(kind, client_id, message_id, wire_bytes, detail))


def _part(call: grpc.Call, outbox: _Outbox) -> None:
    """Let the server end the stream in good order; a moment is enough, or it does not matter."""
    impatience = threading.Timer(_PART_SECONDS, call.cancel)
    impatience.start()
    outbox.put(None)
    with contextlib.suppress(grpc.RpcError):
        deque(call, maxlen=0)
    impatience.cancel()


def _drain(outbox: _Outbox) -> Iterator[bytes]:
    """Yield the frames of what is put into ``outbox`` until None is."""
    while (item := outbox.get()) is not None:
        yield from item


def _one_line(err: grpc.RpcError) -> str:
    """Return what gRPC knows of a failure: its status, and the first line of the details."""
    details = (err.details() or "").strip().partition("\n")[0]
    return f"{err.code().name}: {details}"
