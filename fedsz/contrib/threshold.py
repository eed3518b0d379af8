"""`threshold`: the elements from a magnitude on, which is given or estimated in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import VALUES, Count, Shared, Symbols
from fedsz.methods.top_k import Sparsifier
from fedsz.spec_strings import Choice, setting

SAMPLE: Final = 1 << 14  # elements, about
HALVINGS: Final = 20  # of the range that RedSync searches
STAGES: Final = 4  # quarter by quarter: the share that one stage of SIDCo leaves
TRIES: Final = 30  # of Gaussian-K


class Estimate(Choice):
    """Of the k-th largest magnitude."""

    SAMPLE = "sample"
    GAUSSIAN = "gaussian"
    REDSYNC = "redsync"
    SIDCO = "sidco"


@dataclass(frozen=True)
class Threshold(Sparsifier):
    """The elements of at least some magnitude, and the largest one in any case.

    Attributes:
        k: how many are wanted, or which share of a tensor; there will be about as many.
        by: how their smallest magnitude is estimated:
            ``sample`` takes it from every n-th element (DGC, Lin et al. 2018);
            ``gaussian`` fits a normal distribution (Gaussian-K, Shi et al. 2019);
            ``redsync`` searches between mean and maximum for k to 2k elements (Fang et al. 2019);
            ``sidco`` fits exponential distributions in stages (Abdelmoniem et al. 2021).
        magnitude: itself, in the unit of the tensor, instead of an estimate; 0 for none.

    Raises:
        ConfigError: the magnitude is negative or not finite.
    """

    name = "threshold"
    summary = "the elements from some magnitude on, which is given or estimated"

    k: Count = Count("1%")
    by: Estimate = Estimate.SIDCO
    magnitude: float = setting(0.0, 0)

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        magnitudes = np.abs(x)
        largest = float(magnitudes.max(initial=0))
        wanted = self.magnitude
        if largest and not wanted:
            # Of magnitudes up to 1, no sum or square leaves the dtype.
            wanted = largest * _ESTIMATES[self.by](
                magnitudes / magnitudes.dtype.type(largest), self.k.of(x.size)
            )
        floor = x.dtype.type(min(wanted, largest))
        # Zeros are nothing to send, but one is needed where there is nothing else.
        kept = np.flatnonzero((magnitudes >= floor) & (magnitudes > 0))
        indices = kept if kept.size else np.arange(min(1, x.size))
        return {"indices": indices, VALUES: x[indices]}


def by_sample(magnitudes: NDArray, k: int) -> float:
    """Return the magnitude at the same share of a sample."""
    sample = magnitudes[:: max(magnitudes.size // SAMPLE, 1)]
    rank = max(round(k / magnitudes.size * sample.size), 1)
    return float(np.partition(sample, sample.size - rank)[sample.size - rank])


def by_gaussian(magnitudes: NDArray, k: int) -> float:
    """Return the quantile of a normal distribution of mean 0, corrected until it is near.

    While fewer than 2k/3 or more than 4k/3 elements are kept it is halved or doubled. The factor
    becomes its own root at each turn.
    """
    spread = math.sqrt(float(np.square(magnitudes).mean(dtype=np.float64)))
    floor = spread * NormalDist().inv_cdf(1 - k / (2 * magnitudes.size))
    factor, too_few = 2.0, False
    for _ in range(TRIES):
        kept = int(np.count_nonzero(magnitudes >= floor))
        if 2 * k <= 3 * kept <= 4 * k:
            break
        if (kept < k) != too_few:
            factor, too_few = math.sqrt(factor), kept < k
        floor *= 1 / factor if too_few else factor
    return floor


def by_redsync(magnitudes: NDArray, k: int) -> float:
    """Return mean + r (maximum - mean), with r halved in until k to 2k elements are kept."""
    low, high = 0.0, 1.0  # of r: too many are kept, and too few
    mean, largest = float(magnitudes.mean(dtype=np.float64)), float(magnitudes.max())
    floor = mean
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        floor = mean + middle * (largest - mean)
        kept = np.count_nonzero(magnitudes >= floor)
        if k <= kept <= 2 * k:
            break
        low, high = (low, middle) if kept < k else (middle, high)
    return floor


def by_sidco(magnitudes: NDArray, k: int) -> float:
    """Return mean ln(d/k) of an exponential distribution, a quarter of what is left at a time."""
    floor, left = 0.0, magnitudes
    while left.size > k:
        share = min(left.size / k, STAGES)
        floor += float((left - floor).mean(dtype=np.float64)) * math.log(share)
        if share < STAGES:
            break
        left = left[left > floor]
    return floor


_ESTIMATES: Final[dict[Estimate, Callable[[NDArray, int], float]]] = {
    Estimate.SAMPLE: by_sample,
    Estimate.GAUSSIAN: by_gaussian,
    Estimate.REDSYNC: by_redsync,
    Estimate.SIDCO: by_sidco,
}
