"""Deflate in its two wrappers: `zlib` and `gzip`."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

from fedsz.arrays import Buffer
from fedsz.codecs.base import LosslessCodec, check_setting
from fedsz.errors import CorruptStream


@dataclass(frozen=True)
class Zlib(LosslessCodec):
    """One zlib stream (RFC 1950)."""

    name = "zlib"
    wire_id = 3
    wbits: ClassVar[int] = zlib.MAX_WBITS

    level: int = 6

    def __post_init__(self) -> None:
        check_setting(self, "level", 0, 9)

    def pack(self, data: Buffer, itemsize: int) -> bytes:  # noqa: ARG002, D102
        coder = zlib.compressobj(self.level, wbits=self.wbits)
        return coder.compress(data) + coder.flush()

    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:  # noqa: D102
        decoder = zlib.decompressobj(self.wbits)
        try:
            # One byte more than expected, for max_length=0 would mean "no limit".
            data = decoder.decompress(payload, nbytes + 1)
        except zlib.error as err:
            raise CorruptStream(f"{self.name} stream does not decode: {err}") from err
        if len(data) != nbytes or not decoder.eof or decoder.unused_data:
            raise CorruptStream(f"{self.name} stream is not one of {nbytes} bytes")
        return data


@dataclass(frozen=True)
class Gzip(Zlib):
    """One gzip member (RFC 1952) without name or time, so that equal data give equal bytes."""

    name = "gzip"
    wire_id = 4
    wbits = zlib.MAX_WBITS | 16
