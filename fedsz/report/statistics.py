"""Several seeds in a few numbers: medians with limits, and means with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, Self

from scipy import stats

from fedsz.formatting import NOTHING, digits

CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Spread:
    """The finite values of several seeds."""

    middle: float  # the median
    mean: float
    least: float
    greatest: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Return the median, mean and limits of the finite values; None if there are none."""
        known = [value for value in values if math.isfinite(value)]
        if not known:
            return None
        return cls(median(known), fmean(known), min(known), max(known), len(known))


@dataclass(frozen=True)
class Interval:
    """A mean and how far from it the true one may be."""

    mean: float
    reach: float  # half the width of the `CONFIDENCE` interval; NaN for a single value
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Return the interval by Student's t of the finite values; None if there are none."""
        known = [value for value in values if math.isfinite(value)]
        if not known:
            return None
        if len(known) == 1:
            return cls(known[0], math.nan, 1)
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
        return cls(fmean(known), t * float(stats.sem(known)), len(known))


def spread(of: Spread | None, show: Callable[[float], str] = digits) -> str:
    """Return a median, and the limits where there are several values: ``5.1 (4.9 … 5.2)``."""
    if of is None:
        return NOTHING
    if of.count == 1 or show(of.least) == show(of.greatest):
        return show(of.middle)
    return f"{show(of.middle)} ({show(of.least)} … {show(of.greatest)})"
