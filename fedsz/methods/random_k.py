"""`randk`: elements at positions that both sides draw, so that none is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import CHUNK, NDArray, flat
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
    require_drawable,
)
from fedsz.spec_strings import setting

SHARE: Final = 32  # of a tensor are so many words drawn at a time


@dataclass(frozen=True)
class RandomK(Stage):
    """k elements at positions that seed, round and the tensor's name give.

    Decoded as d/k of each of the d elements, which is unbiased (Stich et al. 2018).

    Attributes:
        k: how many, or which share of a tensor.
        unbiased: without it elements are decoded as they are, a contraction, for `feedback`.
        own: whether each sender draws positions of its own. Without it all senders of a round have
            the same.
        block: whether they follow one another, the first behind the last, from a drawn one on:
            block-random-k.
    """

    name = "randk"
    summary = "k elements at random positions, which are drawn by both sides and not sent"
    symbols = {VALUES: Kind.VALUES}
    k: Count = Count("1%")
    unbiased: int = setting(1, 0, 1)
    own: int = setting(0, 0, 1)
    block: int = setting(0, 0, 1)

    @property
    def biased(self) -> bool:
        """Whether elements are decoded as they are."""
        return not self.unbiased

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        return {VALUES: x[self._places(shared)]}

    def values_spec(self, symbols: Symbols, spec: TensorSpec) -> TensorSpec:
        return spec.values(self.k.of(spec.size))

    def decode(self, symbols: Symbols, shared: Shared) -> Decoded:
        spec, values = shared.spec, symbols[VALUES]
        k = self.k.of(spec.size)
        require_count("values", values, k)
        factor = spec.size / k if self.unbiased and k else 1.0
        values = flat(values) * values.dtype.type(factor) if factor != 1 else flat(values)
        return Sparse(self._places(shared), values, spec)

    def _places(self, shared: Shared) -> NDArray:
        """Return the drawn positions, int64 and ascending."""
        places = run if self.block else subset
        return places(shared, self.k.of(shared.spec.size), own=bool(self.own))


def run(shared: Shared, k: int, *, own: bool) -> NDArray:
    """Return ``k`` positions of a tensor one after another, int64 and ascending.

    They begin at that of the first word, and go on at 0 behind the last.

    Raises:
        CodecError: the tensor has more than 2^32 elements.
    """
    size = shared.spec.size
    start = int(_positions(shared, 0, 1, own=own)[0]) if size else 0
    wrapped = max(start + k - size, 0)
    return np.concatenate((np.arange(wrapped), np.arange(start, start + k - wrapped)))


def subset(shared: Shared, k: int, *, own: bool) -> NDArray:
    """Return ``k`` positions of a tensor, uniform among all such sets, int64 and ascending.

    They are the first k different ones of floor((word >> 32) d / 2^32), over `Shared.words` in
    order, or all others than the first d - k where k is more than half of d.

    Raises:
        CodecError: the tensor has more than 2^32 elements.
    """
    size = shared.spec.size
    require_drawable(shared.spec)
    mask, drawn = np.zeros(size, np.bool_), 0
    missing = wanted = min(k, size - k)
    while missing:
        # No more words than positions are missing: the last of those is never passed.
        found = _positions(shared, drawn, min(missing, max(CHUNK, size // SHARE)), own=own)
        drawn += found.size
        mask[found] = True
        missing = wanted - int(np.count_nonzero(mask))
    return np.flatnonzero(~mask if 2 * k > size else mask)


def _positions(shared: Shared, start: int, count: int, *, own: bool) -> NDArray:
    require_drawable(shared.spec)
    size = shared.spec.size
    words = shared.words(count, start, own=own)
    positions = (words >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)
    return positions.astype(np.int64)
