"""The symbols of a tensor as one payload, and back: each kind by a lossless coder of its own.

docs/format.md, "Pipelines", describes them bit by bit. All readers take a count that the caller has
checked, and make nothing larger than that count or the bytes at hand allow.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fedsz.arrays import Buffer, NDArray, chunks, is_finite
from fedsz.codecs import _methods
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CodecError, CorruptStream, LimitExceeded
from fedsz.methods.base import VALUES, Coded, Kind, TensorSpec, require_count
from fedsz.methods.chain import Chain

MOST_WIDTH: Final = 48  # bits of a gap
MOST_LEVEL: Final = 1 << 22  # magnitude of a level: a float32 holds it within `_HALF`
_HALF: Final = 0.499  # a bound within which whole numbers come back by rounding
_BY_FREQUENCY: Final = Uniform(effort=1)  # rANS, its table in the payload
_LONGEST: Final = 9  # bytes of a varint


def write(chain: Chain, coded: Coded) -> bytes:
    """Return the payload of a tensor.

    Args:
        chain: whose stages coded the tensor.
        coded: its symbols by `Chain.encode`.

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
    """A position in a payload, behind the symbols that have been read."""

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


def pack(kind: Kind, symbols: NDArray) -> bytes:
    """Return the bytes of a flat array of symbols.

    Raises:
        CodecError: they are none of this kind.
    """
    if kind is Kind.PAYLOAD:
        return symbols.tobytes()
    if kind is Kind.VALUES:
        if not np.isfinite(symbols).all():
            raise CodecError("values that are not finite")
        return np.ascontiguousarray(symbols, symbols.dtype.newbyteorder("<")).tobytes()
    if kind is Kind.INDICES:
        gaps = np.diff(symbols, prepend=-1) - 1
        if gaps.size and gaps.min() < 0:
            raise CodecError("indices that do not ascend")
        return _pack_gaps(gaps)
    largest = max(int(symbols.max(initial=0)), -int(symbols.min(initial=0)))
    if largest > MOST_LEVEL:
        raise CodecError(f"a level of {largest}; limit {MOST_LEVEL}")
    return _BY_FREQUENCY.encode(symbols.astype(np.float32), _HALF)


def unpack(kind: Kind, data: Buffer, count: int, spec: TensorSpec) -> NDArray:
    """Return the ``count`` symbols that ``data`` holds, of a tensor like ``spec``.

    Raises:
        CorruptStream: it holds others, or such as are none of this kind.
    """
    if kind is Kind.PAYLOAD:
        _require(len(data) == count, "a payload of another length than it says")
        return np.frombuffer(data, np.uint8)
    if kind is Kind.VALUES:
        _require(len(data) == count * spec.dtype.itemsize, f"{len(data)} bytes of {count} values")
        floats = np.frombuffer(data, spec.dtype)
        _require(is_finite(floats), "a value that is not finite")
        return floats
    if kind is Kind.INDICES:
        return _unpack_indices(data, count, spec.size)
    floats = _BY_FREQUENCY.decode(data, (count,), np.dtype(np.float32))
    levels = np.empty(count, np.int32)
    for here in chunks(count):
        rounded = np.rint(floats[here])
        _require(bool(np.abs(rounded).max() <= MOST_LEVEL), "a level out of range")
        levels[here] = rounded
    return levels


def _unpack_indices(data: Buffer, count: int, size: int) -> NDArray:
    """Return indices below ``size``, int64, made of their gaps."""
    indices = _unpack_gaps(memoryview(data), count)
    last = -1
    for here in chunks(count):
        gaps = indices[here]
        reach = float(gaps.sum(dtype=np.float64)) + gaps.size + last
        _require(reach < size, "indices out of range")
        gaps += 1
        np.cumsum(gaps, out=gaps)
        gaps += last
        last = int(gaps[-1])
    return indices


def _pack_gaps(gaps: NDArray) -> bytes:
    """Code gaps after Golomb and Rice: low bits as they are, the rest in unary, all ones at last.

    The width is the one that takes the fewest bits; it is near log2(ln 2 times the mean).
    """
    about = int(0.7 * float(gaps.mean())).bit_length() if gaps.size else 0
    widths = range(max(about - 2, 0), min(about + 2, MOST_WIDTH + 1))
    width = min(widths, key=lambda b: gaps.size * b + int((gaps >> b).sum()))
    ones = np.cumsum((gaps >> width) + 1) - 1
    unary = np.zeros(int(ones[-1]) + 1 if gaps.size else 0, np.bool_)
    unary[ones] = True
    planes = [*((gaps >> b & 1).astype(np.bool_) for b in range(width)), unary]
    return bytes([width]) + b"".join(np.packbits(p, bitorder="little").tobytes() for p in planes)


def _unpack_gaps(data: memoryview, count: int) -> NDArray:
    _require(len(data) > 0 and data[0] <= MOST_WIDTH, "no width of gaps")
    width, code = data[0], data[1:]
    _require(count <= 8 * len(code), f"{len(data)} bytes of {count} gaps")  # before they take more
    gaps = np.empty(count, np.int64)
    try:
        _methods.decode_gaps(code, width, gaps)
    except _methods.CorruptPayload as err:
        raise CorruptStream(f"gaps do not decode: {err}") from err
    return gaps


def _require(holds: bool, what: str) -> None:
    """Raise `CorruptStream` unless it holds."""
    if not holds:
        raise CorruptStream(what)
