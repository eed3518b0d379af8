"""A Flower message as bytes, laid out so that large arrays are neither copied nor read twice.

A message is ``u32 envelope length | u32 head length | envelope | head | data``, little-endian. The
envelope is Flower's `Message` protobuf without its content. The head is a MessagePack pair:
Flower's `RecordDict` protobuf without the data of its Arrays and the bytes of its ConfigRecords,
and the lengths of these, first those of Arrays. A message that carries an error has an empty head.
So the messages of a round differ in their envelopes only and share all the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import IO, Annotated, Any, Final, TypeGuard

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedsz import flower_compat as compat
from fedsz.errors import ConfigError, CorruptStream, LimitExceeded, TruncatedStream
from fedsz.formatting import LINE, one_line

# Names, numbers and text. Four of these bytes may become a name, a shape and an `Array`, so a head
# is small: the largest takes 3 s and 200 MB.
MAX_HEAD_BYTES: Final = 2 << 20
MAX_ENVELOPE_BYTES = 1 << 20
_SPARE_HEAD_BYTES: Final = 256 << 10  # of a reply to a known model, for metrics and other entries
_HEAD_BYTES_OF_TENSOR: Final = 512

_LENGTHS = struct.Struct("<II")
MIN_MESSAGE_BYTES = _LENGTHS.size


@dataclass(frozen=True)
class Content:
    """A RecordDict ready for the wire, shared by every message that carries it."""

    head: bytes
    data: tuple[memoryview, ...]  # the Arrays' own bytes


@dataclass(frozen=True)
class EncodedMessage:
    """A message ready for the wire."""

    message_id: str  # what its BEGIN frame says
    segments: tuple[memoryview | bytes, ...]  # its bytes in order; not to be changed
    size: int  # their sum
    error: str = ""  # why it is an error reply

    def chunks(self, size: int) -> Iterator[list[memoryview]]:
        """Cut and join the segments into pieces of ``size`` bytes; the last may be shorter."""
        chunk: list[memoryview] = []
        room = size
        for segment in self.segments:
            view = memoryview(segment)
            start = 0
            while start < len(view):
                piece = view[start : start + room]
                chunk.append(piece)
                start += len(piece)
                room -= len(piece)
                if not room:
                    yield chunk
                    chunk, room = [], size
        if chunk:
            yield chunk


def encode_content(content: RecordDict) -> Content:
    """Return ``content`` ready for the wire; the arrays' data is referred to, not copied.

    Raises:
        ConfigError: a record holds what Flower's protobufs cannot.
    """
    data: list[memoryview] = []
    bare: dict[str, Any] = dict(content)
    try:
        for key, record in compat.records_in(content, ArrayRecord).items():
            bare[key] = compat.make_record(
                {
                    name: compat.make_array(x.dtype, x.shape, x.stype, b"")
                    for name, x in record.items()
                }
            )
            data += [memoryview(x.data).cast("B") for x in record.values()]
        for key, config in compat.records_in(content, ConfigRecord).items():
            blobs = {name: value for name, value in config.items() if _is_bulk(value)}
            empty = {
                name: b"" if isinstance(x, bytes) else [b""] * len(x) for name, x in blobs.items()
            }
            bare[key] = compat.make_config({**config, **empty})
            for value in blobs.values():
                data += map(memoryview, [value] if isinstance(value, bytes) else value)
        records = compat.recorddict_to_proto(compat.make_content(bare)).SerializeToString()
        head = msgspec.msgpack.encode((records, [len(d) for d in data]))
    except (compat.EncodeError, TypeError, ValueError) as err:
        raise ConfigError(f"these records cannot be sent: {err}") from err
    return Content(head, tuple(data))


def encode_message(
    message: Message, message_id: str, content: Content | None = None
) -> EncodedMessage:
    """Return ``message`` ready for the wire.

    ``message_id`` is that of the request it is or answers; ``content``, what it carries, where that
    has been encoded already.

    Raises:
        ConfigError: the content cannot be sent.
    """
    if content is None:
        content = encode_content(message.content) if message.has_content() else Content(b"", ())
    if len(content.head) > MAX_HEAD_BYTES:
        what = f"names, numbers and text of {len(content.head)} bytes, at most {MAX_HEAD_BYTES}"
        raise ConfigError(f"{what} can be sent: put bulk data into an ArrayRecord")
    try:
        envelope = compat.ProtoMessage(
            metadata=compat.metadata_to_proto(message.metadata),
            error=compat.error_to_proto(message.error) if message.has_error() else None,
        ).SerializeToString()
    except (compat.EncodeError, TypeError, ValueError) as err:
        raise ConfigError(f"this message cannot be sent: {err}") from err
    lengths = _LENGTHS.pack(len(envelope), len(content.head))
    segments = (lengths + envelope, content.head, *content.data)
    error = (message.error.reason or "an error") if message.has_error() else ""
    return EncodedMessage(message_id, segments, sum(map(len, segments)), error)


class _Reader:
    """Takes fields off a source and believes no length that the message has not room for."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self._source, self.left, self.offset = source, size, 0

    def take(self, n: int, what: str) -> bytes:
        if n > self.left or len(out := self._source.read(n)) < n:
            raise TruncatedStream(f"{what} needs {n} bytes", offset=self.offset)
        self.offset += n
        self.left -= n
        return out


def decode_message(source: IO[bytes], size: int, max_head: int = MAX_HEAD_BYTES) -> Message:
    """Return the message in the next ``size`` bytes of ``source``.

    The data of each array is read once, straight into the bytes that its `Array` keeps. The text of
    an error is made one line.

    Args:
        source: of the bytes.
        size: how many of them.
        max_head: bytes of its head.

    Raises:
        CorruptStream: those bytes are no message, or names in it cannot be printed.
        LimitExceeded: its envelope or head has more bytes than that.
    """
    reader = _Reader(source, size)
    envelope_size, head_size = _LENGTHS.unpack(reader.take(_LENGTHS.size, "a message"))
    for length, most in ((envelope_size, MAX_ENVELOPE_BYTES), (head_size, max_head)):
        if length > most:
            what = "names, numbers and text"
            raise LimitExceeded(f"{what} of {length} bytes; the most is {most}")
    envelope_bytes = reader.take(envelope_size, "the envelope")
    head = reader.take(head_size, "the head")
    try:
        envelope = compat.ProtoMessage.FromString(envelope_bytes)
        content = _read_content(head, reader) if head_size else None
        if reader.left:
            raise CorruptStream(f"{reader.left} bytes too many", offset=reader.offset)
        about = envelope.metadata
        _require_printable(about.message_type, about.message_id)
        if content is not None:  # files of our own may hold models whose tensors have any name
            _require_printable(*content, *chain.from_iterable(content.values()))
        error = compat.error_from_proto(envelope.error) if envelope.HasField("error") else None
        if error is not None and error.reason:
            error = Error(error.code, one_line(error.reason))
        return compat.make_message(
            metadata=compat.metadata_from_proto(about),
            content=content,
            error=error,
        )
    except CorruptStream:
        raise
    except _NO_SENSE as err:
        raise CorruptStream(f"not a Flower message: {err}", offset=reader.offset) from err


def decode_content(head: bytes, source: IO[bytes], size: int) -> RecordDict:
    """Return the records of a `Content` by its head, and its data in the next bytes of ``source``.

    Raises:
        CorruptStream: those bytes are no records.
    """
    reader = _Reader(source, size)
    try:
        return _read_content(head, reader)
    except CorruptStream:
        raise
    except _NO_SENSE as err:
        raise CorruptStream(f"not Flower's records: {err}", offset=reader.offset) from err


# Flower's readers take a protobuf that parses for one that makes sense.
_NO_SENSE = (compat.DecodeError, msgspec.DecodeError, AttributeError, TypeError, ValueError)
_DataSize = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_head_decoder = msgspec.msgpack.Decoder(tuple[bytes, list[_DataSize]])


def _read_content(head: bytes, reader: _Reader) -> RecordDict:
    """Return the records that a head describes, with their data from ``reader``."""
    records, sizes = _head_decoder.decode(head)
    content = compat.recorddict_from_proto(compat.ProtoRecordDict.FromString(records))
    arrays = [
        (name, array)
        for record in compat.records_in(content, ArrayRecord).values()
        for name, array in record.items()
    ]
    blobs = [
        (name, config, value)
        for config in compat.records_in(content, ConfigRecord).values()
        for name, value in config.items()
        if _is_bulk(value)
    ]
    values = sum(1 if isinstance(value, bytes) else len(value) for *_, value in blobs)
    if len(sizes) != len(arrays) + values:
        why = f"{len(sizes)} lengths for {len(arrays)} arrays and {values} values"
        raise CorruptStream(why, offset=reader.offset)
    coming = iter(sizes)
    for name, array in arrays:
        array.data = reader.take(next(coming), f"array {name!r}")
    for name, config, value in blobs:
        count = 1 if isinstance(value, bytes) else len(value)
        taken = [reader.take(next(coming), f"value {name!r}") for _ in range(count)]
        config[name] = taken[0] if isinstance(value, bytes) else taken
    return content


def _is_bulk(value: object) -> TypeGuard[bytes | list[bytes]]:
    """Say whether a value of a ConfigRecord travels beside the head: bytes, or a list of them."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], bytes)
    return isinstance(value, bytes)


def _require_printable(*names: str) -> None:
    """Refuse names that must not reach a log or a terminal."""
    for name in names:
        if len(name) > LINE or not name.isprintable():
            raise CorruptStream(
                f"no name of a record, array or metric, long or not printable: {name!r}"
            )


def reply_head(tensors: int) -> int:
    """Return how many bytes the head of a reply may have that is due with so many tensors."""
    return min(MAX_HEAD_BYTES, _SPARE_HEAD_BYTES + _HEAD_BYTES_OF_TENSOR * tensors)
