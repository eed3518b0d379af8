"""`run_client`: a Flower ClientApp at the other end of a `GrpcGrid`.

`ClientSession` decides what the client sends; here are its threads and its stream.
"""

from __future__ import annotations

import gc
import queue
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Self

import grpc
from flwr.app import Message, UserConfig
from flwr.clientapp import ClientApp

from fedsz.errors import ConfigError, CorruptStream, LinkError
from fedsz.transport import channel
from fedsz.transport.channel import DEFAULT_MAX_MESSAGE_BYTES
from fedsz.transport.client_session import ClientSession, Request
from fedsz.transport.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL,
    ByeKind,
    Hello,
    frames,
    pack,
    unpack,
)
from fedsz.transport.link_events import EventKind, LinkEvent, OnEvent, tell
from fedsz.transport.message_format import EncodedMessage, decode_message
from fedsz.transport.node import Node, StateFolder

# Messages of a connection as they are to be written, each an iterable of frames; None ends it.
_Outbox = queue.SimpleQueue[Iterable[bytes] | None]

_SESSION_KEY_BYTES = 16
_POLL_SECONDS = 0.5  # between looks at the clock and at `stop` while there is nothing to do
MAX_HELLO_BYTES = MAX_FRAME_BYTES - (4 << 10)  # HELLO also lists the requests that are in work
_JOIN_SECONDS = 2.0
FIRST_DELAY, LAST_DELAY = 0.5, 30.0  # seconds between attempts to connect

# Answers that another attempt would only get again. A proxy that is busy or restarts answers with
# other codes, such as RESOURCE_EXHAUSTED or UNAUTHENTICATED: the client tries again.
_FINAL_CODES = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED)
# gRPC's words for a server whose certificate has another authority, or is for other hosts.
_WRONG_SERVER = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed")
# gRPC says of a missing certificate, or of TLS at one end alone, that the socket was closed.
_TLS_HINTS = {
    True: "; does the server speak TLS, and has its --tls-ca signed this client's certificate?"
    " If the server has --insecure, the client needs it too",
    False: "; does the server speak TLS? Then give --tls-ca in place of --insecure",
}


def run_client(
    app: ClientApp,
    server: str,
    *,
    client_id: str,
    node_config: UserConfig | None = None,
    wants_share: bool = False,
    credentials: grpc.ChannelCredentials | None = None,
    run_config: UserConfig | None = None,
    max_wait: float | None = None,
    state_dir: Path | None = None,
    max_message_bytes: int | Callable[[], int] = DEFAULT_MAX_MESSAGE_BYTES,
    on_event: OnEvent | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Answer a server's messages with ``app`` until the server says that the run has finished.

    A server that fails or is killed has not finished: the client waits for it to come back.

    The app runs in the calling thread, one message after another. Another thread keeps the
    connection and restores it whenever it breaks. It waits longer after each failure (half a second
    at first, half a minute at most). A reply is kept until the server has
    acknowledged it, so a broken upload is repeated and not trained again.

    Args:
        app: a Flower ClientApp; what it raises becomes an error reply.
        server: ``host:port``.
        client_id: names this client. While a process of this name is connected, a second one
            waits, as it does for a server that is not there. "" draws one, which
            ``state_dir`` keeps.
        node_config: the app's ``context.node_config``; the server is sent it, too.
        wants_share: ask the server for a share of the data, which ``context.node_config`` then has
            as "partition-id" and "num-partitions". If ``state_dir`` has kept one, ask for that.
        credentials: for TLS, see `channel_credentials`; None sends plain text.
        run_config: the app's ``context.run_config``.
        max_wait: seconds to go on without a server, at first and later; None never gives up.
        state_dir: a folder for the Context's state, to go on with after a crash; it is emptied
            when the run is over. None keeps it in memory alone.
        max_message_bytes: the largest message taken from the server; a function is asked for each.
        on_event: receives the events of the link, from several threads: must not block.
        stop: ends the client when set, after the message in work.

    Raises:
        ConfigError: ``server``, ``client_id``, ``node_config`` or ``state_dir`` is not usable.
        LinkError: the server cannot be reached, refuses this client, or took another in its place.

    Examples:
        >>> import threading, time
        >>> from flwr.clientapp import ClientApp
        >>> from fedsz.flower import FedSZMod, GrpcGrid, run_client
        >>> app = ClientApp(mods=[FedSZMod()])
        >>> with GrpcGrid(port=0) as grid:
        ...     server, name = f"127.0.0.1:{grid.port}", {"client_id": "pi-1"}
        ...     client = threading.Thread(target=run_client, args=(app, server), kwargs=name)
        ...     client.start()
        ...     while not (nodes := list(grid.get_node_ids())):
        ...         time.sleep(0.1)
        >>> client.join()  # the run is over
        >>> len(nodes)
        1
    """
    channel.check_address(server)
    session_key = secrets.token_bytes(_SESSION_KEY_BYTES)
    drawn = f"{socket.gethostname()}/{secrets.token_hex(4)}"
    named = client_id or drawn
    hello = Hello(PROTOCOL, named, dict(node_config or {}), [], session_key, wants_share)
    _check_hello(hello)
    if credentials is None:
        channel.warn_of_plaintext(f"to {server}")
    with ExitStack() as stack:
        folder = None
        if state_dir is not None:
            folder = stack.enter_context(StateFolder(state_dir))
            hello = folder.resume(hello, named=bool(client_id))
        link = stack.enter_context(_Link(server, hello, max_message_bytes, credentials, on_event))
        node = Node(app, hello.node_config, run_config, folder)
        stack.callback(gc.unfreeze)
        _answer_requests(link, node, folder, hello, max_wait, stop)


def _answer_requests(
    link: _Link,
    node: Node,
    folder: StateFolder | None,
    hello: Hello,
    max_wait: float | None,
    stop: threading.Event | None,
) -> None:
    """Answer one request after another, until the run is over or ``stop`` is set.

    ``hello`` is what the node was configured by: the link's may have another share already.
    """
    answered = 0
    while stop is None or not stop.is_set():
        link.raise_if_over(max_wait)
        if link.finished:
            if folder is not None:
                folder.clear()
            return
        request = link.next_request(_POLL_SECONDS)
        if request is None:
            continue
        if link.session.hello != hello:  # the server has given it another share of the data
            hello = link.session.hello
            node.configure(hello.node_config)
            if folder is not None:
                folder.keep(hello)
        link.hand_in(_answer(link, node, request))
        answered += 1
        # Streams and records may refer to each other in circles: without a collection those
        # that came and went would stay beside the next ones.
        gc.collect()
        if answered == 1:
            # The app and its libraries are loaded, and stay. With PyTorch they are so many
            # objects that each collection would look at them for 0.1 s.
            gc.freeze()


def _check_hello(hello: Hello) -> None:
    """Raise ConfigError unless a server can read this."""
    try:
        raw = pack(hello)
        unpack(raw)
    except (TypeError, ValueError) as err:
        raise ConfigError(f"client_id or node_config cannot be sent: {err}") from err
    if len(raw) > MAX_HELLO_BYTES:
        most = f"a server takes {MAX_HELLO_BYTES}"
        raise ConfigError(f"client_id and node_config have {len(raw)} bytes; {most}")


def _answer(link: _Link, node: Node, request: Request) -> EncodedMessage:
    """Run the app on a request, and return its reply.

    Raises:
        LinkError: the request cannot be read.
    """
    try:
        with request.source as source:  # its bytes go before the app works
            message = decode_message(source, request.size)
    except CorruptStream as err:
        raise LinkError(f"{link.server} sent a message that cannot be read: {err}") from err
    link.tell_work(message)
    return node.answer(message, limit=request.reply_limit)


class _Link:
    """The connection to the server, kept up by a thread of its own while the app works."""

    def __init__(
        self,
        server: str,
        hello: Hello,
        max_message_bytes: int | Callable[[], int],
        credentials: grpc.ChannelCredentials | None,
        on_event: OnEvent | None,
    ) -> None:
        self.finished = False  # the server has said that the run is over
        self.session = ClientSession(
            hello, max_message_bytes=max_message_bytes, send=self._send, tell=self._hear
        )
        self.server = server
        self._credentials, self._on_event = credentials, on_event
        self._failure: Exception | None = None
        self._alone_since: float | None = time.monotonic()
        self._trouble = "no answer yet"
        self._closed = threading.Event()
        self._news = threading.Event()  # for the app: a request, or the end
        self._call: grpc.Call | None = None
        self._outbox: _Outbox = queue.SimpleQueue()  # of the connection
        self._lock = threading.Lock()  # over session, and what it says goes to _outbox
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
        since = self._alone_since
        if max_wait is not None and since is not None and time.monotonic() - since > max_wait:
            absent = f"no link to {self.server} for {max_wait:g} s"
            raise LinkError(f"{absent}: {self._trouble}")

    def next_request(self, seconds: float) -> Request | None:
        """Return the oldest request that waits; None if there is none within ``seconds``."""
        with self._lock:
            request = self.session.take()
        if request is None:
            self._news.wait(seconds)
            self._news.clear()
        return request

    def tell_work(self, message: Message) -> None:
        """Tell that the app has begun to answer a message."""
        asked = message.metadata
        records = message.content.config_records.values() if message.has_content() else ()
        numbers = [record.get("server-round") for record in records]
        number = next((number for number in numbers if isinstance(number, int)), 0)
        working = EventKind.WORKING
        self._tell(working, asked.message_type, message_id=asked.message_id, round=number)

    def hand_in(self, reply: EncodedMessage) -> None:
        """Send a reply, now or as soon as there is a connection, until the server has it."""
        with self._lock:
            self.session.hand_in(reply)

    def _send(self, reply: EncodedMessage) -> None:
        self._outbox.put(self._upload(reply.message_id))

    def _hear(self, event: LinkEvent) -> None:
        if event.kind == EventKind.JOINED:
            self._alone_since = None
        if event.kind == EventKind.RECEIVED:
            self._news.set()
        tell(self._on_event, event)

    def _upload(self, message_id: str) -> Iterator[bytes]:
        """Yield the frames of a reply for as long as the server wants it."""
        if (reply := self._reply(message_id)) is not None:
            yield from takewhile(lambda _: self._reply(message_id) is not None, frames(reply))

    def _reply(self, message_id: str) -> EncodedMessage | None:
        with self._lock:
            return self.session.reply(message_id)

    def _run(self) -> None:
        try:
            self._keep_up()
        except Exception as err:
            self._failure = err
        finally:
            self._news.set()

    def _keep_up(self) -> None:
        """Connect again and again, until the server or the app's side ends it."""
        delay = FIRST_DELAY
        while not self._closed.is_set():
            self._converse()
            if self._closed.is_set():
                return
            bye = self.session.bye
            if bye is not None and bye.kind == ByeKind.FINISHED:
                self.finished = True
                self._tell(EventKind.LEFT, bye.reason)
                return
            if bye is not None and bye.kind not in (ByeKind.TAKEN, ByeKind.FAILED):
                raise LinkError(f"{self.server} has {bye.kind} this client: {bye.reason}")
            if bye is not None:
                self._trouble = bye.reason
            if self._alone_since is None:  # it was a good connection until now
                self._alone_since = time.monotonic()
                self._tell(EventKind.LEFT, self._trouble)
                delay = FIRST_DELAY
            # Clients that lost the same server must not all come back at the same moment.
            pause = delay * random.uniform(0.5, 1.0)  # noqa: S311
            delay = min(2 * delay, LAST_DELAY)
            self._tell(EventKind.WAITING, f"{self._trouble}; next try in {pause:.1f} s")
            self._closed.wait(pause)

    def _converse(self) -> None:
        """Hold one connection until it ends."""
        self._tell(EventKind.CONNECTING, self.server)
        outbox: _Outbox = queue.SimpleQueue()
        with self._lock:
            self._outbox = outbox
            outbox.put([self.session.connect()])
        # gRPC takes all that is ever written to a stream from one iterator.
        written = chain.from_iterable(iter(outbox.get, None))
        with channel.open_channel(self.server, self._credentials) as opened:
            call = opened.stream_stream(f"/{channel.SERVICE}/{channel.METHOD}")(written)
            self._call = call
            try:
                self._listen(call, outbox)
            except grpc.RpcError as err:
                trouble = channel.explain(err)
                if err.code() in _FINAL_CODES or any(map(trouble.count, _WRONG_SERVER)):
                    raise LinkError(f"no link to {self.server}: {trouble}") from err
                # A server that has let this client in before does not change its mind.
                may_be_tls = err.code() == grpc.StatusCode.UNAVAILABLE and "refused" not in trouble
                if self._alone_since is not None and may_be_tls:
                    trouble += _TLS_HINTS[self._credentials is not None]
                self._trouble = trouble  # once it is complete: the app's thread may raise it
            except CorruptStream as err:
                raise LinkError(f"{self.server} breaks the protocol: {err.what}") from err
            finally:
                with self._lock:
                    self.session.disconnect()
                outbox.put(None)
                call.cancel()

    def _listen(self, call: grpc.Call, outbox: _Outbox) -> None:
        if self._closed.is_set():
            return
        for raw in call:
            with self._lock:
                self.session.receive(raw)
            if self.session.bye is not None:
                outbox.put(None)  # the server ends the stream in good order
        self._trouble = "the server closed the connection"

    def _tell(self, kind: EventKind, detail: str = "", **more: Any) -> None:
        tell(self._on_event, LinkEvent(kind, self.session.hello.client_id, detail=detail, **more))
