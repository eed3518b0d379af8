"""The symbols of a tensor as one payload, and back; docs/format.md, "Pipelines"."""

from __future__ import annotations

from typing import Final

from fedsz.arrays import Buffer, NDArray
from fedsz.errors import CorruptStream, LimitExceeded
from fedsz.methods.base import VALUES, Coded, Kind, TensorSpec, require_count
from fedsz.methods.combinators import Chain
from fedsz.methods.symbols import pack, unpack

_LONGEST: Final = 9  # bytes of a varint


def write(chain: Chain, coded: Coded) -> bytes:
    """Return the payload of a tensor.

    Args:
        chain: that `Transform.sent` returns for the tensor.
        coded: its symbols by `Transform.encode`.

    Raises:
        CodecError: symbols are none of their kind.
    """
    packed = []
    last = len(chain.stages) - 1  # whose values are sent
    for i, (stage, symbols) in enumerate(zip(chain.stages, coded, strict=True)):
        for name, kind in stage.symbols.items():
            if name != VALUES or i == last:
                flat = symbols[name].reshape(-1)
                data = pack(kind, flat)
                packed += [_varint(flat.size), _varint(len(data)), data]
    return b"".join(packed)


def read(chain: Chain, payload: Buffer, spec: TensorSpec) -> Coded:
    """Return the symbols of a tensor like ``spec``, checked as far as each can be by itself.

    Raises:
        CorruptStream: it is no payload of this chain.
        LimitExceeded: there are more symbols of a name than elements in the tensor.
    """
    cursor = _Cursor(memoryview(payload).cast("B"))
    coded = []
    for i, stage in enumerate(chain.stages):
        kinds = stage.symbols.items()
        symbols = {name: cursor.take(kind, spec) for name, kind in kinds if name != VALUES}
        if VALUES in stage.symbols:
            spec = stage.values_spec(symbols, spec)
            if i == len(chain.stages) - 1:
                symbols[VALUES] = cursor.take(Kind.VALUES, spec)
                require_count("values", symbols[VALUES], spec.size)
        coded.append(symbols)
    cursor.end()
    return tuple(coded)


class _Cursor:
    """A place in a payload, behind the symbols that have been read."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data.toreadonly(), 0  # of which symbols may be views

    def take(self, kind: Kind, spec: TensorSpec) -> NDArray:
        """Return the next symbols."""
        count, length = self._number(), self._number()
        data = self._data[self._at : self._at + length]
        if len(data) < length:
            raise CorruptStream(f"symbols of {length} bytes end early", offset=self._at)
        most = len(data) if kind is Kind.PAYLOAD else max(spec.size, 1)
        if count > most:
            raise LimitExceeded(f"{count} symbols; limit {most}", offset=self._at)
        self._at += length
        return unpack(kind, data, count, spec)

    def end(self) -> None:
        if self._at != len(self._data):
            raise CorruptStream("bytes behind the last symbols", offset=self._at)

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
