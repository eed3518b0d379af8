"""What a stream says of itself: the prefix, the header, and what a reader must refuse."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Final, Self

import msgspec
import numpy as np

from fedsz.arrays import COMPLEX_DTYPES, DTYPES, LOSSY_DTYPES, MAX_NDIM, Layout, is_shape
from fedsz.errors import CorruptStream, LimitExceeded, UnsupportedStream

MAGIC: Final = b"\x89FSZ\r\n\x1a\n"
VERSION: Final = 1
DIFFERENCES: Final = 2  # the version of streams with differences from a reference
CHAINS: Final = 3  # and of streams with tensors that a chain of methods has coded
VERSIONS: Final = (VERSION, DIFFERENCES, CHAINS)
DIGEST_BYTES: Final = 16  # that name a reference
VALUES, DIFFERENCE, BITS, CHAIN, CHAIN_DIFFERENCE = range(5)
TRANSFORMS: Final = ("values", "delta", "bits", "values", "delta")  # by number: what is coded
CHAINED: Final = (CHAIN, CHAIN_DIFFERENCE)
PREFIX: Final = 20
MAX_DIM: Final = 1 << 48
FREE_TENSORS: Final = 1 << 13  # that a stream of any length may have
MOST_TEXT: Final = 1000  # characters of a chain
MOST_CHAINS: Final = 256  # of a stream, each of which has to be read
TENSOR_HEADER_BYTES: Final = 192  # of the inflated header, for each tensor that is allowed

_NO_CHAINS: Final = b"\x90"  # an empty array in MessagePack
_SPARE_TENSORS: Final = 8  # that streams of a known model may have beside twice its own
_SPARE_BYTES: Final = 32 << 20  # that they may have beside its size
_INTEGER: Final = 9  # bytes of the longest integer in MessagePack
_RECORDS: Final = 96  # bytes at most of a tensor's and a payload's record, without name and shape


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a stream may ask for before it is refused.

    Attributes:
        decoded_bytes: size of all tensors together, in bytes.
        expansion: or this many times the length of the stream, if that is more.
        header_bytes: size of the inflated header, in bytes.
        tensors: number of tensors.
        tensor_bytes: of the stream, that each tensor must take if there are more than
            `FREE_TENSORS`; the header may then have `TENSOR_HEADER_BYTES` for each tensor. 0 asks
            for nothing.

    Examples:
        >>> import fedsz, numpy as np
        >>> blob = fedsz.compress({"weight": np.zeros(1000, np.float32)})
        >>> fedsz.decompress(blob, limits=fedsz.Limits(decoded_bytes=100, expansion=0))
        Traceback (most recent call last):
        fedsz.errors.LimitExceeded: tensors of 4000 bytes; limit 100 (at byte 20)
    """

    decoded_bytes: int = 1 << 30
    expansion: int = 1024
    header_bytes: int = 64 << 20
    tensors: int = 1 << 20
    tensor_bytes: int = 128

    @classmethod
    def of_model(cls, layout: Layout) -> Self:
        """Return limits for streams of a model that is known: twice its size, tensors and header.

        So a stream of a model that is a little different is one whose difference can be named. Of
        size no more than 32 MiB are added: decoding a stream takes up to twice what it asks for,
        which is twice the model and 64 MiB. A tensor of bytes may have any length; then the size is
        as by default.
        """
        described = (
            len(name.encode("utf-8", "surrogatepass")) + _INTEGER * len(shape) + _RECORDS
            for name, shape in layout.shapes.items()
        )
        counts = {
            "header_bytes": 2 * sum(described) + _SPARE_TENSORS * TENSOR_HEADER_BYTES,
            "tensors": 2 * len(layout.shapes) + _SPARE_TENSORS,
        }
        allowed = layout.nbytes + min(layout.nbytes, _SPARE_BYTES)
        if layout.holds_bytes:
            return cls(**counts, tensor_bytes=0)
        return cls(**counts, tensor_bytes=0, decoded_bytes=allowed, expansion=0)

    def together(self, length: int) -> Self:
        """Return limits for several streams of ``length`` bytes in all; see `less`."""
        allowed = max(self.decoded_bytes, self.expansion * length)
        return replace(self, decoded_bytes=allowed, expansion=0)

    def less(self, nbytes: int) -> Self:
        """Return what is left of limits for several streams when some have asked for so much."""
        return replace(self, decoded_bytes=max(self.decoded_bytes - nbytes, 0))

    def counts(self, length: int) -> tuple[int, int]:
        """Return how many tensors and header bytes a stream of ``length`` bytes may have."""
        if not self.tensor_bytes:
            return self.tensors, self.header_bytes
        tensors = min(self.tensors, max(FREE_TENSORS, length // self.tensor_bytes))
        return tensors, min(self.header_bytes, TENSOR_HEADER_BYTES * tensors)


_Dimension = Annotated[int, msgspec.Meta(ge=0, lt=MAX_DIM)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


class Tensor(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Name, dtype and shape of one entry of the state_dict."""

    name: str
    dtype_id: int
    shape: Annotated[tuple[_Dimension, ...], msgspec.Meta(max_length=MAX_NDIM)]

    @property
    def dtype(self) -> np.dtype:
        """The numpy dtype."""
        return DTYPES[self.dtype_id]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Decoded size in bytes."""
        return self.size * self.dtype.itemsize


class Chain(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A chain of methods, and the numbers that both sides draw others from.

    Attributes:
        text: as `fedsz.methods.parse` reads it.
        seed, round, sender: 0 to 2^64 - 1.
    """

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_TEXT)]
    seed: _Count
    round: _Count
    sender: _Count


class Payload(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What one payload holds, and how to check and decode it.

    ``codec_id`` is the number of a chain in the header where the transform is one of `CHAINED`.
    """

    codec_id: int
    transform: int
    nbytes: _Count
    checksum: int
    bound: float | None
    members: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything about a stream but the payloads' bytes."""

    tensors: tuple[Tensor, ...]
    payloads: tuple[Payload, ...]
    reference: bytes | None
    chains: tuple[Chain, ...] = ()

    @property
    def payload_bytes(self) -> int:
        """Length of all payloads together."""
        return sum(payload.nbytes for payload in self.payloads)

    @property
    def decoded_bytes(self) -> int:
        """Size of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors)


class _Sections(msgspec.Struct, forbid_unknown_fields=True):
    """A header whose records are still MessagePack: they are counted before they are read."""

    tensors: msgspec.Raw
    payloads: msgspec.Raw
    reference: _Digest | None
    chains: msgspec.Raw = msgspec.Raw(_NO_CHAINS)


_sections = msgspec.msgpack.Decoder(_Sections)
_tensors = msgspec.msgpack.Decoder(tuple[Tensor, ...])
_payloads = msgspec.msgpack.Decoder(tuple[Payload, ...])
_chains = msgspec.msgpack.Decoder(tuple[Chain, ...])


def parse_header(stored: memoryview, limits: Limits, version: int, length: int) -> Header:
    """Return the header that ``stored`` holds, every claim checked.

    Args:
        stored: the deflated header.
        limits: what it may ask for.
        version: that of the stream.
        length: of the whole stream, in bytes.

    Raises:
        CorruptStream: it is not a header, contradicts itself, or asks for more than ``limits``.
    """

    def refuse(what: str, error: type[CorruptStream] = CorruptStream) -> CorruptStream:
        return error(what, offset=PREFIX)

    most, header_bytes = limits.counts(length)
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(stored, header_bytes + 1)
        if len(inflated) > header_bytes:
            raise refuse(f"header inflates beyond {header_bytes} bytes", LimitExceeded)
        if not inflater.eof or inflater.unused_data:
            raise refuse("the header's zlib stream does not end where the header does")
        sections = _sections.decode(inflated)
        if (count := _count(sections.tensors)) > most:
            raise refuse(f"{count} tensors; limit {most}", LimitExceeded)
        if _count(sections.payloads) > count:
            raise refuse("more payloads than tensors")
        if _count(sections.chains) > _count(sections.payloads):
            raise refuse("more chains than payloads")
        if (chains := _count(sections.chains)) > MOST_CHAINS:
            raise refuse(f"{chains} chains; limit {MOST_CHAINS}", LimitExceeded)
        header = Header(
            _tensors.decode(sections.tensors),
            _payloads.decode(sections.payloads),
            sections.reference,
            _chains.decode(sections.chains),
        )
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise refuse(f"not a header: {err}") from err

    if version == VERSION and header.reference is not None:
        raise refuse("a version 1 stream refers to nothing", UnsupportedStream)
    if version == DIFFERENCES and header.reference is None:
        raise refuse("a version 2 stream names its reference")
    if bool(header.chains) != (version == CHAINS):
        raise refuse(f"a version {version} stream with {len(header.chains)} chains")
    for tensor in header.tensors:
        if not 0 <= tensor.dtype_id < len(DTYPES):
            raise refuse(f"unknown dtype {tensor.dtype_id} of {tensor.name!r}", UnsupportedStream)
    if len({tensor.name for tensor in header.tensors}) != len(header.tensors):
        raise refuse("two tensors have the same name")

    members = (i for payload in header.payloads for i in payload.members)
    # Counted first: to sort more of them than there are tensors could take long.
    total = sum(len(payload.members) for payload in header.payloads)
    if total != count or sorted(members) != list(range(count)):
        raise refuse("not every tensor is in exactly one payload")
    for payload in header.payloads:
        check_payload(payload, header, refuse)
    allowed = max(limits.decoded_bytes, limits.expansion * length)
    if (asked := header.decoded_bytes) > allowed:
        raise refuse(f"tensors of {asked} bytes; limit {allowed}", LimitExceeded)
    for tensor in header.tensors:  # those of no bytes may have dimensions that no array has
        if not is_shape(tensor.shape):
            raise refuse(f"shape {tensor.shape} of {tensor.name!r}, which no array has")
    return header


def _count(section: msgspec.Raw) -> int:
    """Return the length of the array that a piece of MessagePack begins with; 0 for another."""
    data = memoryview(section)
    if data[0] & 0xF0 == 0x90:
        return data[0] & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(data[0], 0)
    return int.from_bytes(data[1 : 1 + width], "big")


def check_payload(payload: Payload, header: Header, refuse: Callable[..., CorruptStream]) -> None:
    """Raise what ``refuse`` makes for a payload record that contradicts the format.

    Its tensors are in the header.
    """
    transforms = {VALUES} if header.reference is None else {VALUES, DIFFERENCE, BITS}
    if header.chains:
        transforms |= {CHAIN} if header.reference is None else set(CHAINED)
    if payload.transform not in transforms:
        raise refuse(f"unknown transform {payload.transform}", UnsupportedStream)
    if payload.transform in CHAINED:
        if not 0 <= payload.codec_id < len(header.chains):
            raise refuse(f"no chain {payload.codec_id}")
        if payload.bound is not None:
            raise refuse("a chain with an error bound")
    if payload.transform == DIFFERENCE and payload.bound is None:
        raise refuse("a difference without an error bound")
    if payload.transform == BITS and payload.bound is not None:
        raise refuse("a difference of bits with an error bound")
    if any(a >= b for a, b in pairwise(payload.members)):
        raise refuse("the tensors of a payload do not ascend")
    dtypes = [header.tensors[i].dtype for i in payload.members]
    if payload.bound is None:
        if len({dtype.itemsize for dtype in dtypes}) != 1:
            raise refuse("a lossless payload mixes item sizes")
        if payload.transform == BITS and any(dtype in COMPLEX_DTYPES for dtype in dtypes):
            raise refuse("a difference of bits of complex numbers")
        if payload.transform in CHAINED and (len(dtypes) != 1 or dtypes[0] not in LOSSY_DTYPES):
            raise refuse("a chain of something else than one floating tensor")
    elif not (math.isfinite(payload.bound) and payload.bound >= 0):
        raise refuse(f"error bound {payload.bound}")
    elif len(dtypes) != 1 or dtypes[0] not in LOSSY_DTYPES:
        raise refuse("a lossy payload holds something else than one floating tensor")
