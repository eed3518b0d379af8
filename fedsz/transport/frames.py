"""The frames of the link between `GrpcGrid` and `run_client`: bytes in, values out, no sockets.

A link is one bidirectional gRPC stream of raw bytes. Each gRPC message is one frame: a type byte
and a body, MessagePack except for DATA, whose body is a piece of a Flower message as it is.

    HELLO    client -> server   who I am, and for which messages I hold or work on a reply
    WELCOME  server -> client   your node id, and which of those replies are still wanted
    BEGIN    both ways          a message of so many bytes follows; its id is that of the request
    DATA     both ways          the next bytes of it
    ACK      server -> client   a reply has arrived, or is not wanted any more: forget it
    BYE      server -> client   the link ends, and why

A BEGIN before the end of the message in progress breaks that message off. So a server that has
given up on a request stops sending it, and a client stops sending the reply, at the next chunk: on
a slow link a message that is not awaited would delay those that are.

A server sends a client no further request while `MAX_UNANSWERED` of them have no ACK yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import IO, Annotated, ClassVar

import msgspec

from fedsz.data_share import Share
from fedsz.errors import CorruptStream, LimitExceeded, TruncatedStream
from fedsz.formatting import megabytes, one_line
from fedsz.transport.message_format import MIN_MESSAGE_BYTES, EncodedMessage

PROTOCOL = 1  # raised when either end could misread the other
CHUNK_BYTES = 64 << 10  # of a message in one DATA frame
MAX_FRAME_BYTES = 1 << 20  # gRPC itself refuses more before it buffers it
MAX_UNANSWERED = 2  # requests that a client holds at a time, or their replies

_DATA = 4  # the type byte of a DATA frame

MAX_CONFIG = 64  # entries of a client's node_config

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_MessageId = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern="^[!-~]*$")]
_Config = Annotated[dict[str, bool | int | float | str], msgspec.Meta(max_length=MAX_CONFIG)]
_SessionKey = Annotated[bytes, msgspec.Meta(max_length=64)]
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_MessageSize = Annotated[int, msgspec.Meta(ge=MIN_MESSAGE_BYTES, lt=1 << 62)]


class ByeKind(StrEnum):
    """Why the server ends a link; only after FINISHED has the client done its work."""

    FINISHED = "finished"
    REFUSED = "refused"  # the client broke a rule, or another connection of the same client came
    TAKEN = "taken"  # its id or share of the data is another's for now
    FAILED = "failed"  # the server ends before the run does: wait until the run is resumed


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a client."""

    TYPE: ClassVar[int] = 1
    protocol: int
    client_id: _Name
    node_config: _Config
    have: list[_MessageId]  # received before, and the reply not yet acknowledged
    # Random bytes of this process: who has them may replace a connection that came with them.
    session_key: _SessionKey = b""
    wants_share: bool = False  # of the data; the one that node_config names if it is to be had


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a server that takes the client."""

    TYPE: ClassVar[int] = 2
    node_id: int
    max_message_bytes: _Size  # what the server accepts
    wanted: list[_MessageId]  # the part of `Hello.have` whose replies are still awaited
    share: Share | None = None  # that the client asked for


class Begin(msgspec.Struct, frozen=True, array_like=True):
    """The announcement of a message."""

    TYPE: ClassVar[int] = 3
    message_id: _MessageId  # of the server's message, also when the reply to it follows
    size: _MessageSize  # bytes, all of them in the DATA frames that follow


class Ack(msgspec.Struct, frozen=True, array_like=True):
    """The end of an exchange."""

    TYPE: ClassVar[int] = 5
    message_id: _MessageId
    received: bool  # False: the reply is not wanted any more


class Bye(msgspec.Struct, frozen=True, array_like=True):
    """The last frame of a server."""

    TYPE: ClassVar[int] = 6
    kind: ByeKind
    reason: str


Control = Hello | Welcome | Begin | Ack | Bye
_DECODERS: dict[int, msgspec.msgpack.Decoder[Control]] = {
    kind.TYPE: msgspec.msgpack.Decoder(kind) for kind in (Hello, Welcome, Begin, Ack, Bye)
}


def pack(frame: Control) -> bytes:
    """Return the bytes of a control frame."""
    return bytes((frame.TYPE,)) + msgspec.msgpack.encode(frame)


def unpack(raw: bytes) -> Control | memoryview:
    """Return the control frame in ``raw``, its texts on one line, or the body of a DATA frame.

    Raises:
        CorruptStream: ``raw`` is no frame of this protocol, or names its client by what cannot be
            printed.
    """
    if not raw:
        raise TruncatedStream("a frame without a type")
    body = memoryview(raw)[1:]
    if raw[0] == _DATA:
        return body
    decoder = _DECODERS.get(raw[0])
    if decoder is None:
        raise CorruptStream(f"no frame has type {raw[0]}")
    try:
        frame = decoder.decode(body)
    # Besides its own errors msgspec lets UnicodeDecodeError through, and deep nests recurse.
    except (msgspec.DecodeError, ValueError, RecursionError) as err:
        raise CorruptStream(f"not a frame of type {raw[0]}: {err}", offset=1) from err
    return _readable(frame)


def _readable(frame: Control) -> Control:
    """Return a frame whose texts may be shown and logged; they are the other end's."""
    if isinstance(frame, Bye):
        return msgspec.structs.replace(frame, reason=one_line(frame.reason))
    if isinstance(frame, Hello):
        if not frame.client_id.isprintable():
            raise CorruptStream(f"the client id {frame.client_id!r} cannot be printed")
        config = {
            one_line(name): one_line(value) if isinstance(value, str) else value
            for name, value in frame.node_config.items()
        }
        return msgspec.structs.replace(frame, node_config=config)
    if isinstance(frame, Welcome) and frame.share is not None and not frame.share.is_possible:
        raise CorruptStream(f"no data has a share {frame.share}")
    return frame


def frames(encoded: EncodedMessage) -> Iterator[bytes]:
    """Yield BEGIN and the DATA frames of a message; one chunk is copied at a time."""
    yield pack(Begin(encoded.message_id, encoded.size))
    for chunk in encoded.chunks(CHUNK_BYTES):
        yield b"".join((bytes((_DATA,)), *chunk))


class Incoming:
    """A message on its way in: BEGIN announced it, DATA frames fill it.

    Args:
        begin: what announced it.
        sink: where its bytes go; None drops them.
        limit: how many it may have.

    Raises:
        LimitExceeded: it is announced to have more.
    """

    def __init__(self, begin: Begin, sink: IO[bytes] | None, *, limit: int) -> None:
        if begin.size > limit:
            raise LimitExceeded(f"a message of {megabytes(begin.size)}, at most {megabytes(limit)}")
        self.message_id, self.size, self.sink = begin.message_id, begin.size, sink
        self.received = 0  # bytes so far

    @property
    def complete(self) -> bool:
        """Whether all of it is here."""
        return self.received == self.size

    def feed(self, piece: memoryview) -> None:
        """Take the body of one DATA frame.

        Raises:
            CorruptStream: it is empty, or more than is due.
            OSError: there is no room for it.
        """
        due = self.size - self.received
        if not 0 < len(piece) <= due:
            raise CorruptStream(f"{len(piece)} bytes of data where 1 to {due} were due")
        self.received += len(piece)
        if self.sink is not None:
            self.sink.write(piece)


def wire_size(frame: bytes | memoryview) -> int:
    """Return what gRPC puts on the stream for ``frame``: a flag, four bytes of length, and it."""
    return 5 + len(frame)
