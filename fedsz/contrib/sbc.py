"""`sbc`: the largest elements of one sign, all as their mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import Count, Kind, Shared, Sparse, Stage, Symbols, require_count
from fedsz.methods.ternary import mean_magnitude
from fedsz.methods.top_k import largest


@dataclass(frozen=True)
class SparseBinary(Stage):
    """Sparse binary compression (SBC, Sattler et al. 2018).

    Of the k largest elements above 0 and the k smallest below 0, those of the larger mean magnitude
    are sent, as their positions and that mean with its sign. Where fewer have a sign, k are fewer.

    Attributes:
        k: how many, or which share of a tensor.
    """

    name = "sbc"
    summary = "the k largest elements of one sign, all as their mean"
    symbols = {"mean": Kind.VALUES, "indices": Kind.INDICES}

    k: Count = Count("1%")

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        k = self.k.of(x.size)
        sides = []
        for sign in (1, -1):
            of_sign = np.flatnonzero(x * sign > 0)
            indices = of_sign[largest(x[of_sign], min(k, of_sign.size))]
            sides.append((mean_magnitude(x[indices]), sign, indices))
        mean, sign, indices = max(sides, key=lambda side: float(side[0][0]))
        return {"mean": mean * mean.dtype.type(sign), "indices": indices}

    def decode(self, symbols: Symbols, shared: Shared) -> Sparse:
        require_count("means", symbols["mean"], 1)
        indices = symbols["indices"]
        return Sparse(indices, np.repeat(symbols["mean"], indices.size), shared.spec)
