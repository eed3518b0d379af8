"""What a server knows of one client, and of one message for it. No sockets."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import IO, NamedTuple

from flwr.app import Error

from fedsz.formatting import megabytes
from fedsz.transport.frames import Hello
from fedsz.transport.grid_base import Outgoing
from fedsz.transport.identity import Identity
from fedsz.transport.upload import Upload


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


@dataclass(eq=False)
class Peer:
    """A client by its id, connected or not."""

    client_id: str
    node_id: int
    session_key: bytes = b""  # of the process that was connected last
    connection: Hashable | None = None
    pending: dict[str, Delivery] = field(default_factory=dict)
    upload: Upload | None = None  # in progress; without a sink it is read and dropped
    grace_ends: float | None = None  # while it may still return

    @property
    def live(self) -> bool:
        """Whether it is connected, or may still return."""
        return self.connection is not None or self.grace_ends is not None

    def gives_way_to(self, hello: Hello, identity: Identity | None) -> bool:
        """Return whether a connection may take this client's place.

        The process that was connected last may at any time: it lost its link before the server
        noticed. Another one with the same identity may when the link is dead, and a stranger when
        the client has not come back in time either.
        """
        if self.session_key and hmac.compare_digest(hello.session_key, self.session_key):
            return True
        return self.connection is None and (identity is not None or self.grace_ends is None)

    def upload_of(self, delivery: Delivery) -> Upload | None:
        """Return the upload in progress if it is the reply to this message."""
        upload = self.upload
        return upload if upload and upload.message_id == delivery.message_id else None

    def progress(self, delivery: Delivery) -> str:
        """Say how far an exchange has come."""
        if (upload := self.upload_of(delivery)) is not None:
            return f"during upload ({upload.received / 1e6:.1f} of {megabytes(upload.size)})"
        return "before it replied" if delivery.sent else "before the message reached it"
