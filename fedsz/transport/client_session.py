"""The client's part of the protocol: its requests, and the replies that it owes. No sockets.

A `ClientSession` is a state machine like `ServerSession`: frames and replies go in; frames, replies
and events come out.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

import msgspec

from fedsz.data_share import Share
from fedsz.errors import CorruptStream, LinkError
from fedsz.transport import frames
from fedsz.transport.link_events import EventKind, LinkEvent
from fedsz.transport.message_format import EncodedMessage


class Request(NamedTuple):
    """A complete message that is to be answered."""

    message_id: str
    source: BytesIO  # of its bytes
    size: int  # how many
    reply_limit: int  # bytes of the largest reply that the server takes


class ClientSession:
    """What a client and its server know of each other, over any number of connections.

    It has at most `MAX_UNANSWERED` requests or their replies, and one that is arriving.

    Args:
        hello: what the client says of itself.
        max_message_bytes: the largest message taken; a function is asked for each.
        send: takes a reply that is to be sent for as long as it is owed.
        tell: receives each event, of which RECEIVED is a request. Neither may call the session.

    Attributes:
        hello: what the client says of itself, with the share of the data that the server gave.
        bye: the server's last frame on this connection; None before it.
        requests: those that wait for the app, by message id, the oldest first.
    """

    def __init__(
        self,
        hello: frames.Hello,
        *,
        max_message_bytes: int | Callable[[], int],
        send: Callable[[EncodedMessage], object],
        tell: Callable[[LinkEvent], object],
    ) -> None:
        self.hello = hello
        self.bye: frames.Bye | None = None
        self.requests: dict[str, Request] = {}
        self._max_message_bytes, self._send, self._tell = max_message_bytes, send, tell
        # Complete requests, and the reply to each as soon as there is one. An entry
        # stays until the server acknowledges the reply or says that it does not want it any more.
        self._owed: dict[str, EncodedMessage | None] = {}
        self._welcome: frames.Welcome | None = None  # of this connection
        self._incoming: frames.Incoming | None = None

    def connect(self) -> bytes:
        """Begin a new connection; return its first frame."""
        self.disconnect()
        self.bye = None
        return frames.pack(msgspec.structs.replace(self.hello, have=list(self._owed)))

    def disconnect(self) -> None:
        """Note that the connection is over; what is owed stays owed."""
        self._welcome = self._incoming = None

    def take(self) -> Request | None:
        """Return the oldest request that waits, for the app to answer; None if there is none."""
        message_id = next(iter(self.requests), None)
        return None if message_id is None else self.requests.pop(message_id)

    def reply(self, message_id: str) -> EncodedMessage | None:
        """Return the reply to a request if there is one, and the server still waits for it."""
        return self._owed.get(message_id)

    def hand_in(self, reply: EncodedMessage) -> None:
        """Take a reply; it goes out now or on the next connections, until the server has it."""
        if reply.message_id in self._owed:
            self._owed[reply.message_id] = reply
            if self._welcome is not None:
                self._send(reply)

    def receive(self, raw: bytes) -> None:
        """Take a frame.

        Raises:
            CorruptStream: the server breaks the rules.
            LinkError: it gives no shares, and this client needs one.
        """
        frame = frames.unpack(raw)
        if isinstance(frame, memoryview) and self._incoming is not None:
            self._incoming.feed(frame)
            if self._incoming.complete:
                self._arrived(self._incoming)
        elif isinstance(frame, frames.Begin):
            self._begin(frame)
        elif isinstance(frame, frames.Welcome):
            self._welcomed(frame)
        elif isinstance(frame, frames.Ack):
            self._acknowledged(frame)
        elif isinstance(frame, frames.Bye):
            self.bye = frame
        else:
            raise CorruptStream(f"a frame of type {raw[0]} out of place")

    def _welcomed(self, welcome: frames.Welcome) -> None:
        self._take_share(welcome.share)
        self._welcome = welcome
        # Those that have a reply may have arrived: it is the acknowledgement that was lost.
        late = [i for i, r in self._owed.items() if r is None and i not in welcome.wanted]
        self._owed = {i: self._owed[i] for i in welcome.wanted if i in self._owed}
        self.requests = {i: r for i, r in self.requests.items() if i in self._owed}
        for message_id in late:
            self._tell_late(message_id)
        for reply in filter(None, self._owed.values()):
            self._send(reply)
        self._tell(LinkEvent(EventKind.JOINED, self.hello.client_id))

    def _take_share(self, share: Share | None) -> None:
        """Note the share of the data that the server gives, and claim it from now on."""
        if not self.hello.wants_share:
            return
        if share is None:
            raise LinkError("the server gives no shares of the data: name one by --partition I/N")
        config = {**self.hello.node_config, **share.as_config()}
        self.hello = msgspec.structs.replace(self.hello, node_config=config)

    def _begin(self, begin: frames.Begin) -> None:
        most, limit = frames.MAX_UNANSWERED, self._max_message_bytes
        if begin.message_id not in self._owed and len(self._owed) >= most:
            raise CorruptStream(f"another request while {most} have no acknowledged reply")
        nbytes = limit if isinstance(limit, int) else limit()
        self._incoming = frames.Incoming(begin, BytesIO(), limit=nbytes)

    def _arrived(self, incoming: frames.Incoming) -> None:
        self._incoming, source = None, incoming.sink
        message_id, size = incoming.message_id, incoming.size
        if message_id in self._owed or not isinstance(source, BytesIO):
            return
        source.seek(0)
        self._owed[message_id] = None
        limit = 0 if self._welcome is None else self._welcome.max_message_bytes
        self.requests[message_id] = Request(message_id, source, size, limit)
        self._tell(LinkEvent(EventKind.RECEIVED, self.hello.client_id, message_id, size=size))

    def _acknowledged(self, ack: frames.Ack) -> None:
        reply = self._owed.pop(ack.message_id, None)
        self.requests.pop(ack.message_id, None)
        if not ack.received:
            self._tell_late(ack.message_id)
        elif reply is not None:
            kind, about = EventKind.SENT, (self.hello.client_id, ack.message_id, reply.error)
            self._tell(LinkEvent(kind, *about, size=reply.size))

    def _tell_late(self, message_id: str) -> None:
        detail = "too late, the server goes on without this reply"
        self._tell(LinkEvent(EventKind.FAILED, self.hello.client_id, message_id, detail=detail))
