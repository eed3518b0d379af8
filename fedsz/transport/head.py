"""How much the head of a message may describe: as many fields as whoever receives it expects.

A field of a few bytes takes a thousand times as long to become a name, a shape and an `Array`. So
they are counted in the bytes, before anything is made of them.
"""

from __future__ import annotations

from typing import Any, Final

from fedsz.errors import LimitExceeded

MOST_FIELDS: Final = 1 << 19  # where no model is known: some 80,000 arrays, 3 s and 200 MB

_FIELDS_OF_TENSOR: Final = 16  # an Array has 6; a model that differs a little can still be named
_SPARE_FIELDS: Final = 1 << 16  # for metrics and other entries, 4 or 5 each
_LEAST_BYTES: Final = 2  # of a field
_PACKED_BYTES: Final = 64  # of a list of numbers, that take as long as a field
_LONGEST: Final = 10  # bytes of a number
_VARINT, _FIXED64, _SUBMESSAGE, _FIXED32 = 0, 1, 2, 5  # wire types


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
