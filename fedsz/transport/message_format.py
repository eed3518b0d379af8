"""A Flower message as bytes, laid out so that large arrays are neither copied nor read twice.

A message is ``u32 envelope length | u32 content length | envelope | content | data of the arrays``,
little-endian. The envelope is Flower's `Message` protobuf without its content; the content is a
MessagePack pair: Flower's `RecordDict` protobuf whose Arrays have no data, and the lengths of the
data, in the Arrays' order. It is empty for a message that carries an error. So the messages of a
round differ in their envelopes only and share all the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import IO, Annotated, Any, Final

import msgspec
from flwr.app import ArrayRecord, Error, Message, RecordDict

from fedsz import flower_compat as compat
from fedsz.errors import ConfigError, CorruptStream, LimitExceeded, TruncatedStream
from fedsz.formatting import LINE, one_line
from fedsz.shelf import Parked, Shelf

# Records and names, without the arrays' data. Each of these bytes may cost tens in objects.
MAX_HEAD_BYTES = 64 << 20
MAX_ENVELOPE_BYTES = 1 << 20

# A field of a few bytes takes a thousand times as long to become a name, a shape and an `Array`. So
# they are counted in the bytes of a message, before anything is made of them.
MOST_FIELDS: Final = 1 << 19  # where no model is known: some 80,000 arrays, 3 s and 200 MB

_FIELDS_OF_TENSOR: Final = 16  # an Array has 6; a model that differs a little can still be named
_SPARE_FIELDS: Final = 1 << 16  # for metrics and other entries, 4 or 5 each
_LEAST_BYTES: Final = 2  # of a field
_PACKED_BYTES: Final = 64  # of a list of numbers, that take as long as a field
_LONGEST: Final = 10  # bytes of a number
_VARINT, _FIXED64, _SUBMESSAGE, _FIXED32 = 0, 1, 2, 5  # wire types

_LENGTHS = struct.Struct("<II")
MIN_MESSAGE_BYTES = _LENGTHS.size


@dataclass(frozen=True)
class Content:
    """A RecordDict ready for the wire, shared by every message that carries it."""

    head: bytes
    data: tuple[memoryview, ...] | tuple[Parked]  # the Arrays' own bytes, or a copy on disk

    def parked(self) -> Content:
        """Return the same with its data on disk, so that the Arrays can go while it is sent."""
        parked = Shelf().put("the model that is sent", *self.data) if self.data else None
        return Content(self.head, (parked,)) if parked else self


@dataclass(frozen=True)
class EncodedMessage:
    """A message ready for the wire."""

    message_id: str  # what its BEGIN frame says
    segments: tuple[memoryview | bytes | Parked, ...]  # its bytes in order; not to be changed
    size: int  # their sum
    error: str = ""  # why it is an error reply

    def chunks(self, size: int) -> Iterator[list[memoryview]]:
        """Cut and join the segments into pieces of ``size`` bytes; the last may be shorter."""
        chunk: list[memoryview] = []
        room = size
        for segment in self.segments:
            view = segment if isinstance(segment, Parked) else memoryview(segment)
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
        ConfigError: a record holds what Flower's protobufs cannot, or too much beside arrays.
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
        records = compat.recorddict_to_proto(compat.make_content(bare)).SerializeToString()
        head = msgspec.msgpack.encode((records, [len(d) for d in data]))
    except (compat.EncodeError, TypeError, ValueError) as err:
        raise ConfigError(f"these records cannot be sent: {err}") from err
    if len(head) > MAX_HEAD_BYTES:
        raise ConfigError(
            f"records of {len(head)} bytes beside their arrays, at most {MAX_HEAD_BYTES} can be "
            "sent: put bulk data into an ArrayRecord"
        )
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


def decode_message(source: IO[bytes], size: int, most_fields: int = MOST_FIELDS) -> Message:
    """Return the message in the next ``size`` bytes of ``source``.

    The data of each array is read once, straight into the bytes that its `Array` keeps. The text of
    an error is made one line.

    Args:
        source: of the bytes.
        size: how many of them.
        most_fields: that its records may have; see `fedsz.transport.message_format`.

    Raises:
        CorruptStream: those bytes are no message, or names in it cannot be printed.
        LimitExceeded: names and records take more than `MAX_HEAD_BYTES`, or have more fields.
    """
    reader = _Reader(source, size)
    envelope_size, content_size = _LENGTHS.unpack(reader.take(_LENGTHS.size, "a message"))
    for length, most in ((envelope_size, MAX_ENVELOPE_BYTES), (content_size, MAX_HEAD_BYTES)):
        if length > most:
            raise LimitExceeded(f"records of {length} bytes beside arrays; the most is {most}")
    envelope_bytes = reader.take(envelope_size, "the envelope")
    content_bytes = reader.take(content_size, "the content")
    try:
        envelope = compat.ProtoMessage.FromString(envelope_bytes)
        content = _read_content(content_bytes, reader, most_fields) if content_size else None
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
_Sizes = Annotated[list[_DataSize], msgspec.Meta(max_length=MOST_FIELDS)]
_content_decoder = msgspec.msgpack.Decoder(tuple[bytes, list[_DataSize]])
_foreign_decoder = msgspec.msgpack.Decoder(tuple[bytes, _Sizes])


def _read_content(raw: bytes, reader: _Reader, most_fields: int | None = None) -> RecordDict:
    """Return the records that a head describes; of as many fields as it likes if that is None."""
    decoder = _content_decoder if most_fields is None else _foreign_decoder
    records, sizes = decoder.decode(raw)
    if most_fields is not None:
        require_few_fields(records, compat.ProtoRecordDict.DESCRIPTOR, most_fields)
    content = compat.recorddict_from_proto(compat.ProtoRecordDict.FromString(records))
    arrays = [
        (name, array)
        for record in compat.records_in(content, ArrayRecord).values()
        for name, array in record.items()
    ]
    if len(sizes) != len(arrays):
        raise CorruptStream(f"{len(sizes)} lengths for {len(arrays)} arrays", offset=reader.offset)
    for size, (name, array) in zip(sizes, arrays, strict=True):
        array.data = reader.take(size, f"array {name!r}")
    return content


def _require_printable(*names: str) -> None:
    """Refuse names that a log or a terminal must not be given."""
    for name in names:
        if len(name) > LINE or not name.isprintable():
            raise CorruptStream(
                f"no name of a record, array or metric, long or not printable: {name!r}"
            )


def most_fields_of(tensors: int) -> int:
    """Return how many fields a reply may have that is due with so many tensors."""
    return _SPARE_FIELDS + _FIELDS_OF_TENSOR * tensors


def require_few_fields(raw: bytes, about: Any, most: int) -> None:
    """Refuse a protobuf of more than ``most`` fields, in all its messages together.

    64 bytes of a list of numbers count as a field; bytes and text do not count.

    It takes two microseconds a field, until there are too many. What is no protobuf may pass.

    Args:
        raw: its bytes.
        about: its descriptor.
        most: fields that it may have.

    Raises:
        LimitExceeded: it has more.
    """
    count, size = 0, len(raw)
    if size <= _LEAST_BYTES * most:
        return
    waiting = [(0, size, about)]
    while waiting:
        at, end, about = waiting.pop()
        while at < end:
            tag, at = _varint(raw, at)
            count += 1
            kind, number = tag & 7, tag >> 3
            if kind == _VARINT:
                _, at = _varint(raw, at)
            elif kind == _SUBMESSAGE:
                length, at = _varint(raw, at)
                field = about.fields_by_number.get(number)
                if field is not None and field.message_type is not None:
                    waiting.append((at, min(at + length, size), field.message_type))
                elif field is not None and field.cpp_type != field.CPPTYPE_STRING:
                    count += length // _PACKED_BYTES
                at += length
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            if count > most:
                raise LimitExceeded(f"records with more than {most} fields beside arrays")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where it ends."""
    value = shift = 0
    for byte in raw[at : at + _LONGEST]:
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at
