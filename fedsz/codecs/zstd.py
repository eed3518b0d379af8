"""`zstd`: Zstandard."""

from __future__ import annotations

from dataclasses import dataclass

from fedsz.arrays import Buffer
from fedsz.codecs.base import LosslessCodec, check_setting
from fedsz.errors import CorruptStream


@dataclass(frozen=True)
class Zstd(LosslessCodec):
    """One Zstandard frame with its content size."""

    name = "zstd"
    wire_id = 2
    library = "zstandard"

    level: int = 3

    def __post_init__(self) -> None:
        check_setting(self, "level", 1, 22)

    def pack(self, data: Buffer, itemsize: int) -> bytes:  # noqa: ARG002, D102
        import zstandard

        return zstandard.ZstdCompressor(level=self.level).compress(data)

    def unpack(self, payload: Buffer, nbytes: int) -> Buffer:  # noqa: D102
        import zstandard

        try:
            # decompress() allocates what the frame claims, so the claim is checked first.
            if zstandard.frame_content_size(payload) != nbytes:
                raise CorruptStream(f"zstd frame is not one of {nbytes} bytes")
            return zstandard.ZstdDecompressor().decompress(payload, allow_extra_data=False)
        except zstandard.ZstdError as err:
            raise CorruptStream(f"zstd frame does not decode: {err}") from err
