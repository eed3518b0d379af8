"""Tensors that stay lossless: as they are, or as differences of their bits from a reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from fedsz.arrays import COMPLEX_DTYPES, Buffer, NDArray, raw
from fedsz.codecs import Codec, LosslessCodec, Raw
from fedsz.codecs.lossless import Zstd
from fedsz.core import bit_difference as bits
from fedsz.core.reference import Reference
from fedsz.errors import CorruptStream
from fedsz.stream import BITS, Part, Tensor

# Of differences of bits, whatever the codec of plain bytes: higher levels gain nothing on planes.
BITS_CODEC: Final = Zstd(level=1)


class Entry(NamedTuple):
    """A tensor of a state_dict: its place there, its name and its array."""

    i: int
    name: str
    x: NDArray


def encode_lossless(
    entries: Sequence[Entry], codec: LosslessCodec, reference: Reference | None
) -> Part:
    """Code tensors, at least one and of one item size, as one payload.

    As they are by ``codec``, or by `BITS_CODEC` from a reference, unless ``codec`` is ``raw``.

    Raises:
        ConfigError: the reference lacks one of them.
    """
    members, tensors = tuple(t.i for t in entries), [t.x for t in entries]
    data = raw(tensors[0]) if len(tensors) == 1 else memoryview(b"".join(map(raw, tensors)))
    best = Part(codec.wire_id, codec.pack(data, tensors[0].itemsize), None, members)
    real = not any(x.dtype in COMPLEX_DTYPES for x in tensors)
    if reference and real and not isinstance(codec, Raw):
        bases = [reference.tensor(t.name, t.x) for t in entries]
        packed = BITS_CODEC.pack(raw(bits.difference(tensors, bases)), 1)
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
        arrays = bits.moved(data, [base_of(tensor, reference) for tensor in tensors])
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
