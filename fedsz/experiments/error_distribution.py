"""What law numbers follow: histograms, fitted laws, and how well they fit.

Figure 10 of the FedSZ paper calls the error of a decoded weight "similar to Laplacian". Where a
quantiser's step is small beside the weights, theory says uniform on the step; where most weights
fall into one cell, the error is the weight itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BINS: Final = 101
SAMPLE: Final = 1 << 20  # numbers that laws are fitted to; more do not change the third digit


class Law(msgspec.Struct, frozen=True):
    """A law, fitted to numbers by maximum likelihood.

    Attributes:
        name: "laplace", "uniform" or "normal".
        location: the median, the middle of the range, or the mean.
        scale: the mean absolute deviation from the median, half the range, or the standard
            deviation, in the unit of the numbers.
        ks: Kolmogorov and Smirnov's statistic, the largest difference between the law's
            distribution function and that of the numbers: 0 for a perfect fit, at most 1.
    """

    name: str
    location: float
    scale: float
    ks: float


class Distribution(msgspec.Struct, frozen=True):
    """A histogram of numbers, and the laws fitted to them.

    Attributes:
        what: "weights" or "error".
        tensor: whose numbers they are.
        numbers: how many there are, without NaN and infinities.
        low, high: the least and the greatest, in the unit of the weights.
        counts: of `BINS` bins of equal width from low to high.
        laws: Laplace, uniform and normal, in this order; none if all numbers are equal.
    """

    what: str
    tensor: str
    numbers: int
    low: float
    high: float
    counts: list[int]
    laws: list[Law]

    @property
    def best(self) -> str:
        """The name of the law that fits best; "" if there is none."""
        return min(self.laws, key=lambda law: law.ks).name if self.laws else ""


def distribution(x: npt.NDArray[Any], what: str, tensor: str) -> Distribution:
    """Return the distribution of an array's finite elements.

    Args:
        x: of any floating dtype and shape.
        what: "weights" or "error".
        tensor: the name of the tensor they belong to.
    """
    numbers = x.reshape(-1).astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return Distribution(what, tensor, 0, 0.0, 0.0, [0] * BINS, [])
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        counts = [0] * BINS
        counts[BINS // 2] = numbers.size
        return Distribution(what, tensor, numbers.size, low, high, counts, [])
    counts = np.histogram(numbers, BINS, (low, high))[0].tolist()
    some = np.sort(numbers[:: -(-numbers.size // SAMPLE)])
    laws = [_fitted(name, some, (low, high)) for name in CDFS]
    return Distribution(what, tensor, numbers.size, low, high, counts, laws)


def density(law: Law, x: Floats) -> Floats:
    """Return a law's probability density at ``x``."""
    z = (x - law.location) / law.scale
    if law.name == "laplace":
        values: Floats = np.exp(-np.abs(z)) / 2
    elif law.name == "uniform":
        values = np.where(np.abs(z) <= 1, 0.5, 0.0)
    else:
        values = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return values / law.scale


def _fitted(name: str, ordered: Floats, limits: tuple[float, float]) -> Law:
    if name == "laplace":
        location = float(np.median(ordered))
        scale = float(np.abs(ordered - location).mean())
    elif name == "uniform":
        low, high = limits
        location, scale = (low + high) / 2, (high - low) / 2
    else:
        location, scale = float(ordered.mean()), float(ordered.std())
    if not scale > 0:  # all but a few are equal
        return Law(name, location, 0.0, 1.0)
    wanted = CDFS[name]((ordered - location) / scale)
    steps = np.arange(ordered.size + 1) / ordered.size
    ks = max(np.abs(wanted - steps[1:]).max(), np.abs(wanted - steps[:-1]).max())
    return Law(name, location, scale, float(ks))


def _laplace(z: Floats) -> Floats:
    tail = np.exp(-np.abs(z)) / 2
    return np.where(z < 0, tail, 1 - tail)


def _uniform(z: Floats) -> Floats:
    return np.clip((z + 1) / 2, 0, 1)


def _normal(z: Floats) -> Floats:
    # numpy has no error function; between so many points it is straight to six digits.
    grid = np.linspace(-8, 8, 16_001)
    values = np.array([NormalDist().cdf(point) for point in grid])
    shares: Floats = np.interp(z, grid, values)
    return shares


CDFS: Final[dict[str, Callable[[Floats], Floats]]] = {
    "laplace": _laplace,
    "uniform": _uniform,
    "normal": _normal,
}
