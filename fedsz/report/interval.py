"""Confidence intervals of means over a few seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final, Self

CONFIDENCE: Final = 0.95
HALVINGS: Final = 60  # of an angle, until it is known to float64's last bits


@dataclass(frozen=True)
class Interval:
    """A mean and how far from it the true one may be.

    Attributes:
        mean: of the values.
        reach: half the width of the `CONFIDENCE` interval; NaN for a single value.
        count: how many values there are.
    """

    mean: float
    reach: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Return the interval by Student's t of the finite values; None if there are none."""
        known = [value for value in values if math.isfinite(value)]
        if not known:
            return None
        n = len(known)
        if n == 1:
            return cls(known[0], math.nan, 1)
        return cls(fmean(known), within(CONFIDENCE, n - 1) * stdev(known) / math.sqrt(n), n)


def within(share: float, freedom: int) -> float:
    """Return t such that Student's variable lies in -t..t with probability ``share``.

    Args:
        share: in (0, 1).
        freedom: degrees of freedom, 1 or more.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < share else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _inside(angle: float, freedom: int) -> float:
    """Return A(t | freedom) for t = sqrt(freedom) tan(angle).

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
