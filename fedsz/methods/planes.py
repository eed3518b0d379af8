"""Planes as bytes: each kind by a lossless coder of its own, the smallest of a few.

docs/format.md, "Planes", describes them bit by bit. All readers take a count that the caller has
checked, and make nothing larger than that count or the bytes at hand allow: numbers are kept in 4
bytes where they fit, and what is computed from them is computed a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer, NDArray, chunks
from fedsz.codecs import _methods
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CodecError, CorruptStream
from fedsz.methods.base import MANY, Kind, TensorSpec, is_finite

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]

GAPS, FIXED, SINGLE, DOUBLE = range(4)  # how numbers are coded: the first byte of their plane

MOST_WIDTH: Final = 48  # bits of a number
FEW: Final = 1 << 14  # numbers, above which a table of frequencies costs nothing to speak of
_BY_FREQUENCY: Final = Uniform(effort=1, threads=1)  # rANS, its table in the payload
_HALF: Final = 0.499  # a bound within which whole numbers come back by rounding
_EXACT: Final[dict[int, np.dtype]] = {SINGLE: np.dtype(np.float32), DOUBLE: np.dtype(np.float64)}
_LARGEST: Final = {SINGLE: 1 << 22, DOUBLE: 1 << 48}  # numbers that such floats hold
_FITS_INT32: Final = 1 << 30  # elements: no level of so many is larger
_PER_BYTE: Final = 5  # trits: 3^5 = 243
_POWERS: Final = 3 ** np.arange(_PER_BYTE)


def pack(kind: Kind, plane: NDArray) -> bytes:
    """Return the bytes of a flat plane.

    Raises:
        CodecError: it holds what its kind must not.
    """
    if kind in (Kind.VALUES, Kind.SCALES):
        if not np.isfinite(plane).all():
            raise CodecError(f"{kind.name.lower()} that are not finite")
        return np.ascontiguousarray(plane, plane.dtype.newbyteorder("<")).tobytes()
    if kind is Kind.PAYLOAD:
        return plane.tobytes()
    if kind is Kind.SIGNS:
        return _pack_bits(plane)
    if kind is Kind.INDICES:
        gaps = np.diff(plane, prepend=-1) - 1
        if gaps.size and gaps.min() < 0:
            raise CodecError("indices that do not ascend")
        return _pack_numbers(gaps, GAPS)
    if kind is Kind.TRITS:
        return _pack_trits(plane)
    return _pack_numbers(plane << 1 ^ plane >> 8 * plane.itemsize - 1, FIXED)


def unpack(kind: Kind, data: Buffer, count: int, spec: TensorSpec) -> NDArray:
    """Return the plane of ``count`` elements that ``data`` holds, of a tensor like ``spec``.

    Raises:
        CorruptStream: it holds another, or one that its kind must not be.
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
    if kind is Kind.TRITS:
        return _unpack_trits(data, count)
    return _unpack_levels(data, count, np.int32 if spec.size <= _FITS_INT32 else np.int64)


def _unpack_indices(data: Buffer, count: int, size: int) -> NDArray:
    """Return indices below ``size``; a mask of all elements where they are `MANY`."""
    _, gaps = _unpack_numbers(data, count, GAPS)
    is_mask = MANY * count > size
    indices: NDArray = np.zeros(size, np.bool_) if is_mask else np.empty(count, np.int64)
    last = -1
    for here in chunks(count):
        steps = gaps(here)
        left = count - min(here.stop, count)  # those that follow take an element each, at least
        reach = float(steps.sum(dtype=np.float64)) + steps.size + last + left
        _require(reach < size, "indices out of range")
        found = np.cumsum(steps + 1) + last
        last = int(found[-1])
        if is_mask:
            indices[found] = True
        else:
            indices[here] = found
    # A mask of all takes no memory.
    return np.broadcast_to(np.True_, size) if is_mask and count == size else indices


def _unpack_levels(data: Buffer, count: int, whole: type[np.signedinteger]) -> NDArray:
    """Return levels as ``whole`` numbers, in the memory of what they are decoded to if they fit."""
    floats, numbers = _unpack_numbers(data, count, FIXED)
    width, most = np.dtype(whole).itemsize, np.iinfo(whole).max
    if floats is None or floats.itemsize < width:
        floats = np.empty(-(-count * width // 8))
    levels = floats.view(whole)[:count]
    for here in chunks(count):
        zigzag = numbers(here)
        found = zigzag >> 1 ^ -(zigzag & 1)
        _require(int(np.abs(found).max()) <= most, "a level out of range")
        levels[here] = found  # which lie no further than the floats that they come from
    del levels, numbers
    floats.resize(-(-count * width // floats.itemsize), refcheck=False)
    return floats.view(whole)[:count]


def _pack_numbers(numbers: NDArray, plain: int) -> bytes:
    """Code whole numbers from 0: by width or as gaps (``plain``), or by their frequencies."""
    largest = int(numbers.max(initial=0))
    if largest.bit_length() > MOST_WIDTH:
        raise CodecError(f"a number of {largest.bit_length()} bits in a plane")
    mode = SINGLE if largest <= _LARGEST[SINGLE] else DOUBLE
    coded = bytes([mode]) + _BY_FREQUENCY.encode(numbers.astype(_EXACT[mode]), _HALF)
    if plain == FIXED and numbers.size > FEW:
        return coded
    packed = _pack_gaps(numbers) if plain == GAPS else _pack_fixed(numbers)
    return min(bytes([plain]) + packed, coded, key=len)


Numbers = Callable[[slice], Integers]  # those of a chunk


def _unpack_numbers(data: Buffer, count: int, plain: int) -> tuple[NDArray | None, Numbers]:
    """Return what decodes numbers, chunk by chunk, and the floats that it takes them from, if any.

    Raises:
        CorruptStream: they are of another mode, or of other bytes; that decodes none out of range.
    """
    _require(len(data) > 0, "a plane without its first byte")
    mode, rest = data[0], memoryview(data)[1:]
    if mode == plain:
        return None, (_unpack_gaps if plain == GAPS else _unpack_fixed)(rest, count)
    _require(mode in _EXACT, f"numbers of mode {mode}")
    floats = _BY_FREQUENCY.decode(rest, (count,), _EXACT[mode])
    floats = floats if floats.base is None else floats.base  # which can be made smaller

    def rounded(here: slice) -> Integers:
        part = floats[here]
        low, high = float(part.min(initial=0.0)), float(part.max(initial=0.0))
        _require(low >= -0.5 and high <= _LARGEST[mode] + 0.5, "a number out of range")
        numbers: Integers = np.rint(part).astype(np.int64)
        return numbers

    return floats, rounded


def _pack_fixed(numbers: NDArray) -> bytes:
    """Code numbers as planes of bits, all of one width."""
    width = int(numbers.max(initial=0)).bit_length()
    return bytes([width]) + b"".join(_pack_bits(numbers >> b & 1) for b in range(width))


def _unpack_fixed(data: memoryview, count: int) -> Numbers:
    width, length = _width(data), -(-count // 8)
    _require(len(data) == 1 + width * length, f"{len(data)} bytes of {count} numbers")
    planes = [data[1 + b * length : 1 + (b + 1) * length] for b in range(width)]

    def combined(here: slice) -> Integers:  # which begins with a byte
        size = min(here.stop, count) - here.start
        numbers = np.zeros(size, np.int64)
        for b, plane in enumerate(planes):
            octets = plane[here.start // 8 : -(-here.stop // 8)]
            numbers |= _unpack_bits(octets, size).astype(np.int64) << b
        return numbers

    return combined


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


def _unpack_gaps(data: memoryview, count: int) -> Numbers:
    width, code = _width(data), data[1:]
    _require(count <= 8 * len(code), f"{len(data)} bytes of {count} gaps")  # before they take more
    gaps: Integers = np.empty(count, np.int64)
    try:
        _methods.decode_gaps(code, width, gaps)
    except _methods.CorruptPayload as err:
        raise CorruptStream(f"gaps do not decode: {err}") from err
    return lambda here: gaps[here]


def _width(data: memoryview) -> int:
    _require(len(data) > 0 and data[0] <= MOST_WIDTH, "no width of numbers")
    return data[0]


def _pack_trits(trits: NDArray) -> bytes:
    """Code trits as signs if none is 0, five in a byte, or by their frequencies."""
    if trits.all():
        return bytes([FIXED]) + _pack_bits(trits < 0)
    coded = bytes([SINGLE]) + _BY_FREQUENCY.encode((trits + 1).astype(np.float32), _HALF)
    if trits.size > FEW:
        return coded
    filled = np.pad(trits + 1, (0, -trits.size % _PER_BYTE)).reshape(-1, _PER_BYTE)
    five = bytes([GAPS]) + (filled @ _POWERS).astype(np.uint8).tobytes()
    return min(five, coded, key=len)


def _unpack_trits(data: Buffer, count: int) -> NDArray:
    _require(len(data) > 0, "a plane without its first byte")
    mode, rest = data[0], memoryview(data)[1:]
    if mode == FIXED:
        trits = _unpack_bits(rest, count).view(np.int8)
        trits *= -2
        trits += 1
        return trits
    trits = np.empty(count, np.int8)
    if mode == GAPS:
        five = np.frombuffer(rest, np.uint8)
        _require(five.size == -(-count // _PER_BYTE), f"{five.size} bytes of {count} trits")
        _require(int(five.max(initial=0)) < 3**_PER_BYTE, "a byte that is not five trits")
        for j, power in enumerate(_POWERS):
            digits, found = five // np.uint8(power) % 3, trits[j::_PER_BYTE]
            found[:] = digits[: found.size]
            _require(not digits[found.size :].any(), "trits behind the last")
    else:
        _, numbers = _unpack_numbers(data, count, FIXED)
        for here in chunks(count):
            few = numbers(here)
            _require(int(few.max()) <= 2, "a trit out of range")
            trits[here] = few
    trits -= 1
    return trits


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
