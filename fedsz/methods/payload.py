"""The planes of a tensor as one payload, and back; docs/format.md, "Chains"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedsz.arrays import Buffer, NDArray
from fedsz.errors import CorruptStream, LimitExceeded
from fedsz.methods.base import VALUES, Kind, Part, Parts, TensorSpec
from fedsz.methods.combinators import Chain
from fedsz.methods.planes import pack, unpack

_LONGEST: Final = 9  # bytes of a varint


def write(parts: Sequence[Part], planes: Parts) -> bytes:
    """Return the payload of a tensor.

    Args:
        parts: what `Transform.sent` returns for the tensor.
        planes: what a chain of them has encoded.

    Raises:
        CodecError: a plane holds what its kind must not.
    """
    packed = []
    for name, kind in Chain(tuple(parts)).planes.items():
        plane = planes[name].reshape(-1)
        data = pack(kind, plane)
        packed += [_varint(plane.size), _varint(len(data)), data]
    return b"".join(packed)


def read(parts: Sequence[Part], payload: Buffer, spec: TensorSpec) -> Parts:
    """Return the planes of a tensor like ``spec``, checked as far as each can be by itself.

    Raises:
        CorruptStream: it is no payload of these parts.
        LimitExceeded: a plane has more elements than the tensor.
    """
    cursor = _Cursor(memoryview(payload).cast("B"))
    planes: dict[str, NDArray] = {}
    for i, part in enumerate(parts):
        own = {
            name: cursor.plane(kind, spec) for name, kind in part.planes.items() if name != VALUES
        }
        planes |= {f"{i}.{name}": plane for name, plane in own.items()}
        if VALUES in part.planes:
            spec = part.values_spec(own, spec)
    if not parts or VALUES in parts[-1].planes:
        planes[VALUES] = cursor.plane(Kind.VALUES, spec)
        if planes[VALUES].size != spec.size:
            raise CorruptStream(f"{planes[VALUES].size} values where {spec.size} are needed")
    cursor.end()
    return planes


class _Cursor:
    """A place in a payload, behind the planes that have been read."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def plane(self, kind: Kind, spec: TensorSpec) -> NDArray:
        count, length = self._number(), self._number()
        data = self._data[self._at : self._at + length]
        if len(data) < length:
            raise CorruptStream(f"a plane of {length} bytes ends early", offset=self._at)
        most = len(data) if kind is Kind.PAYLOAD else max(spec.size, 1)
        if count > most:
            raise LimitExceeded(f"a plane of {count} elements; limit {most}", offset=self._at)
        self._at += length
        return unpack(kind, data, count, spec)

    def end(self) -> None:
        if self._at != len(self._data):
            raise CorruptStream("bytes behind the last plane", offset=self._at)

    def _number(self) -> int:
        """Read an unsigned LEB128 number below 2^63."""
        number = 0
        for i in range(_LONGEST):
            if self._at >= len(self._data):
                raise CorruptStream("a number ends early", offset=self._at)
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                return number
        raise CorruptStream(f"a number of more than {_LONGEST} bytes", offset=self._at)


def _varint(number: int) -> bytes:
    """Return a number as unsigned LEB128."""
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
