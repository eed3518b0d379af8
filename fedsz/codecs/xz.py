"""`xz`: LZMA2 in its own container."""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from typing import Final

from fedsz.arrays import Buffer
from fedsz.codecs.base import LosslessCodec, check_setting
from fedsz.errors import CorruptStream

MEMORY: Final = 256 << 20  # a decoder for preset 9 takes 65 MiB


@dataclass(frozen=True)
class Xz(LosslessCodec):
    """One xz stream. Small and slow."""

    name = "xz"
    wire_id = 5

    preset: int = 6

    def __post_init__(self) -> None:
        check_setting(self, "preset", 0, 9)

    def pack(self, data: Buffer, itemsize: int) -> bytes:  # noqa: ARG002, D102
        return lzma.compress(data, preset=self.preset)

    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:  # noqa: D102
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
        try:
            data = decoder.decompress(payload, nbytes + 1)
        except lzma.LZMAError as err:
            raise CorruptStream(f"xz stream does not decode: {err}") from err
        if len(data) != nbytes or not decoder.eof or decoder.unused_data:
            raise CorruptStream(f"xz stream is not one of {nbytes} bytes")
        return data
