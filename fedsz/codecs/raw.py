"""`raw`: the bytes as they are."""

from __future__ import annotations

from dataclasses import dataclass

from fedsz.arrays import Buffer
from fedsz.codecs.base import LosslessCodec
from fedsz.errors import CorruptStream


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
