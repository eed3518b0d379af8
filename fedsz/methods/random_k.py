"""`randk`: elements at positions that both sides draw, so that none is sent."""

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
    require_drawable,
)
from fedsz.methods.settings import Count, Flag


@dataclass(frozen=True)
class RandomK(Part):
    """k elements at positions that seed, round and the tensor's name give.

    Decoded as d/k of each of the d elements, which is unbiased (Stich et al. 2018).

    Attributes:
        k: how many, or which share of a tensor.
        unbiased: without it elements are decoded as they are, a contraction, for `feedback`.
        own: whether each sender draws positions of its own. Without it all senders of a round have
            the same, and what they send adds up.
        block: whether they follow one another, the first behind the last, from a drawn one on:
            block-random-k.
    """

    name = "randk"
    summary = "k elements at random positions, which are drawn by both sides and not sent"
    planes = {VALUES: Kind.VALUES}  # noqa: RUF012
    k: Count = Count("1%")  # noqa: RUF009
    unbiased: Flag = Flag(1)  # noqa: RUF009
    own: Flag = Flag(0)  # noqa: RUF009
    block: Flag = Flag(0)  # noqa: RUF009

    @property
    def linear(self) -> bool:
        """Whether all senders have the same positions."""
        return not self.own

    @property
    def biased(self) -> bool:
        """Whether elements are decoded as they are."""
        return not self.unbiased

    def gain(self, shared: Shared) -> float:
        """Return the square of what each value is multiplied by; raises as `Part.gain`."""
        require_drawable(shared.spec)
        size = shared.spec.size
        return (size / self.k.of(size)) ** 2 if self.unbiased and size else 1.0

    def contraction(self, spec: TensorSpec) -> float:
        """Return k/d, in expectation (Stich et al. 2018)."""
        return 0.0 if self.unbiased else self.k.of(spec.size) / spec.size

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: D102
        return {VALUES: x.reshape(-1)[self._indices(shared)]}, state

    def values_spec(self, parts: Parts, spec: TensorSpec) -> TensorSpec:  # noqa: ARG002, D102
        return spec.values(self.k.of(spec.size))

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> Sparse:  # noqa: ARG002, D102
        indices, values = self._indices(shared), parts[VALUES]
        require_count("values", values, indices.size)
        if self.unbiased and indices.size:
            values = values * values.dtype.type(shared.spec.size / indices.size)
        return Sparse(indices, values, shared.spec)

    def _indices(self, shared: Shared) -> NDArray:
        positions = run if self.block else subset
        return positions(shared, self.k.of(shared.spec.size), own=bool(self.own))


def run(shared: Shared, k: int, *, own: bool) -> NDArray:
    """Return ``k`` positions of a tensor one after another, int64 and ascending.

    They begin at that of the first word, and go on at 0 behind the last.

    Raises:
        CodecError: the tensor has more than 2^32 elements.
    """
    start = _positions(shared, 0, 1, own=own)
    return np.sort((start + np.arange(k)) % max(shared.spec.size, 1))


def subset(shared: Shared, k: int, *, own: bool) -> NDArray:
    """Return ``k`` positions of a tensor, uniform among all such sets, int64 and ascending.

    They are the first k different ones of floor((word >> 32) d / 2^32), over `Shared.words` in
    order, or all others than the first d - k where k is more than half of d.

    Raises:
        CodecError: the tensor has more than 2^32 elements.
    """
    size = shared.spec.size
    if 2 * k > size:
        kept = np.ones(size, np.bool_)
        kept[subset(shared, size - k, own=own)] = False
        return np.flatnonzero(kept)
    drawn, found = np.empty(0, np.int64), np.empty(0, np.int64)
    while found.size < k:
        drawn = np.concatenate((drawn, _positions(shared, drawn.size, 2 * k + 16, own=own)))
        _, first = np.unique(drawn, return_index=True)
        found = drawn[np.sort(first)]
    return np.sort(found[:k])


def _positions(shared: Shared, start: int, count: int, *, own: bool) -> NDArray:
    require_drawable(shared.spec)
    size = shared.spec.size
    words = shared.words(count, start, own=own)
    positions = (words >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)
    return positions.astype(np.int64)
