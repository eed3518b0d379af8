"""The bitstream: bytes <-> header and payloads. docs/format.md describes it field by field.

Knows no torch, no sockets and no codecs beyond their numbers. Everything read here is somebody
else's input: a length is checked before it is believed, and nothing is allocated on a number that
the bytes at hand have not paid for.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import ml_dtypes
import msgspec
import numpy as np

from fedsz.errors import (
    ChecksumMismatch,
    ConfigError,
    CorruptStream,
    LimitExceeded,
    TruncatedStream,
    UnsupportedStream,
)

MAGIC: Final = b"\x89FSZ\r\n\x1a\n"
VERSION: Final = 1
DIFFERENCES: Final = 2  # the version of streams with differences from a reference
VERSIONS: Final = (VERSION, DIFFERENCES)
DIGEST_BYTES: Final = 16  # that name a reference
VALUES, DIFFERENCE, BITS = range(3)
TRANSFORMS: Final = ("values", "delta", "bits")  # by number
PREFIX: Final = 20
MAX_DIM: Final = 1 << 48
MAX_NDIM: Final = 64  # numpy's own limit

# Position is wire id: append, never reorder.
DTYPES: Final = tuple(
    np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        "float32", "float64", "float16", "bfloat16", "bool",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "complex64", "complex128",
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    )
)  # fmt: skip
DTYPE_IDS: Final = {dtype: i for i, dtype in enumerate(DTYPES)}
LOSSY_DTYPES: Final = frozenset(DTYPES[:4])
COMPLEX_DTYPES: Final = frozenset(DTYPES[13:15])  # have no differences of bits


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a stream may ask for before it is refused.

    Attributes:
        decoded_bytes: size of all tensors together, in bytes.
        expansion: or this many times the length of the stream, if that is more.
        header_bytes: size of the inflated header, in bytes.
        tensors: number of tensors.
    """

    decoded_bytes: int = 1 << 30
    expansion: int = 1024
    header_bytes: int = 64 << 20
    tensors: int = 1 << 20


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


class Payload(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What one payload holds, and how to check and decode it."""

    codec_id: int
    transform: int
    nbytes: int
    checksum: int
    bound: float | None
    members: tuple[int, ...]


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about a stream but the payloads' bytes."""

    tensors: tuple[Tensor, ...]
    payloads: tuple[Payload, ...]
    reference: bytes | None

    @property
    def payload_bytes(self) -> int:
        """Length of all payloads together."""
        return sum(payload.nbytes for payload in self.payloads)

    @property
    def decoded_bytes(self) -> int:
        """Size of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors)


class Part(NamedTuple):
    """A payload before it is written."""

    codec_id: int
    data: bytes
    bound: float | None
    members: tuple[int, ...]
    transform: int = VALUES


def write(
    tensors: Sequence[Tensor], parts: Sequence[Part], reference: bytes | None = None
) -> bytes:
    """Return the stream of ``tensors``, whose values ``parts`` hold.

    Args:
        tensors: in the order of the state_dict.
        parts: the payloads, in the order in which they follow.
        reference: the digest of what differences among them refer to; None without differences.

    Raises:
        ConfigError: a name cannot be written as UTF-8.
    """
    payloads = tuple(
        Payload(
            part.codec_id,
            part.transform,
            len(part.data),
            zlib.crc32(part.data),
            part.bound,
            part.members,
        )
        for part in parts
    )
    version = VERSION if reference is None else DIFFERENCES
    try:
        header = msgspec.msgpack.encode(Header(tuple(tensors), payloads, reference))
    except UnicodeEncodeError as err:
        raise ConfigError(f"a tensor's name is not text: {err.object!r}") from err
    stored = zlib.compress(header, 9)
    prefix = b"".join((MAGIC, *(n.to_bytes(w, "little") for n, w in ((version, 2), (0, 2)))))
    prefix += len(stored).to_bytes(4, "little")
    checksum = zlib.crc32(stored, zlib.crc32(prefix)).to_bytes(4, "little")
    return b"".join((prefix, checksum, stored, *(part.data for part in parts)))


class Reader:
    """Read a stream that is still arriving.

    Feed it bytes as they come and take payloads as they complete::

        reader = Reader()
        for chunk in chunks:
            reader.feed(chunk)
            for payload, data, offset in reader.payloads():
                ...
        reader.close()

    It holds the bytes of at most one payload and one chunk. A whole stream fed at once is not
    copied. ``header`` is None until it has arrived and been checked.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.header: Header | None = None
        self._limits = limits or Limits()
        self._buffer: bytes | bytearray | memoryview = b""
        self._arriving: bytearray | None = None  # the buffer, once it is one of our own
        self._consumed = 0  # bytes of the stream before the buffer
        self._next = 0  # the payload that comes next

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the stream.

        Raises:
            CorruptStream: the header is complete and not one to trust.
        """
        if not len(self._buffer):
            self._buffer, self._arriving = data, None
        else:
            if self._arriving is None:
                self._buffer = self._arriving = bytearray(self._buffer)
            self._arriving += data
        if self.header is None:
            self._read_header()

    def payloads(self) -> Iterator[tuple[Payload, memoryview, int]]:
        """Yield record, bytes and offset of each payload that is complete, its checksum verified.

        Raises:
            CorruptStream: a checksum does not fit, or bytes follow the last payload.
        """
        if self.header is None:
            return
        while self._next < len(self.header.payloads):
            payload = self.header.payloads[self._next]
            if len(self._buffer) < payload.nbytes:
                return
            offset, data = self._consumed, self._take(payload.nbytes)
            if zlib.crc32(data) != payload.checksum:
                raise ChecksumMismatch(f"checksum of payload {self._next}", offset=offset)
            self._next += 1
            yield payload, data, offset
        if len(self._buffer):
            raise CorruptStream(f"{len(self._buffer)} bytes after the end", offset=self._consumed)

    def check_length(self) -> Header:
        """Return the header of a stream that was fed whole.

        Raises:
            TruncatedStream: it is shorter than its header says.
            CorruptStream: it is longer.
        """
        if self.header is None:
            raise TruncatedStream("the stream ends within its header", offset=len(self._buffer))
        have, need = len(self._buffer), self.header.payload_bytes
        if have < need:
            raise TruncatedStream(
                f"payloads need {need} bytes, have {have}", offset=self._consumed + have
            )
        if have > need:
            raise CorruptStream(f"{have - need} bytes after the end", offset=self._consumed + need)
        return self.header

    def close(self) -> None:
        """Say that no more bytes will come.

        Raises:
            TruncatedStream: more should have.
        """
        offset = self._consumed + len(self._buffer)
        if self.header is None:
            raise TruncatedStream("the stream ends within its header", offset=offset)
        if self._next < len(self.header.payloads):
            need = self.header.payloads[self._next].nbytes
            raise TruncatedStream(
                f"payload {self._next} needs {need} bytes, has {len(self._buffer)}", offset=offset
            )

    def _take(self, n: int) -> memoryview:
        taken = memoryview(self._buffer)[:n]
        self._buffer = memoryview(self._buffer)[n:]
        if self._arriving is not None:
            # What is left of an arriving stream is less than a chunk: copying it frees the rest.
            self._buffer = self._arriving = bytearray(self._buffer)
        self._consumed += n
        return taken

    def _read_header(self) -> None:
        view = memoryview(self._buffer)
        if bytes(view[:8]) != MAGIC[: len(view)]:
            raise CorruptStream("not a fedsz stream: wrong magic")
        if len(view) < PREFIX:
            return
        version, flags = (int.from_bytes(view[at : at + 2], "little") for at in (8, 10))
        stored, checksum = (int.from_bytes(view[at : at + 4], "little") for at in (12, 16))
        if version not in VERSIONS:
            have = ", ".join(map(str, VERSIONS))
            raise UnsupportedStream(
                f"stream version {version}; this release reads {have}", offset=8
            )
        if flags:
            raise UnsupportedStream(f"unknown flags {flags:#06x}", offset=10)
        if stored > self._limits.header_bytes:
            raise LimitExceeded(
                f"header of {stored} bytes; the limit is {self._limits.header_bytes}", offset=12
            )
        if len(view) < PREFIX + stored:
            return
        taken = view[PREFIX : PREFIX + stored]
        if zlib.crc32(taken, zlib.crc32(view[:16])) != checksum:
            raise ChecksumMismatch("checksum of the header", offset=16)
        header = parse_header(taken, self._limits, version)
        self._take(PREFIX + stored)
        self.header = header


def parse_header(stored: memoryview, limits: Limits, version: int = VERSION) -> Header:
    """Return the header that ``stored`` holds in a stream of ``version``, every claim checked.

    Raises:
        CorruptStream: it is not a header, contradicts itself, or asks for more than ``limits``.
    """

    def refuse(what: str, error: type[CorruptStream] = CorruptStream) -> CorruptStream:
        return error(what, offset=PREFIX)

    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(stored, limits.header_bytes + 1)
        if len(inflated) > limits.header_bytes:
            raise refuse(f"header inflates beyond {limits.header_bytes} bytes", LimitExceeded)
        if not inflater.eof or inflater.unused_data:
            raise refuse("the header's zlib stream does not end where the header does")
        header = msgspec.msgpack.decode(inflated, type=Header)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise refuse(f"not a header: {err}") from err

    if version == VERSION and header.reference is not None:
        raise refuse("a version 1 stream refers to nothing", UnsupportedStream)
    if version == DIFFERENCES and len(header.reference or b"") != DIGEST_BYTES:
        raise refuse(f"a version 2 stream names its reference by {DIGEST_BYTES} bytes")
    if len(header.tensors) > limits.tensors:
        raise refuse(f"{len(header.tensors)} tensors; limit {limits.tensors}", LimitExceeded)
    for tensor in header.tensors:
        if not 0 <= tensor.dtype_id < len(DTYPES):
            raise refuse(f"unknown dtype {tensor.dtype_id} of {tensor.name!r}", UnsupportedStream)
        if len(tensor.shape) > MAX_NDIM or any(not 0 <= n < MAX_DIM for n in tensor.shape):
            raise refuse(f"impossible shape of {tensor.name!r}: {str(tensor.shape)[:80]}")
    if len({tensor.name for tensor in header.tensors}) != len(header.tensors):
        raise refuse("two tensors have the same name")

    for payload in header.payloads:
        check_payload(payload, header, refuse)
    members = sorted(i for payload in header.payloads for i in payload.members)
    if members != list(range(len(header.tensors))):
        raise refuse("not every tensor is in exactly one payload")
    length = PREFIX + len(stored) + header.payload_bytes
    allowed = max(limits.decoded_bytes, limits.expansion * length)
    if header.decoded_bytes > allowed:
        raise refuse(f"tensors of {header.decoded_bytes} bytes; limit {allowed}", LimitExceeded)
    return header


def check_payload(
    payload: Payload,
    header: Header,
    refuse: Callable[..., CorruptStream],
) -> None:
    """Refuse a payload record that contradicts the format.

    Raises:
        CorruptStream: made by ``refuse``.
    """
    tensors = header.tensors
    transforms = (VALUES,) if header.reference is None else (VALUES, DIFFERENCE, BITS)
    if payload.transform not in transforms:
        raise refuse(f"unknown transform {payload.transform}", UnsupportedStream)
    if payload.transform == DIFFERENCE and payload.bound is None:
        raise refuse("a difference without an error bound")
    if payload.transform == BITS and payload.bound is not None:
        raise refuse("a difference of bits with an error bound")
    if payload.nbytes < 0:
        raise refuse(f"payload of {payload.nbytes} bytes")
    members = payload.members
    if not members or not 0 <= members[0] <= members[-1] < len(tensors):
        raise refuse("a payload holds no tensor, or one that is not there")
    if any(a >= b for a, b in pairwise(members)):
        raise refuse("the tensors of a payload do not ascend")
    dtypes = [tensors[i].dtype for i in members]
    if payload.bound is None:
        if len({dtype.itemsize for dtype in dtypes}) != 1:
            raise refuse("a lossless payload mixes item sizes")
        if payload.transform == BITS and any(dtype in COMPLEX_DTYPES for dtype in dtypes):
            raise refuse("a difference of bits of complex numbers")
    elif not (math.isfinite(payload.bound) and payload.bound >= 0):
        raise refuse(f"error bound {payload.bound}")
    elif len(members) != 1 or dtypes[0] not in LOSSY_DTYPES:
        raise refuse("a lossy payload holds something else than one floating tensor")
