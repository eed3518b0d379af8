"""`randk`: elements at positions that both sides draw, so that none is sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedsz.arrays import CHUNK, NDArray
from fedsz.methods.base import (
    MANY,
    VALUES,
    Decoded,
    Kind,
    Part,
    Planes,
    Shared,
    Sparse,
    TensorSpec,
    placed,
    require_count,
    require_drawable,
)
from fedsz.methods.settings import Count, Flag

SHARE: Final = 32  # of a tensor are so many words drawn at a time


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
    planes = {VALUES: Kind.VALUES}
    k: Count = Count("1%")
    unbiased: Flag = Flag.YES
    own: Flag = Flag.NO
    block: Flag = Flag.NO

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

    def code(self, x: NDArray, shared: Shared) -> Planes:
        return {VALUES: x[self._places(shared)]}

    def values_spec(self, planes: Planes, spec: TensorSpec) -> TensorSpec:
        return spec.values(self.k.of(spec.size))

    def decode(self, planes: Planes, shared: Shared) -> Decoded:
        spec, values = shared.spec, planes[VALUES]
        k = self.k.of(spec.size)
        require_count("values", values, k)
        decoded = placed(self._places(shared), values, spec)
        if not self.unbiased or k == spec.size:
            return decoded
        factor = values.dtype.type(spec.size / k)
        if isinstance(decoded, Sparse):
            return replace(decoded, values=decoded.values * factor)
        decoded *= factor  # in place: it is no view of what was sent
        return decoded

    def _places(self, shared: Shared) -> NDArray:
        """Return drawn positions, or a mask where they are `MANY`."""
        places = run if self.block else subset
        return places(shared, self.k.of(shared.spec.size), own=bool(self.own))


def run(shared: Shared, k: int, *, own: bool) -> NDArray:
    """Return ``k`` positions of a tensor one after another, int64 and ascending.

    They begin at that of the first word, and go on at 0 behind the last. If they are `MANY`, they
    are a mask of the tensor.

    Raises:
        CodecError: the tensor has more than 2^32 elements.
    """
    size = shared.spec.size
    start = int(_positions(shared, 0, 1, own=own)[0]) if size else 0
    if MANY * k <= size:
        return np.sort((start + np.arange(k)) % max(size, 1))
    mask = np.zeros(size, np.bool_)
    mask[start : start + k] = True
    mask[: max(start + k - size, 0)] = True
    return mask


def subset(shared: Shared, k: int, *, own: bool) -> NDArray:
    """Return ``k`` positions of a tensor, uniform among all such sets, int64 and ascending.

    They are the first k different ones of floor((word >> 32) d / 2^32), over `Shared.words` in
    order, or all others than the first d - k where k is more than half of d. If they are `MANY`,
    they are a mask of the tensor.

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
        if found.size > CHUNK:
            mask[found] = True
            missing = wanted - int(np.count_nonzero(mask))
        else:
            new = found[~mask[found]]
            mask[new] = True
            missing -= np.unique(new).size
    if 2 * k > size:
        np.logical_not(mask, out=mask)
    return mask if MANY * k > size else np.flatnonzero(mask)


def _positions(shared: Shared, start: int, count: int, *, own: bool) -> NDArray:
    require_drawable(shared.spec)
    size = shared.spec.size
    words = shared.words(count, start, own=own)
    positions = (words >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)
    return positions.astype(np.int64)
