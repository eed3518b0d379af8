"""Symbols as bytes: each kind by a lossless coder of its own, the smallest of a few.

docs/format.md, "Symbols", describes them bit by bit. All readers take a count that the caller has
checked, and make nothing larger than that count or the bytes at hand allow.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer, NDArray, chunks
from fedsz.codecs import _methods
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CodecError, CorruptStream
from fedsz.methods.base import Kind, TensorSpec, is_finite

Bits = npt.NDArray[np.bool_]

GAPS, FIXED, SINGLE = range(3)  # how numbers are coded: their first byte

MOST_WIDTH: Final = 48  # bits of a number
FEW: Final = 1 << 14  # numbers, above which a table of frequencies costs nothing to speak of
_BY_FREQUENCY: Final = Uniform(effort=1, threads=1)  # rANS, its table in the payload
_HALF: Final = 0.499  # a bound within which whole numbers come back by rounding
_LARGEST: Final = 1 << 22  # number that a float32 holds with this bound


def pack(kind: Kind, symbols: NDArray) -> bytes:
    """Return the bytes of a flat array of symbols.

    Raises:
        CodecError: they are none of this kind.
    """
    if kind in (Kind.VALUES, Kind.SCALES):
        if not np.isfinite(symbols).all():
            raise CodecError(f"{kind.name.lower()} that are not finite")
        return np.ascontiguousarray(symbols, symbols.dtype.newbyteorder("<")).tobytes()
    if kind is Kind.PAYLOAD:
        return symbols.tobytes()
    if kind is Kind.SIGNS:
        return _pack_bits(symbols)
    if kind is Kind.INDICES:
        gaps = np.diff(symbols, prepend=-1) - 1
        if gaps.size and gaps.min() < 0:
            raise CodecError("indices that do not ascend")
        return _pack_numbers(gaps, GAPS)
    return _pack_numbers(symbols << 1 ^ symbols >> 8 * symbols.itemsize - 1, FIXED)


def unpack(kind: Kind, data: Buffer, count: int, spec: TensorSpec) -> NDArray:
    """Return the ``count`` symbols that ``data`` holds, of a tensor like ``spec``.

    Raises:
        CorruptStream: it holds others, or such as are none of this kind.
    """
    if kind in (Kind.VALUES, Kind.SCALES):
        _require(len(data) == count * spec.dtype.itemsize, f"{len(data)} bytes of {count} values")
        floats = np.frombuffer(data, spec.dtype)
        _require(is_finite(floats), "a value that is not finite")
        return floats
    if kind is Kind.PAYLOAD:
        _require(len(data) == count, "a payload of another length than it says")
        return np.frombuffer(data, np.uint8)
    if kind is Kind.SIGNS:
        return _unpack_bits(data, count)
    if kind is Kind.INDICES:
        return _unpack_indices(data, count, spec.size)
    levels = _unpack_numbers(data, count, FIXED)
    for here in chunks(count):
        zigzag = levels[here]
        levels[here] = zigzag >> 1 ^ -(zigzag & 1)
    return levels


def _unpack_indices(data: Buffer, count: int, size: int) -> NDArray:
    """Return indices below ``size``, int64, made of their gaps."""
    indices = _unpack_numbers(data, count, GAPS).astype(np.int64, copy=False)
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


def _pack_numbers(numbers: NDArray, plain: int) -> bytes:
    """Code whole numbers from 0: by width or as gaps (``plain``), or by their frequencies."""
    largest = int(numbers.max(initial=0))
    if largest.bit_length() > MOST_WIDTH:
        raise CodecError(f"a symbol of {largest.bit_length()} bits; limit {MOST_WIDTH}")
    coded = None
    if largest <= _LARGEST:
        coded = bytes([SINGLE]) + _BY_FREQUENCY.encode(numbers.astype(np.float32), _HALF)
        if plain == FIXED and numbers.size > FEW:
            return coded
    packed = bytes([plain]) + (_pack_gaps(numbers) if plain == GAPS else _pack_fixed(numbers))
    return packed if coded is None else min(packed, coded, key=len)


def _unpack_numbers(data: Buffer, count: int, plain: int) -> NDArray:
    """Return numbers as int32 where they are coded in so few bits, else int64.

    Raises:
        CorruptStream: they are of another mode, or of other bytes; one is out of range.
    """
    _require(len(data) > 0, "symbols without their first byte")
    mode, rest = data[0], memoryview(data)[1:]
    if mode == plain:
        return (_unpack_gaps if plain == GAPS else _unpack_fixed)(rest, count)
    _require(mode == SINGLE, f"numbers of mode {mode}")
    floats = _BY_FREQUENCY.decode(rest, (count,), np.dtype(np.float32))
    numbers = np.empty(count, np.int32)
    for here in chunks(count):
        rounded = np.rint(floats[here])
        _require(rounded.min() >= 0 and rounded.max() <= _LARGEST, "a number out of range")
        numbers[here] = rounded
    return numbers


def _pack_fixed(numbers: NDArray) -> bytes:
    """Code numbers bit by bit, all of one width: the lowest bits of all, then the next ones."""
    width = int(numbers.max(initial=0)).bit_length()
    return bytes([width]) + b"".join(_pack_bits(numbers >> b & 1) for b in range(width))


def _unpack_fixed(data: memoryview, count: int) -> NDArray:
    width, length = _width(data), -(-count // 8)
    _require(len(data) == 1 + width * length, f"{len(data)} bytes of {count} numbers")
    numbers: NDArray = np.zeros(count, np.int32 if width < 32 else np.int64)
    for b in range(width):
        bits = _unpack_bits(data[1 + b * length : 1 + (b + 1) * length], count)
        for here in chunks(count):
            numbers[here] |= bits[here].astype(numbers.dtype) << b
    return numbers


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
    low = (_pack_bits(gaps >> b & 1) for b in range(width))
    return b"".join((bytes([width]), *low, _pack_bits(unary)))


def _unpack_gaps(data: memoryview, count: int) -> NDArray:
    width, code = _width(data), data[1:]
    _require(count <= 8 * len(code), f"{len(data)} bytes of {count} gaps")  # before they take more
    gaps = np.empty(count, np.int64)
    try:
        _methods.decode_gaps(code, width, gaps)
    except _methods.CorruptPayload as err:
        raise CorruptStream(f"gaps do not decode: {err}") from err
    return gaps


def _width(data: memoryview) -> int:
    _require(len(data) > 0 and data[0] <= MOST_WIDTH, "no width of numbers")
    return data[0]


def _pack_bits(bits: NDArray) -> bytes:
    return np.packbits(bits.astype(np.bool_, copy=False), bitorder="little").tobytes()


def _unpack_bits(data: Buffer, count: int) -> Bits:
    _require(len(data) == -(-count // 8), f"{len(data)} bytes of {count} bits")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    _require(not bits[count:].any(), "bits behind the last")
    return bits[:count].view(np.bool_)


def _require(holds: bool, what: str) -> None:
    """Raise `CorruptStream` unless it holds."""
    if not holds:
        raise CorruptStream(what)
