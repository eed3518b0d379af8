"""`topk` and `rtopk`: the largest elements, with their positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import (
    VALUES,
    Decoded,
    Kind,
    Part,
    Planes,
    Shared,
    TensorSpec,
    counted,
    placed,
    require_count,
)
from fedsz.methods.settings import Count
from fedsz.spec_strings import setting

SAMPLE: Final = 1 << 14  # elements, at least, that a threshold is guessed from
CHUNK: Final = 1 << 16  # elements looked at a time, which a cache holds


class Sparsifier(Part):
    """A part that keeps some elements and sends where they are."""

    planes = {"indices": Kind.INDICES, VALUES: Kind.VALUES}

    def values_spec(self, planes: Planes, spec: TensorSpec) -> TensorSpec:
        return spec.values(counted(planes["indices"]) if planes else spec.size)

    def decode(self, planes: Planes, shared: Shared) -> Decoded:
        indices, values = planes["indices"], planes[VALUES]
        require_count("values", values, counted(indices))
        return placed(indices, values, shared.spec)


@dataclass(frozen=True)
class TopK(Sparsifier):
    """The k elements of the largest magnitude; of equal ones, those that come first.

    Attributes:
        k: how many, or which share of a tensor.
        chunk: elements among which k are taken, in C order; the last chunk may be smaller. 0 for
            all of a tensor.
        warmup: rounds before that of k (Lin et al. 2018). Round r, from 1, keeps a share of
            (k/d)^(r / (warmup + 1)): for 0.1 % and 4 rounds 25, 6.3, 1.6 and 0.4 %.

    Raises:
        ConfigError: the chunk or the warm-up is out of range.
    """

    name = "topk"
    summary = "the k elements of the largest magnitude"

    k: Count = Count("1%")
    chunk: int = setting(0, 0, 1 << 40)
    warmup: int = setting(0, 0, 1000)

    def _kept(self, size: int, round_: int) -> int:
        """Return how many of ``size`` elements are kept in a round."""
        k, done = self.k.of(size), max(round_, 1) / (self.warmup + 1)
        return k if done >= 1 else math.ceil(size * (k / size) ** done)

    def code(self, x: NDArray, shared: Shared) -> Planes:
        width = self.chunk or max(x.size, 1)
        chunks = ((at, x[at : at + width]) for at in range(0, x.size, width))
        found = [at + largest(chunk, self._kept(chunk.size, shared.round)) for at, chunk in chunks]
        indices = np.concatenate([np.empty(0, np.int64), *found])
        return {"indices": indices, VALUES: x[indices]}


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

    def code(self, x: NDArray, shared: Shared) -> Planes:
        k = self.k.of(x.size)
        candidates = largest(x, max(k, self.among.of(x.size)))
        indices = np.sort(shared.draws().choice(candidates, k, replace=False, shuffle=False))
        return {"indices": indices, VALUES: x[indices]}


def largest(x: NDArray, k: int) -> NDArray:
    """Return where the ``k`` elements of the largest magnitude are, int64 and ascending.

    Args:
        x: flat and finite.
        k: at least 1, unless ``x`` is empty, and at most as many as it has.
    """
    if k == x.size:
        return np.arange(k)
    floor = _floor(x, k)
    candidates = np.concatenate(
        [at + np.flatnonzero(np.abs(x[at : at + CHUNK]) >= floor) for at in range(0, x.size, CHUNK)]
    )
    if candidates.size < k:
        candidates = np.arange(x.size)
    magnitude = np.abs(x[candidates])
    threshold = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    above = candidates[magnitude > threshold]
    equal = candidates[magnitude == threshold][: k - above.size]
    return np.sort(np.concatenate((above, equal)))


def _floor(x: NDArray, k: int) -> float:
    """Return a guess of what the k-th largest magnitude is not below, from a sample; or 0.

    A wrong guess costs time and nothing else: to select among all takes several times as long.
    """
    if x.size < 4 * SAMPLE:
        return 0.0
    sample = np.abs(x[:: x.size // SAMPLE])
    expected = k / x.size * sample.size
    rank = int(expected + 4 * math.sqrt(expected) + 4)
    if rank >= sample.size:
        return 0.0
    return float(np.partition(sample, sample.size - rank)[sample.size - rank])
