"""Lossless codecs: `raw`, `blosclz`, `zstd`, `zlib`, `gzip` and `xz`."""

from __future__ import annotations

import lzma
import sys
import zlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from fedsz.arrays import Buffer
from fedsz.codecs.base import Array, Encoded, Float32Codec
from fedsz.errors import ConfigError, CorruptStream
from fedsz.spec_strings import setting
from fedsz.threads import threads_for

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FRAME: Final = 1 << 30  # Blosc takes less than 2 GiB at a time
HEADER: Final = 16  # of a Blosc 1 frame
SHUFFLES: Final = ("none", "byte", "bit")  # in the order of Blosc's own numbers
ZSTD_INPUT: Final = 1 << 17  # bytes that its decoder is given, and returns, at a time
ZSTD_OUTPUT: Final = 1 << 20
XZ_MEMORY: Final = 256 << 20  # a decoder for preset 9 takes 65 MiB


class LosslessCodec(Float32Codec):
    """A codec of bytes. As a codec of arrays it moves nothing, whatever the bound."""

    lossy = False

    @abstractmethod
    def pack(self, data: Buffer, itemsize: int) -> bytes:
        """Return the payload of ``data``, elements of ``itemsize`` bytes each."""

    @abstractmethod
    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:
        """Return the ``nbytes`` bytes that ``payload`` holds, never allocating more.

        Raises:
            CorruptStream: it holds something else.
        """

    def write(self, x: Array, bound: float) -> Encoded:  # noqa: ARG002, D102
        return Encoded(self.pack(x.tobytes(), x.itemsize), 0.0)

    def read(self, payload: Buffer, n: int) -> Array:  # noqa: D102
        return np.frombuffer(bytearray(self.unpack(payload, 4 * n)), "<f4")


@dataclass(frozen=True)
class Raw(LosslessCodec):
    """No compression: the baseline, and what is left when nothing helps."""

    name = "raw"
    wire_id = 0

    def pack(self, data: Buffer, itemsize: int) -> bytes:  # noqa: ARG002, D102
        return bytes(data)

    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:  # noqa: D102
        if len(payload) != nbytes:
            raise CorruptStream(f"raw payload of {len(payload)} bytes for {nbytes} bytes of data")
        return payload


@dataclass(frozen=True)
class Blosclz(LosslessCodec):
    """Blosc's own LZ after a shuffle, the paper's choice for everything but weights.

    The payload is Blosc 1 frames, one per GiB. ``shuffle="bit"`` gathers equal bits of neighbouring
    elements rather than equal bytes: on trained float32 weights that packs a few percent better at
    the same speed.
    """

    name = "blosclz"
    wire_id = 1
    library = "blosc"

    level: int = setting(9, 0, 9)
    shuffle: str = "bit"

    def __post_init__(self) -> None:
        if self.shuffle not in SHUFFLES:
            raise ConfigError(f"no blosclz shuffle {self.shuffle!r}; have {', '.join(SHUFFLES)}")
        super().__post_init__()

    def pack(self, data: Buffer, itemsize: int) -> bytes:  # noqa: D102
        import blosc

        view, shuffle = memoryview(data).cast("B"), SHUFFLES.index(self.shuffle)
        blosc.set_nthreads(threads_for(len(view)))  # its own default is one on each core
        return b"".join(
            blosc.compress(view[at : at + FRAME], itemsize, self.level, shuffle, "blosclz")
            for at in range(0, len(view), FRAME)
        )

    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:  # noqa: D102
        import blosc

        view, parts, left = memoryview(payload), [], nbytes
        blosc.set_nthreads(threads_for(nbytes))
        while view:
            # The two sizes stand at bytes 4 and 12 of a frame; believe neither before the check.
            if len(view) < HEADER:
                raise CorruptStream(f"blosc frame header needs {HEADER} bytes, has {len(view)}")
            raw, packed = (int.from_bytes(view[at : at + 4], "little") for at in (4, 12))
            if raw > left or not HEADER <= packed <= len(view) or not raw:
                raise CorruptStream(f"blosc frame of {packed} bytes claims {raw} of {left} bytes")
            try:
                part = blosc.decompress(bytes(view[:packed]))
            except blosc.blosc_extension.error as err:
                raise CorruptStream(f"blosc frame does not decode: {err}") from err
            if len(part) != raw:
                raise CorruptStream(f"blosc frame of {len(part)} bytes claims {raw}")
            parts.append(part)
            view, left = view[packed:], left - raw
        if left:
            raise CorruptStream(f"blosc frames end {left} bytes early")
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True)
class Zstd(LosslessCodec):
    """One Zstandard frame with its content size."""

    name = "zstd"
    wire_id = 2

    level: int = setting(3, 1, 22)

    def pack(self, data: Buffer, itemsize: int) -> bytes:  # noqa: ARG002, D102
        return zstd.compress(data, self.level)

    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:  # noqa: D102
        try:
            data = _zstd_frame(memoryview(payload), nbytes)
        except zstd.ZstdError as err:
            raise CorruptStream(f"zstd frame does not decode: {err}") from err
        if data is None:
            raise CorruptStream(f"zstd frame is not one of {nbytes} bytes")
        return data


@dataclass(frozen=True)
class Zlib(LosslessCodec):
    """One zlib stream (RFC 1950)."""

    name = "zlib"
    wire_id = 3
    wbits: ClassVar[int] = zlib.MAX_WBITS

    level: int = setting(6, 0, 9)

    def pack(self, data: Buffer, itemsize: int) -> bytes:  # noqa: ARG002, D102
        coder = zlib.compressobj(self.level, wbits=self.wbits)
        return coder.compress(data) + coder.flush()

    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:  # noqa: D102
        return _one_stream(self.name, zlib.decompressobj(self.wbits), payload, nbytes)


@dataclass(frozen=True)
class Gzip(Zlib):
    """One gzip member (RFC 1952) without name or time, so that equal data give equal bytes."""

    name = "gzip"
    wire_id = 4
    wbits = zlib.MAX_WBITS | 16


@dataclass(frozen=True)
class Xz(LosslessCodec):
    """One xz stream of LZMA2. Small and slow."""

    name = "xz"
    wire_id = 5

    preset: int = setting(6, 0, 9)

    def pack(self, data: Buffer, itemsize: int) -> bytes:  # noqa: ARG002, D102
        return lzma.compress(data, preset=self.preset)

    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:  # noqa: D102
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
        return _one_stream(self.name, decoder, payload, nbytes)


def _zstd_frame(view: memoryview, nbytes: int) -> bytearray | None:
    """Return the ``nbytes`` bytes of a frame, or None where it holds more or less."""
    if zstd.get_frame_info(view).decompressed_size != nbytes:
        return None
    # In pieces, for the decoder keeps what it has not decoded yet and joins what it has.
    decoder, data, done, read = zstd.ZstdDecompressor(), bytearray(nbytes), 0, 0
    while not decoder.eof:
        piece = view[read : read + ZSTD_INPUT] if decoder.needs_input else view[:0]
        if decoder.needs_input and not piece:
            return None
        read += len(piece)
        part = decoder.decompress(piece, ZSTD_OUTPUT)
        if done + len(part) > nbytes:
            return None
        data[done : done + len(part)] = part
        done += len(part)
    return data if done == nbytes and read == len(view) and not decoder.unused_data else None


def _one_stream(name: str, decoder: Any, payload: Buffer, nbytes: int) -> Buffer:
    """Return the ``nbytes`` bytes of a stream that a decoder of Python's own library reads."""
    try:
        # One byte more than expected, for max_length=0 would mean "no limit".
        data: bytes = decoder.decompress(payload, nbytes + 1)
    except (zlib.error, lzma.LZMAError) as err:
        raise CorruptStream(f"{name} stream does not decode: {err}") from err
    if len(data) != nbytes or not decoder.eof or decoder.unused_data:
        raise CorruptStream(f"{name} stream is not one of {nbytes} bytes")
    return data
