"""What a server knows of one client, of one message for it, and of the reply. No sockets."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final, NamedTuple, Protocol

from flwr.app import Error

from fedsz.flower_compat import ErrorCode
from fedsz.formatting import megabytes
from fedsz.transport.events import EventKind, LinkEvent
from fedsz.transport.frames import Begin, Control, Hello, Incoming
from fedsz.transport.grid_base import Outgoing
from fedsz.transport.identity import Identity

# An upload shorter than this tells what a link can do at least, not what it does.
TIMED_BYTES: Final = 64 << 10
NEWS_SECONDS: Final = 1.0  # between two events of an upload
MOST_ERRORS: Final = 1 << 16  # kept of messages whose outcomes nobody has pulled


class Line(Protocol):
    """A connection, as the one who serves it writes to it."""

    def put(self, item: Control | Delivery, /) -> None:
        """Queue a frame, or a message, which is sent as long as it is not `Delivery.done`.

        The connection ends with BYE, whatever else is queued.
        """


class Taken(Exception):
    """What a client asks for, its id or its share of the data, is another's for now."""


class Stored(NamedTuple):
    """A complete reply: the ``size`` bytes written to ``file``, which its reader closes."""

    file: IO[bytes]
    size: int


Outcome = Stored | Error
Settler = Callable[["Delivery", Outcome], None]


@dataclass(eq=False)
class Delivery:
    """One message for a client, until it has its outcome."""

    out: Outgoing
    timeout: float  # seconds in which the reply is awaited, once it is posted
    settle: Settler  # called once
    client_id: str = ""  # whom it is for, once it is posted
    begun: bool = False  # the client has it, or it is queued on its connection
    sent: bool = False  # all of it is out, to a client that still has it
    done: bool = False  # nobody waits for the reply, so what is left of it need not be sent
    expires: float = 0.0
    mishap: str = ""  # what was going on when the connection broke

    @property
    def message_id(self) -> str:
        """The id of the message."""
        return self.out.encoded.message_id


class Upload(Incoming):
    """A reply on its way into a sink; without one it is dropped, for nobody waits for it.

    Its time runs from the first chunk, so that neither the link's latency nor its slow start count;
    from BEGIN, which comes just before, where too little follows that chunk.
    """

    sink: IO[bytes] | None

    def __init__(self, begin: Begin, sink: IO[bytes] | None, now: float, *, limit: int) -> None:
        super().__init__(begin, sink, limit=limit)
        self._begun = self._told = now
        self._first: tuple[float, int] | None = None  # when the first chunk was there, and its size

    def take(self, piece: memoryview, now: float) -> None:
        """Count and write the body of one DATA frame; see `Incoming.feed`."""
        self.feed(piece)
        if self.sink is not None and self.complete:
            self.sink.flush()  # a full disk is noticed here, where it fails this reply alone
        self._first = self._first or (now, self.received)

    def news(self, client_id: str, now: float) -> LinkEvent | None:
        """Return how much is here; None if it was told lately, or nobody waits for it."""
        if self.sink is None or now < self._told + NEWS_SECONDS:
            return None
        self._told = now
        passed, size = self.received, self.size
        return LinkEvent(EventKind.RECEIVING, client_id, self.message_id, passed=passed, size=size)

    def drop(self) -> None:
        """Keep nothing of it."""
        if self.sink is not None:
            with suppress(OSError):  # what a full disk did not take is of no use now
                self.sink.close()
            self.sink = None

    def bandwidth(self, known: float, now: float) -> float:
        """Return the link's bandwidth, in bits a second, once all of it is here.

        A short upload only ever raises what was ``known`` before.
        """
        since, before = self._first or (self._begun, 0)
        if self.size - before < TIMED_BYTES:
            since, before = self._begun, 0
        if now <= since:
            return known
        measured = 8 * (self.size - before) / (now - since)
        return measured if self.size >= TIMED_BYTES else max(measured, known)


@dataclass(eq=False)
class Peer:
    """A client by its id, connected or not."""

    client_id: str
    node_id: int
    session_key: bytes = b""  # of the process that was connected last
    connection: Line | None = None
    pending: dict[str, Delivery] = field(default_factory=dict)
    upload: Upload | None = None  # in progress; without a sink it is read and dropped
    grace_ends: float | None = None  # while it may still return

    @property
    def live(self) -> bool:
        """Whether it is connected, or may still return."""
        return self.connection is not None or self.grace_ends is not None

    def gives_way_to(self, hello: Hello, identity: Identity) -> bool:
        """Return whether a connection may take this client's place.

        The process that was connected last may at any time: it lost its link before the server
        noticed. Another one with the same identity may when the link is dead, and a stranger when
        the client has not come back in time either.
        """
        if self.session_key and hmac.compare_digest(hello.session_key, self.session_key):
            return True
        return self.connection is None and (bool(identity) or self.grace_ends is None)

    def upload_of(self, delivery: Delivery) -> Upload | None:
        """Return the upload in progress if it is the reply to this message."""
        upload = self.upload
        return upload if upload and upload.message_id == delivery.message_id else None

    def progress(self, delivery: Delivery) -> str:
        """Say how far an exchange has come."""
        if (upload := self.upload_of(delivery)) is not None:
            return f"during upload ({upload.received / 1e6:.1f} of {megabytes(upload.size)})"
        return "before it replied" if delivery.sent else "before the message reached it"


class Unpulled:
    """Outcomes of messages that nobody has pulled yet. An app may have stopped to ask for some.

    Args:
        most: replies, of which each is an open file. The oldest one becomes an error for another.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # By message id, the oldest first.
        self._replies: dict[str, tuple[Delivery, Stored]] = {}
        self._errors: dict[str, tuple[Delivery, Error]] = {}
        self._lock = threading.Lock()

    def add(self, delivery: Delivery, outcome: Outcome) -> None:
        """Keep an outcome, and the bytes of its message no longer."""
        delivery.out = delivery.out.emptied()
        with self._lock:
            if isinstance(outcome, Stored):
                self._replies[delivery.message_id] = delivery, outcome
            else:
                self._errors[delivery.message_id] = delivery, outcome
            if len(self._replies) > self._most:
                self._drop(next(iter(self._replies)))
            if len(self._errors) > MOST_ERRORS:
                del self._errors[next(iter(self._errors))]

    def take(self, message_ids: Iterable[str]) -> list[tuple[Delivery, Outcome]]:
        """Return the outcomes of these messages that are here, each once."""
        with self._lock:
            found = (self._replies.pop(i, None) or self._errors.pop(i, None) for i in message_ids)
            return [both for both in found if both is not None]

    def close(self) -> None:
        """Free all files."""
        with self._lock:
            while self._replies:
                self._replies.popitem()[1][1].file.close()

    def _drop(self, message_id: str) -> None:
        delivery, reply = self._replies.pop(message_id)
        reply.file.close()
        newer = f"was dropped: nobody asked for it before {self._most} others had come"
        why = f"the reply of client {delivery.client_id!r} {newer}"
        error = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, why)
        self._errors[message_id] = delivery, error
