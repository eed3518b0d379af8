"""`sz3`: SZ 3, through pysz."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.codecs.base import Array
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.errors import ConfigError

ALGORITHMS: Final = ("nopred", "interp_lorenzo", "interp", "lorenzo_reg")


@dataclass(frozen=True)
class Sz3(EnvelopeCodec):
    """SZ 3. Without prediction by default: weights are spiky, and predicting them costs bits.

    ``algorithm="interp_lorenzo"`` is SZ 3's own default, used in the paper.
    """

    name = "sz3"
    wire_id = 17
    library = "pysz"
    wheels = "x86-64 Linux, macOS, Windows"

    algorithm: str = "nopred"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(f"no sz3 algorithm {self.algorithm!r}; have {', '.join(ALGORITHMS)}")

    def compress(self, x: Array, bound: float) -> bytes:  # noqa: D102
        import pysz

        config = pysz.szConfig(x.size)
        config.errorBoundMode = pysz.szErrorBoundMode.ABS
        config.absErrorBound = bound
        config.cmprAlgo = getattr(pysz.szAlgorithm, self.algorithm.upper())
        payload, _ratio = pysz.sz.compress(x, config)
        return bytes(payload)

    def decompress(self, native: bytes, n: int) -> Array:  # noqa: D102
        import pysz

        decoded, _config = pysz.sz.decompress(np.frombuffer(native, np.uint8), np.float32, (n,))
        return np.asarray(decoded, np.float32)
