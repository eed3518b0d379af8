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
    Parts,
    Shared,
    State,
    TensorSpec,
    counted,
    placed,
    require_count,
)
from fedsz.methods.settings import Count, check_setting

SAMPLE: Final = 1 << 14  # elements, at least, that a threshold is guessed from
CHUNK: Final = 1 << 16  # elements looked at a time, which a cache holds


class Sparsifier(Part):
    """A part that keeps some elements and sends where they are."""

    planes = {"indices": Kind.INDICES, VALUES: Kind.VALUES}  # noqa: RUF012

    def values_spec(self, parts: Parts, spec: TensorSpec) -> TensorSpec:  # noqa: D102
        return spec.values(counted(parts["indices"]) if parts else spec.size)

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> Decoded:  # noqa: ARG002, D102
        indices, values = parts["indices"], parts[VALUES]
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

    k: Count = Count("1%")  # noqa: RUF009
    chunk: int = 0
    warmup: int = 0

    def __post_init__(self) -> None:
        check_setting("topk chunk", self.chunk, 0, 1 << 40)
        check_setting("topk warmup", self.warmup, 0, 1000)

    def contraction(self, spec: TensorSpec) -> float:
        """Return k/d (Stich et al. 2018), of the chunk where that is least."""
        width = min(self.chunk or spec.size, spec.size)
        sizes = {width, spec.size % width or width}
        return min(self.k.of(size) / size for size in sizes)

    def _kept(self, size: int, round_: int) -> int:
        """Return how many of ``size`` elements are kept in a round."""
        k, done = self.k.of(size), max(round_, 1) / (self.warmup + 1)
        return k if done >= 1 else math.ceil(size * (k / size) ** done)

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: D102
        flat = x.reshape(-1)
        width = self.chunk or max(flat.size, 1)
        chunks = ((at, flat[at : at + width]) for at in range(0, flat.size, width))
        found = [at + largest(chunk, self._kept(chunk.size, shared.round)) for at, chunk in chunks]
        indices = np.concatenate([np.empty(0, np.int64), *found])
        return {"indices": indices, VALUES: flat[indices]}, state


@dataclass(frozen=True)
class RandomTopK(Sparsifier):
    """rTop-k (Barnes et al. 2020): k elements, drawn among those of the largest magnitude.

    Attributes:
        k: how many, or which share of a tensor.
        among: of how many they are drawn; k at least.
    """

    name = "rtopk"
    summary = "k elements at random, of the elements of the largest magnitude"

    k: Count = Count("1%")  # noqa: RUF009
    among: Count = Count("4%")  # noqa: RUF009

    def contraction(self, spec: TensorSpec) -> float:
        """Return k/d, in expectation: each of the r largest is kept with probability k/r."""
        return self.k.of(spec.size) / spec.size

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: D102
        flat = x.reshape(-1)
        k = self.k.of(flat.size)
        candidates = largest(flat, max(k, self.among.of(flat.size)))
        indices = np.sort(shared.draws().choice(candidates, k, replace=False, shuffle=False))
        return {"indices": indices, VALUES: flat[indices]}, state


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
