"""The values of several seeds in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Self

from scipy import stats

from fedsz.formatting import NOTHING, digits


@dataclass(frozen=True)
class Spread:
    """The finite values of several seeds."""

    values: tuple[float, ...]
    middle: float  # the median
    mean: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Return the spread of the finite values; None if there are none."""
        known = tuple(value for value in values if math.isfinite(value))
        if not known:
            return None
        return cls(known, median(known), fmean(known), min(known), max(known))

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def reach(self) -> float:
        """Half the width of the mean's 95 % interval by Student's t; NaN for a single value."""
        if self.count == 1:
            return math.nan
        t = stats.t.ppf(0.975, self.count - 1)
        return float(t * stats.sem(self.values))


def spread(of: Spread | None, show: Callable[[float], str] = digits) -> str:
    """Return a median, and the limits where there are several values: ``5.1 (4.9 … 5.2)``."""
    if of is None:
        return NOTHING
    if of.count == 1 or show(of.least) == show(of.greatest):
        return show(of.middle)
    return f"{show(of.middle)} ({show(of.least)} … {show(of.greatest)})"
