"""`rtopk`: some of the largest elements, with their positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import VALUES, Count, Shared, Symbols
from fedsz.methods.top_k import Sparsifier, largest


@dataclass(frozen=True)
class RandomTopK(Sparsifier):
    """rTop-k (Barnes et al. 2020): k elements, drawn among those of the largest magnitude.

    Attributes:
        k: how many, or which share of a tensor.
        among: of how many they are drawn; k at least.
    """

    name = "rtopk"
    summary = "k elements at random, of the elements of the largest magnitude"

    k: Count = Count("1%")
    among: Count = Count("4%")

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        k = self.k.of(x.size)
        candidates = largest(x, max(k, self.among.of(x.size)))
        indices = np.sort(shared.draws().choice(candidates, k, replace=False, shuffle=False))
        return {"indices": indices, VALUES: x[indices]}
