"""What law numbers follow: histograms, fitted laws, and how well they fit.

Figure 10 of the FedSZ paper calls the error of a decoded weight "similar to Laplacian". Where a
quantiser's step is small beside the weights, theory says uniform on the step; where most weights
fall into one cell, the error is the weight itself.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]

BINS: Final = 101
SAMPLE: Final = 1 << 20  # numbers that laws are fitted to; more do not change the third digit


class Law(msgspec.Struct, frozen=True):
    """A law, fitted to numbers by maximum likelihood."""

    name: str  # "laplace", "uniform" or "normal"
    location: float  # the median, the middle of the range, or the mean
    scale: float  # the mean absolute deviation from the median, half the range, or the deviation
    # Kolmogorov and Smirnov's statistic, the largest difference between the law's distribution
    # function and that of the numbers: 0 for a perfect fit, at most 1.
    ks: float


class Distribution(msgspec.Struct, frozen=True):
    """A histogram of numbers, and the laws fitted to them."""

    what: str  # "weights" or "error"
    tensor: str  # whose numbers they are
    numbers: int  # how many there are, without NaN and infinities
    low: float  # the least, in the unit of the weights
    high: float  # the greatest
    counts: list[int]  # of `BINS` bins of equal width from low to high
    laws: list[Law]  # Laplace, uniform and normal, in this order; none if all numbers are equal

    @property
    def best(self) -> str:
        """The name of the law that fits best; "" if there is none."""
        return min(self.laws, key=lambda law: law.ks).name if self.laws else ""


def distribution(x: npt.NDArray[Any], what: str, tensor: str) -> Distribution:
    """Return the distribution of the finite elements of ``x``, of any floating dtype and shape.

    ``what`` and ``tensor`` are what `Distribution` holds.
    """
    numbers = x.reshape(-1).astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return Distribution(what, tensor, 0, 0.0, 0.0, [0] * BINS, [])
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        counts = [numbers.size if i == BINS // 2 else 0 for i in range(BINS)]
        return Distribution(what, tensor, numbers.size, low, high, counts, [])
    counts = np.histogram(numbers, BINS, (low, high))[0].tolist()
    sample = numbers[:: -(-numbers.size // SAMPLE)]
    fitted = {
        "laplace": stats.laplace.fit(sample),
        "uniform": ((low + high) / 2, (high - low) / 2),  # of all numbers, not of the sample
        "normal": stats.norm.fit(sample),
    }
    laws = [_law(name, float(at), float(scale), sample) for name, (at, scale) in fitted.items()]
    return Distribution(what, tensor, numbers.size, low, high, counts, laws)


def density(law: Law, x: Floats) -> Floats:
    """Return a law's probability density at ``x``."""
    return np.asarray(_scipy(law.name, law.location, law.scale).pdf(x), np.float64)


def _law(name: str, location: float, scale: float, sample: Floats) -> Law:
    if not scale > 0:  # all but a few are equal
        return Law(name, location, 0.0, 1.0)
    found = stats.ks_1samp(sample, _scipy(name, location, scale).cdf, method="asymp")
    return Law(name, location, scale, float(found.statistic))


def _scipy(name: str, location: float, scale: float) -> Any:
    """Return scipy's law; its uniform one begins at its location and is as wide as its scale."""
    if name == "uniform":
        return stats.uniform(location - scale, 2 * scale)
    return {"laplace": stats.laplace, "normal": stats.norm}[name](location, scale)
