"""Events of a link as they happen, and its counters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

logger = logging.getLogger(__name__)


NodeConfig = Mapping[str, bool | int | float | str]  # what a client says of itself


class EventKind(StrEnum):
    """What has happened on a link."""

    CONNECTING = "connecting"  # the client tries to reach its server
    JOINED = "joined"  # on the client: it has reached the server
    LEFT = "left"
    WAITING = "waiting"  # the client has no server yet, or no longer
    WORKING = "working"  # the client's app has begun to answer a message; `detail` is its type
    RECEIVED = "received"  # a message of `size` bytes
    SENT = "sent"  # on the client: the server has its reply. `detail`: it is an error
    FAILED = "failed"  # the server gave up on a message; `detail` says why
    REFUSED = "refused"


@dataclass(frozen=True)
class LinkEvent:
    """News of a link, for displays and records."""

    kind: EventKind
    client_id: str  # of the link
    message_id: str = ""  # of the message, or of the one replied to
    detail: str = ""  # a sentence for people
    size: int = 0  # bytes of the message
    round: int = 0  # of the message, as Flower's strategies count; 0 where it says none
    # What the client said of itself when it joined.
    node_config: NodeConfig = field(default_factory=dict)


OnEvent = Callable[[LinkEvent], None]

# Not in the log of a process: they come by the message.
_ROUTINE = frozenset((EventKind.WORKING, EventKind.RECEIVED, EventKind.SENT))


def tell(on_event: OnEvent | None, event: LinkEvent) -> None:
    """Log ``event`` and hand it to ``on_event``, whose mistakes must not end the link."""
    said = f"{event.client_id!r} {event.kind}{': ' * bool(event.detail)}{event.detail}"
    plain = event.kind == EventKind.WORKING or not event.detail
    routine = event.kind in _ROUTINE and plain
    logger.log(logging.DEBUG if routine else logging.INFO, "%s", said)
    if on_event is None:
        return
    try:
        on_event(event)
    except Exception:
        logger.exception("on_event failed on %r", event.kind)


@dataclass
class Counters:
    """Bytes that have crossed a Grid's links so far.

    They are counted at gRPC-message level: every frame and gRPC's five bytes before it. HTTP/2
    adds less than 0.1 % to large messages; TLS and TCP add their own.
    """

    wire_bytes_sent: int = 0
    wire_bytes_received: int = 0
