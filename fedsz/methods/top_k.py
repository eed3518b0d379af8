"""`topk`: the largest elements, with their positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray, flat
from fedsz.methods.base import (
    VALUES,
    Count,
    Decoded,
    Kind,
    Shared,
    Sparse,
    Stage,
    Symbols,
    TensorSpec,
    require_count,
)
from fedsz.spec_strings import setting


class Sparsifier(Stage):
    """A part that keeps some elements and sends where they are."""

    symbols = {"indices": Kind.INDICES, VALUES: Kind.VALUES}

    def values_spec(self, symbols: Symbols, spec: TensorSpec) -> TensorSpec:
        return spec.values(symbols["indices"].size if symbols else spec.size)

    def decode(self, symbols: Symbols, shared: Shared) -> Decoded:
        indices, values = symbols["indices"], symbols[VALUES]
        require_count("values", values, indices.size)
        return Sparse(indices, flat(values), shared.spec)


@dataclass(frozen=True)
class TopK(Sparsifier):
    """The k elements of the largest magnitude; of equal ones, those that come first.

    Attributes:
        k: how many, or which share of a tensor.
        chunk: elements among which k are taken, in C order; the last chunk may be smaller. 0 for
            all of a tensor.
        warmup: rounds before that of k (Lin et al. 2018). Round r, from 1, keeps a share of
            (k/d)^(r / (warmup + 1)): for 0.1 % and 4 rounds 25, 6.3, 1.6 and 0.4 %.
    """

    name = "topk"
    summary = "the k elements of the largest magnitude"

    k: Count = Count("1%")
    chunk: int = setting(0, 0, 1 << 40)
    warmup: int = setting(0, 0, 1000)

    def _count(self, size: int, round_: int) -> int:
        """Return how many of ``size`` elements are kept in a round."""
        k, done = self.k.of(size), max(round_, 1) / (self.warmup + 1)
        return k if done >= 1 else math.ceil(size * (k / size) ** done)

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        width = self.chunk or max(x.size, 1)
        chunks = ((at, x[at : at + width]) for at in range(0, x.size, width))
        found = [at + largest(chunk, self._count(chunk.size, shared.round)) for at, chunk in chunks]
        indices = np.concatenate([np.empty(0, np.int64), *found])
        return {"indices": indices, VALUES: x[indices]}


def largest(x: NDArray, k: int) -> NDArray:
    """Return where the ``k`` elements of the largest magnitude are, int64 and ascending.

    Args:
        x: flat and finite.
        k: at least 1, unless ``x`` is empty, and at most as many as it has.
    """
    if k == x.size:
        return np.arange(k)
    magnitude = np.abs(x)
    threshold = np.partition(magnitude, x.size - k)[x.size - k]
    above = np.flatnonzero(magnitude > threshold)
    equal = np.flatnonzero(magnitude == threshold)[: k - above.size]
    return np.sort(np.concatenate((above, equal)))
