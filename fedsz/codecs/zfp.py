"""`zfp`: ZFP, through zfpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.codecs.base import Array
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.errors import CorruptStream
from fedsz.spec_strings import setting


@dataclass(frozen=True)
class Zfp(EnvelopeCodec):
    """ZFP in fixed-accuracy mode.

    ``precision=N`` (bit planes kept, 1 to 32) is fixed-precision mode instead, which the paper
    used. It bounds nothing, so the bound of such a tensor is stated as the error it turned out to
    have.
    """

    name = "zfp"
    wire_id = 18
    library = "zfpy"

    precision: int = setting(0, 0, 32)

    @property
    def keeps_bound(self) -> bool:  # noqa: D102
        return not self.precision

    def compress(self, x: Array, bound: float) -> bytes:  # noqa: D102
        import zfpy

        if self.precision:
            return bytes(zfpy.compress_numpy(x, precision=self.precision))
        return bytes(zfpy.compress_numpy(x, tolerance=bound))

    def decompress(self, native: bytes, n: int) -> Array:  # noqa: D102
        import zfpy

        # decompress_numpy allocates what the header claims, so the claim is checked first.
        header = zfpy.header(native)
        shape = tuple(header[axis] for axis in ("nx", "ny", "nz", "nw"))
        if shape != (n, 0, 0, 0) or header["type"] is not np.float32:
            raise CorruptStream(f"zfp payload is not one of {n} float32 in one dimension")
        return np.asarray(zfpy.decompress_numpy(native), np.float32)
