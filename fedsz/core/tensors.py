"""One tensor, to a payload and back: within a bound, or without loss.

A tensor that may be lossy is coded as it is, or as the difference from one that both sides hold.
With x the tensor, r the reference's and d' what the difference decodes to, y = r + d'. So

    |x - y| <= |d - d'| + |x - r - d| + |r + d' - y|

where d is x - r as it is rounded, and the last two terms are half the distance between neighbouring
numbers at most: the codec gets what they leave of the bound.

In half precision that is often nothing: the largest weights are further apart than the bound is
wide. But rounding r + d' to a dtype that holds x doubles its error at most, since the nearest
number is no further from r + d' than x is. So such tensors get half the bound, and large weights
come back as they were.

A lossless tensor is coded as it is, or as the difference of its bits. Bits of floats, read as
integers in the order of the values, are close where the values are: what a small step changed is in
the low bytes of their differences (docs/format.md, "Payloads").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsz.arrays import COMPLEX_DTYPES, Buffer, NDArray, chunks, finfo, octets, raw, wide
from fedsz.codecs import Codec, LosslessCodec, Raw, _stream
from fedsz.codecs.base import FLOAT32, Encoded, Opened, OpenedArray
from fedsz.codecs.lossless import Zstd
from fedsz.codecs.spread import half_ulp
from fedsz.codecs.uniform import Comparison, compare
from fedsz.core.reference import Reference
from fedsz.errors import CorruptStream
from fedsz.stream import BITS, Part, Tensor

if TYPE_CHECKING:
    from fedsz.core.decode import PipelineDecoder

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


def encode_within(x: NDArray, bound: float, codec: Codec) -> Encoded | None:
    """Code ``x`` so that the bound holds in its own dtype; None where that cannot be had."""
    if x.dtype in codec.dtypes:
        return codec.encode_measured(x, bound)
    with np.errstate(over="ignore", invalid="ignore"):
        single = x.astype(FLOAT32)
    if not np.isfinite(single).all():
        return None  # a NaN's bits, or a value beyond float32, would not come back
    doubles = x.astype(np.float64)
    # float64 is rounded to float32 before it is coded, narrower dtypes after they are decoded.
    largest = float(np.abs(doubles).max(initial=0.0)) + bound
    spare = bound - half_ulp(largest, FLOAT32 if x.dtype == np.float64 else x.dtype)
    if not spare > 0:
        return None
    payload = codec.encode(single, spare)
    back = narrow(codec.decode(payload, x.shape), x.dtype)
    error = float(np.abs(back.astype(np.float64) - doubles).max(initial=0.0))
    return Encoded(payload, error) if error <= bound or not codec.keeps_bound else None


def encode_difference(x: NDArray, base: NDArray, bound: float, codec: Codec) -> Encoded | None:
    """Code x - base, of one floating dtype and shape; None where no difference can stand for ``x``.

    The bound is on the tensor. The codec gets the difference in float64 for float64 tensors and
    float32 for others.
    """
    if not x.size:
        return None
    dtype = wide(x.dtype)
    statistics = compared(x, base, deviation=False)
    # NaN and infinities come back exactly only as they are.
    if not (math.isfinite(statistics.least) and math.isfinite(statistics.greatest)):
        return None
    largest = max(-statistics.low, statistics.high)
    if largest + bound > float(finfo(dtype).max):
        return None  # a sum could be infinite
    rounding = half_ulp(max(-statistics.least, statistics.greatest), dtype)
    rounding += half_ulp(largest + bound, dtype)
    spare = bound - rounding
    if x.dtype != dtype:
        narrowing = half_ulp(largest + bound, x.dtype)
        spare = max(spare - narrowing, bound / 2 - rounding)
    if not spare > 0:
        return None
    if x.dtype == dtype and dtype in codec.dtypes:
        payload, error = codec.encode_measured(x, spare, base)
    else:
        coded = encode_within(np.subtract(x, base, dtype=dtype), spare, codec)
        if coded is None:
            return None
        payload, error = coded
    if not codec.keeps_bound:  # beyond which roundings are larger
        rounding += half_ulp(largest + error + rounding, x.dtype)
    error += rounding
    if x.dtype != dtype:
        error = min(error + narrowing, 2 * error)
    return Encoded(payload, error)


def compared(x: NDArray, base: NDArray, *, deviation: bool) -> Comparison:
    """Compare in the dtype of differences."""
    sides = (side.astype(wide(x.dtype), copy=False) for side in (x, base))
    return compare(*sides, deviation=deviation)


@dataclass(frozen=True)
class CodedTensor:
    """A lossy tensor of a stream that has arrived and is not decoded yet.

    Attributes:
        dtype, shape: of the tensor.
        codec: that of its payload.
        payload: the bytes, whose checksum fits.
        offset: where in the stream they are.
        reference: what the payload's numbers are to be added to; None if they are the tensor.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    codec: Codec | PipelineDecoder
    payload: Buffer
    offset: int
    reference: NDArray | None = None

    @property
    def nbytes(self) -> int:
        """Size of the tensor, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_native(self) -> bool:
        """Whether its codec holds it without a rounding of its own, and so can add it up."""
        return self._coded_dtype in self.codec.dtypes

    def decode(self) -> NDArray:
        """Return it as an array.

        Raises:
            CorruptStream: the payload is not what the header says.
            CodecUnavailable: the codec's library is not installed here.
        """
        dtype, base = self._coded_dtype, None
        if dtype == self.dtype and dtype in self.codec.dtypes:
            base = self.reference
        with located(self.offset):
            y = self.codec.decode(self.payload, self.shape, dtype, base)
        if self.reference is None or base is not None:
            return narrow(y, self.dtype)
        return moved(self.reference, y)

    def open(self, base: NDArray | None = None) -> Opened:
        """Decode the payload as far as it can fail, without the reference; only if it `is_native`.

        See `Codec.open`, which may need no array.

        Args:
            base: of a tensor without a reference, the one that its energy is counted from.

        Raises:
            CorruptStream, CodecUnavailable: as `decode`.
        """
        with located(self.offset):
            opened = self.codec.open(self.payload, self.shape, self._coded_dtype, base)
        if base is not None and not math.isfinite(opened.energy):
            return OpenedArray(self.decode(), base)  # a mask of -inf is no step
        return opened

    @property
    def _coded_dtype(self) -> np.dtype:
        """The dtype that the codec sees, if it can."""
        return self.dtype if self.reference is None else wide(self.dtype)


class located:  # noqa: N801 - no generator, which takes as long as to decode a small tensor
    """Counts the place of a `CorruptStream` from the start of the stream, not of the payload."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, err: BaseException | None, __: object) -> None:
        if isinstance(err, CorruptStream):
            raise type(err)(err.what, offset=self._offset + err.offset) from err


def moved(base: NDArray, difference: NDArray) -> NDArray:
    """Return base + difference, in the dtype of ``base``; what is finite stays finite."""
    y = np.empty_like(base)
    start, step, out = base.reshape(-1), difference.reshape(-1), y.reshape(-1)
    for here in chunks(y.size):
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.add(start[here], step[here], dtype=wide(base.dtype))
        if not np.isfinite(total).all():
            total = saturated(total, np.isfinite(start[here]) & np.isfinite(step[here]))
        out[here] = narrow(total, base.dtype)
    return y


def narrow(y: NDArray, dtype: np.dtype) -> NDArray:
    """Convert what was decoded to ``dtype``; what is finite stays finite."""
    if y.dtype == dtype:
        return y
    converted = np.empty(y.shape, dtype)
    flat, out = y.reshape(-1), converted.reshape(-1)
    for here in chunks(flat.size):
        with np.errstate(over="ignore", invalid="ignore"):
            out[here] = flat[here].astype(dtype)
        if not np.isfinite(out[here]).all():
            out[here] = saturated(out[here], np.isfinite(flat[here]))
    return converted


def saturated(y: NDArray, finite: NDArray) -> NDArray:
    """Return ``y`` with the largest number of its dtype for infinities of what was ``finite``."""
    largest = np.array(float(finfo(y.dtype).max), y.dtype)
    return np.where(np.isinf(y) & finite, np.copysign(largest, y), y)


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
