"""The planes of a tensor as one payload, and back; docs/format.md, "Chains"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from fedsz.arrays import Buffer, NDArray
from fedsz.errors import CorruptStream, LimitExceeded
from fedsz.methods.base import VALUES, Kind, Planes, TensorSpec
from fedsz.methods.combinators import Chain
from fedsz.methods.planes import pack, unpack

_LONGEST: Final = 9  # bytes of a varint


def write(chain: Chain, planes: Planes) -> bytes:
    """Return the payload of a tensor.

    Args:
        chain: what `Transform.sent` returns for the tensor.
        planes: what has been encoded for it.

    Raises:
        CodecError: a plane holds what its kind must not.
    """
    packed = []
    for name, kind in chain.planes.items():
        plane = planes[name].reshape(-1)
        data = pack(kind, plane)
        packed += [_varint(plane.size), _varint(len(data)), data]
    return b"".join(packed)


def read(chain: Chain, payload: Buffer, spec: TensorSpec) -> Planes:
    """Return the planes of a tensor like ``spec``, checked as far as each can be by itself.

    Those that only the last part has are unpacked, and checked, whenever they are asked for: so
    they take no memory before or after.

    Raises:
        CorruptStream: it is no payload of this chain; so does the mapping.
        LimitExceeded: a plane has more elements than the tensor.
    """
    cursor = _Cursor(memoryview(payload).cast("B"))
    makers: dict[str, Callable[[], NDArray]] = {}
    for i, part in enumerate(chain.parts):
        kinds = {name: kind for name, kind in part.planes.items() if name != VALUES}
        own = {name: cursor.plane(kind, spec) for name, kind in kinds.items()}
        if VALUES in part.planes:
            found = {name: make() for name, make in own.items()}
            own = {name: partial(found.__getitem__, name) for name in found}
            spec = part.values_spec(found, spec)
        makers |= {f"{i}.{name}": make for name, make in own.items()}
    if VALUES in chain.planes:
        values = cursor.plane(Kind.VALUES, spec)()
        if values.size != spec.size:
            raise CorruptStream(f"{values.size} values where {spec.size} are needed")
        makers[VALUES] = lambda: values
    cursor.end()
    return _Planes(makers)


class _Planes(Mapping[str, NDArray]):
    """Planes by their names, each made whenever it is asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], NDArray]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> NDArray:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class _Cursor:
    """A place in a payload, behind the planes that have been read."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data.toreadonly(), 0  # of which planes are views

    def plane(self, kind: Kind, spec: TensorSpec) -> Callable[[], NDArray]:
        """Pass a plane, and return what unpacks it."""
        count, length = self._number(), self._number()
        data = self._data[self._at : self._at + length]
        if len(data) < length:
            raise CorruptStream(f"a plane of {length} bytes ends early", offset=self._at)
        most = len(data) if kind is Kind.PAYLOAD else max(spec.size, 1)
        if count > most:
            raise LimitExceeded(f"a plane of {count} elements; limit {most}", offset=self._at)
        self._at += length
        return partial(unpack, kind, data, count, spec)

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
