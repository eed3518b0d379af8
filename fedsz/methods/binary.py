"""`sbc`: the largest elements of one sign, all as their mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import (
    Decoded,
    Kind,
    Part,
    Parts,
    Shared,
    State,
    TensorSpec,
    placed,
    require_count,
)
from fedsz.methods.settings import Count
from fedsz.methods.sign import mean_magnitude
from fedsz.methods.top_k import largest


@dataclass(frozen=True)
class SparseBinary(Part):
    """Sparse binary compression (SBC, Sattler et al. 2018).

    Of the k largest elements above 0 and the k smallest below 0, those of the larger mean magnitude
    are sent, as their positions and that mean with its sign. Where fewer have a sign, k are fewer.

    Attributes:
        k: how many, or which share of a tensor.
    """

    name = "sbc"
    summary = "the k largest elements of one sign, all as their mean"
    planes = {"mean": Kind.SCALES, "indices": Kind.INDICES}  # noqa: RUF012

    k: Count = Count("1%")  # noqa: RUF009

    def contraction(self, spec: TensorSpec) -> float:
        """Return 1/(d k^2): a mean is at least the largest magnitude over k."""
        return 1 / (spec.size * self.k.of(spec.size) ** 2)

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: ARG002, D102
        flat = x.reshape(-1)
        k = self.k.of(flat.size)
        sides = []
        for sign in (1, -1):
            of_sign = np.flatnonzero(flat * sign > 0)
            indices = of_sign[largest(flat[of_sign], min(k, of_sign.size))]
            sides.append((mean_magnitude(flat[indices]), sign, indices))
        mean, sign, indices = max(sides, key=lambda side: float(side[0][0]))
        return {"mean": mean * mean.dtype.type(sign), "indices": indices}, state

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> Decoded:  # noqa: ARG002, D102
        require_count("means", parts["mean"], 1)
        return placed(parts["indices"], parts["mean"].reshape(()), shared.spec)
