"""`szx`: SZx, constant blocks and truncated mantissas, in C++ (compressors/szx)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsz.arrays import Buffer, flat
from fedsz.codecs import _szx
from fedsz.codecs.base import Array, Encoded, Float32Codec
from fedsz.errors import CorruptStream


@dataclass(frozen=True)
class Szx(Float32Codec):
    """SZx (Yu et al., HPDC 2022): fast, and the least dense.

    Our own implementation; docs/format.md, "szx", is its payload. Every block is checked while it
    is encoded and gets more bits, in the end all of them, where rounding would break the bound, so
    it needs no envelope.
    """

    name = "szx"
    wire_id = 19
    lossy = True

    def write(self, x: Array, bound: float) -> Encoded:  # noqa: D102
        return Encoded(*_szx.encode(flat(x), bound))

    def read(self, payload: Buffer, n: int) -> Array:  # noqa: D102
        try:
            return _szx.decode(payload, n)
        except _szx.CorruptPayload as err:
            raise CorruptStream(f"szx payload does not decode: {err}") from err
