"""`topk`: the largest elements, with their positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import (
    VALUES,
    Kind,
    Part,
    Parts,
    Shared,
    Sparse,
    State,
    TensorSpec,
    require_count,
)
from fedsz.methods.settings import Count


class Sparsifier(Part):
    """A part that keeps some elements and sends where they are."""

    planes = {"indices": Kind.INDICES, VALUES: Kind.VALUES}  # noqa: RUF012

    def values_spec(self, parts: Parts, spec: TensorSpec) -> TensorSpec:  # noqa: D102
        return spec.values(parts["indices"].size)

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> Sparse:  # noqa: ARG002, D102
        indices, values = parts["indices"], parts[VALUES]
        require_count("values", values, indices.size)
        return Sparse(indices, values, shared.spec)


@dataclass(frozen=True)
class TopK(Sparsifier):
    """The k elements of the largest magnitude; of equal ones, those that come first.

    Attributes:
        k: how many, or which share of a tensor.
    """

    name = "topk"
    summary = "the k elements of the largest magnitude"

    k: Count = Count("1%")  # noqa: RUF009

    def contraction(self, spec: TensorSpec) -> float:
        """Return k/d (Stich et al. 2018)."""
        return self.k.of(spec.size) / spec.size

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: D102
        flat = x.reshape(-1)
        indices = largest(flat, self.k.of(shared.spec.size))
        return {"indices": indices, VALUES: flat[indices]}, state


def largest(x: NDArray, k: int) -> NDArray:
    """Return where the ``k`` elements of the largest magnitude are, int64 and ascending.

    Args:
        x: flat and finite.
        k: at most as many as ``x`` has.
    """
    if k == x.size:
        return np.arange(k)
    magnitude = np.abs(x)
    threshold = np.partition(magnitude, x.size - k)[x.size - k]
    above = np.flatnonzero(magnitude > threshold)
    equal = np.flatnonzero(magnitude == threshold)[: k - above.size]
    return np.union1d(above, equal)
