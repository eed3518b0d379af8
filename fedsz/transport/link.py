"""What both ends of the gRPC link agree on besides its frames: the method, options, what is told.

gRPC is used as a pipe of byte strings: one generic method, no generated code, no compression.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fedsz.transport.frames import MAX_FRAME_BYTES

logger = logging.getLogger(__name__)

SERVICE = "fedsz.v1.Link"
METHOD = "Connect"
DEFAULT_MAX_MESSAGE_BYTES = 4 << 30

_OPTIONS = (
    # A frame is small whatever its message; gRPC refuses a larger one before it buffers it.
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", -1),
    # A machine that vanished without a word is noticed after some 30 s, also while nothing is sent:
    # there is a ping every 10 s, and gRPC has Linux give up what goes unacknowledged for 20 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # A process that hangs on a machine that lives is noticed by the ping it does not answer. On a
    # slow link that answer queues behind megabytes: gRPC's 60 s would cut every such upload.
    ("grpc.http2.ping_timeout_ms", 300_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # What a client may send ahead of the server's reading it: 80 Mbit/s with 100 ms there and
    # back. Left to itself gRPC lets every fast uploader fill some 16 MB of the server's memory.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.so_reuseport", 0),  # else a second server would share the port in silence
)
CHANNEL_OPTIONS = (
    *_OPTIONS,
    # Each attempt to connect is its own: no back-off inherited from the one before.
    ("grpc.use_local_subchannel_pool", 1),
)


class EventKind(StrEnum):
    """What has happened on a link."""

    JOINED = "joined"  # on the client: it has reached the server
    LEFT = "left"
    WAITING = "waiting"  # the client has no server yet, or no longer
    RECEIVED = "received"  # a whole message
    SENT = "sent"  # a whole message; on the client: and the server has it
    FAILED = "failed"  # the server gave up on a message; `detail` says why
    REFUSED = "refused"


@dataclass(frozen=True)
class LinkEvent:
    """News of a link, for those who show or record what goes on.

    Attributes:
        kind: what has happened.
        client_id: whose link it is.
        message_id: of the message, or of the one replied to.
        wire_bytes: what this message took at gRPC-message level, prefixes included.
        detail: a sentence for people.
        node_config: what the client said of itself when it joined.
    """

    kind: EventKind
    client_id: str
    message_id: str = ""
    wire_bytes: int = 0
    detail: str = ""
    node_config: Mapping[str, bool | int | float | str] = field(default_factory=dict)


OnEvent = Callable[[LinkEvent], None]


def tell(on_event: OnEvent | None, event: LinkEvent) -> None:
    """Log ``event`` and hand it to ``on_event``, whose mistakes must not end the link."""
    said = f"{event.client_id!r} {event.kind}{': ' * bool(event.detail)}{event.detail}"
    routine = event.kind in (EventKind.RECEIVED, EventKind.SENT) and not event.detail
    logger.log(logging.DEBUG if routine else logging.INFO, "%s", said)
    if on_event is None:
        return
    try:
        on_event(event)
    except Exception:
        logger.exception("on_event failed on %r", event.kind)


@dataclass(frozen=True)
class Counters:
    """What has crossed a Grid's links so far.

    Bytes are counted at gRPC-message level: every frame and gRPC's five bytes before it. HTTP/2
    adds less than 0.1 % to large messages; TLS and TCP add their own.
    """

    messages_sent: int = 0
    messages_received: int = 0
    wire_bytes_sent: int = 0
    wire_bytes_received: int = 0


@dataclass
class Meter:
    """The running sums behind `Counters`; one thread writes them."""

    messages_sent: int = 0
    messages_received: int = 0
    wire_bytes_sent: int = 0
    wire_bytes_received: int = 0

    def snapshot(self) -> Counters:
        """Return the sums as they are now."""
        return Counters(**vars(self))
