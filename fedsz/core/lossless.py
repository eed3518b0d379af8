"""Tensors that stay lossless: as they are, or as differences of their bits from a reference.

Bits of floats, read as integers in the order of the values, are close where the values are: what a
small step changed is in the low bytes of their differences (docs/format.md, "Payloads").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsz.arrays import COMPLEX_DTYPES, Buffer, NDArray, octets, raw
from fedsz.codecs import Codec, LosslessCodec, Raw, _stream
from fedsz.codecs.lossless import Zstd
from fedsz.core.reference import Reference
from fedsz.errors import CorruptStream
from fedsz.stream import BITS, Part, Tensor

# Of differences of bits, whatever the codec of plain bytes: higher levels gain nothing on planes.
BITS_CODEC: Final = Zstd(level=1)


class Entry(NamedTuple):
    """A tensor of a state_dict to be coded.

    Attributes:
        i: its position there.
        name: its name.
        x: the array.
        base: that of the reference, of its dtype and shape; None if there is none.
    """

    i: int
    name: str
    x: NDArray
    base: NDArray | None = None


def encode_lossless(entries: Sequence[Entry], codec: LosslessCodec) -> Part:
    """Code tensors, at least one and of one item size, as one payload.

    As they are by ``codec``, or by `BITS_CODEC` as differences of their bits, where all of them
    have a base and ``codec`` is not ``raw``.
    """
    members, tensors = tuple(t.i for t in entries), [t.x for t in entries]
    data = raw(tensors[0]) if len(tensors) == 1 else memoryview(b"".join(map(raw, tensors)))
    best = Part(codec.wire_id, codec.pack(data, tensors[0].itemsize), None, members)
    bases = [t.base for t in entries if t.base is not None]
    real = not any(x.dtype in COMPLEX_DTYPES for x in tensors)
    if len(bases) == len(tensors) and real and not isinstance(codec, Raw):
        packed = BITS_CODEC.pack(raw(difference_of_bits(tensors, bases)), 1)
        if len(packed) < len(best.data):
            best = Part(BITS_CODEC.wire_id, packed, None, members, BITS)
    return best if len(best.data) < len(data) else Part(Raw.wire_id, bytes(data), None, members)


def decode_lossless(
    codec: Codec, data: Buffer, tensors: Sequence[Tensor], reference: Reference | None
) -> Iterator[tuple[str, NDArray]]:
    """Yield the tensors of a payload by name; of differences of bits, if there is a reference.

    What is no difference is a read-only view of what was unpacked.

    Raises:
        CorruptStream: the payload holds something else, or the reference lacks a tensor.
        CodecUnavailable: the codec's library is not installed here.
    """
    if not isinstance(codec, LosslessCodec):
        raise CorruptStream(f"codec {codec.name!r} in a lossless payload")
    codec.require()
    data = codec.unpack(data, sum(tensor.nbytes for tensor in tensors))
    if reference is None:
        arrays = _split(data, tensors)
    else:
        arrays = moved_by_bits(data, [base_of(tensor, reference) for tensor in tensors])
    for tensor, x in zip(tensors, arrays, strict=True):
        if x.dtype == np.bool_ and (x.view(np.uint8) > 1).any():
            raise CorruptStream(f"a bool of {tensor.name!r} is neither 0 nor 1")
        yield tensor.name, x


def _split(data: Buffer, tensors: Sequence[Tensor]) -> Iterator[NDArray]:
    view, offset = memoryview(data).toreadonly(), 0
    for tensor in tensors:
        yield np.frombuffer(view, tensor.dtype, tensor.size, offset).reshape(tensor.shape)
        offset += tensor.nbytes


def base_of(tensor: Tensor, reference: Reference) -> NDArray:
    """Return what a difference is to be added to, or raise `CorruptStream`."""
    base = reference.arrays.get(tensor.name)
    if base is None or base.shape != tensor.shape or base.dtype != tensor.dtype:
        raise CorruptStream(f"a difference from {tensor.name!r}, which the reference lacks")
    return base


def difference_of_bits(
    tensors: Sequence[NDArray], bases: Sequence[NDArray]
) -> npt.NDArray[np.uint8]:
    """Return how ``tensors`` differ from ``bases``.

    Args:
        tensors: at least one; C-contiguous, of any shapes, of dtypes of one item size up to 8.
        bases: as many, each of the dtype and shape of its tensor.

    Returns:
        A plane (row) of bytes for each byte of an item, lowest first.
    """
    width, first = tensors[0].itemsize, 0
    planes = np.empty((width, sum(x.size for x in tensors)), np.uint8)
    flat = planes.reshape(-1)
    for x, base in zip(tensors, bases, strict=True):
        _stream.bit_difference(octets(x), octets(base), width, _is_float(x), flat, first)
        first += x.size
    return planes


def moved_by_bits(planes: Buffer, bases: Sequence[NDArray]) -> Iterator[NDArray]:
    """Yield the tensors that differ from ``bases`` by ``planes``, each with memory of its own.

    ``planes`` are those of `difference_of_bits`, row by row: as many bytes as the bases have.
    """
    first = 0
    for base in bases:
        y = np.empty(base.shape, base.dtype)
        _stream.move_bits(planes, first, base.itemsize, _is_float(base), octets(base), octets(y))
        first += base.size
        yield y


def _is_float(x: NDArray) -> bool:
    return x.dtype.kind in "fV"  # V: those of ml_dtypes
