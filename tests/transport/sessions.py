"""What a server's session hears and says in tests: connections in memory, and a clock."""

from __future__ import annotations

import io
from collections import defaultdict
from typing import Any

from flwr.app import Metadata

from fedsz.transport.credentials import Identity
from fedsz.transport.frames import Hello, pack
from fedsz.transport.grid_base import Outgoing
from fedsz.transport.link_events import LinkEvent
from fedsz.transport.message_format import EncodedMessage
from fedsz.transport.node import node_id
from fedsz.transport.server_session import Delivery, Outcome, ServerSession, Settler

LIMIT = 1000  # bytes of a message
GRACE = 10.0


def encoded(message_id: str, body: bytes) -> EncodedMessage:
    return EncodedMessage(message_id, (body,), len(body))


def delivery(client_id: str, message_id: str, timeout: float, settle: Settler) -> Delivery:
    """Return a message for a client."""
    body = encoded(message_id, b"the message " + message_id.encode())
    metadata = Metadata(1, message_id, 1, node_id(client_id), "", "", 0.0, 0.0, "train")
    return Delivery(Outgoing(body, metadata), timeout, settle)


class Sink(io.BytesIO):
    """A place for a reply, on a disk that may be full."""

    full = False

    def write(self, piece: Any, /) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(piece)


class Line:
    """A connection that keeps what is queued on it."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.heard: list[Any] = []

    def put(self, item: Any, /) -> None:
        self.heard.append(item)


class Door:
    """A server session, the connections of a test, and a clock.

    Attributes:
        lines: connections, by the names that a test gives them.
        events: of the session.
        outcomes: of the messages that were posted.
    """

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.lines: defaultdict[Any, Line] = defaultdict(Line)
        self.events: list[LinkEvent] = []
        self.outcomes: list[Outcome] = []
        limits = {"max_message_bytes": LIMIT, "reconnect_grace": GRACE, "open_sink": Sink}
        self.session = ServerSession(**(limits | options), tell=self.events.append)

    def says(self, who: Any, *raws: bytes) -> list[Any]:
        """Return the server's answer to these frames on a connection."""
        line = self.lines[who]
        before = len(line.heard)
        for raw in raws:
            self.session.receive(line, raw, self.now)
        return line.heard[before:]

    def knock(self, who: Any, hello: Hello, identity: Identity | None = None) -> list[Any]:
        """Return the answer to HELLO on a new connection."""
        self.lines[who].identity = identity
        self.session.connect(self.lines[who])
        return self.says(who, pack(hello))

    def serves(self, who: Any) -> bool:
        return self.session.serves(self.lines[who])

    def lose(self, who: Any) -> None:
        self.session.lost(self.lines[who], self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.session.tick(self.now)

    def post(self, *client_ids: str) -> list[Delivery]:
        """Post a message for each of these."""
        posted = [
            delivery(name, "m", 100.0, lambda _, outcome: self.outcomes.append(outcome))
            for name in client_ids
        ]
        self.session.post(posted, self.now)
        return posted
