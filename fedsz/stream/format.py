"""What a stream says of itself: the prefix, the header, and what a reader must refuse."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from typing import Final, Self

import msgspec
import numpy as np

from fedsz.arrays import DTYPES, Layout
from fedsz.codecs import _stream
from fedsz.errors import CorruptStream, LimitExceeded, UnsupportedStream

MAGIC: Final = b"\x89FSZ\r\n\x1a\n"
VERSION: Final = 1
DIFFERENCES: Final = 2  # the version of streams with differences from a reference
CHAINS: Final = 3  # and of streams with tensors that a chain of methods has coded
VERSIONS: Final = (VERSION, DIFFERENCES, CHAINS)
VALUES, DIFFERENCE, BITS, CHAIN, CHAIN_DIFFERENCE = range(5)
TRANSFORMS: Final = ("values", "delta", "bits", "values", "delta")  # by number: what is coded
CHAINED: Final = (CHAIN, CHAIN_DIFFERENCE)
PREFIX: Final = 20
FREE_TENSORS: Final = 1 << 15  # that a stream of any length may have
MOST_CHAINS: Final = 256  # of a stream, each of which has to be read
TENSOR_HEADER_BYTES: Final = 192  # of the inflated header, for each tensor that is allowed

_FAULTS: Final = {
    "corrupt": CorruptStream,
    "unsupported": UnsupportedStream,
    "limit": LimitExceeded,
}
_MOST: Final = (1 << 63) - 1  # that C++ counts
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
        fedsz.errors.LimitExceeded: tensors of 4000 bytes; limit 100; see fedsz.Limits (at byte 20)
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

    def of_known(self, layout: Layout) -> Self:
        """Return limits of the same size, and as many tensors as streams of a known model have."""
        model = self.of_model(layout)
        counts = {"header_bytes": model.header_bytes, "tensors": model.tensors}
        return replace(self, **counts, tensor_bytes=0)

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


class Tensor(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Name, dtype and shape of one entry of the state_dict."""

    name: str
    dtype_id: int
    shape: tuple[int, ...]

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

    text: str
    seed: int
    round: int
    sender: int


class Payload(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What one payload holds, and how to check and decode it.

    ``codec_id`` is the number of a chain in the header where the transform is one of `CHAINED`.
    """

    codec_id: int
    transform: int
    nbytes: int
    checksum: int
    bound: float | None
    members: tuple[int, ...]


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


_read = msgspec.msgpack.Decoder(Header)


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
    most, header_bytes = limits.counts(length)
    allowed = max(limits.decoded_bytes, limits.expansion * length)
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(stored, header_bytes + 1)
        if len(inflated) > header_bytes:
            what = f"header inflates beyond {header_bytes} bytes"
            raise LimitExceeded(what, offset=PREFIX)
        if not inflater.eof or inflater.unused_data:
            what = "the header's zlib stream does not end where the header does"
            raise CorruptStream(what, offset=PREFIX)
        # Before anything is made of it, and as libfedsz does.
        if fault := _stream.header_fault(inflated, version, min(most, _MOST), min(allowed, _MOST)):
            kind, what = fault
            if _FAULTS[kind] is LimitExceeded:
                what += "; see fedsz.Limits"
            raise _FAULTS[kind](what, offset=PREFIX)
        return _read.decode(inflated)
    except (zlib.error, msgspec.DecodeError) as err:
        raise CorruptStream(f"not a header: {err}", offset=PREFIX) from err
