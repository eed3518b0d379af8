"""Bits and error of a uniform quantiser on a Laplace variable, and where another bit pays equally.

Updates are spiky, and at bounds of some standard deviations nearly all of their elements become
zero: there the rate is far from Gaussian theory's 1/2 log2(var / D), which is 0 from a bound of
sqrt(3) standard deviations on. With a step of 2 t (t the bound, in standard deviations), values
at the middle of each bin, and b = sqrt(1/2) the scale of a Laplace variable of variance 1
(Sullivan, 1996, "Efficient scalar quantization of exponential and Laplacian random variables"):

    s = exp(-t / b)             is not zero
    q = exp(-2 t / b)           of these, reaches the next bin; so the rest is geometric
    R = h(s) + s (1 + h(q) / (1 - q))                                    bits an element
    D = 2 b^2 - s (t^2 + 2 b t + 2 b^2)
        + s (t^2 - 2 b t + 2 b^2 - q (t^2 + 2 b t + 2 b^2)) / (1 - q)    mean squared error

with h(p) the entropy of a coin. For small t, R falls by a bit when t doubles and D = t^2 / 3, so
that equal slopes are the equal c D of reverse water-filling (Cover and Thomas, 10.3.3). For large t
the slope ends at 2 ln 2: a tensor that is worth less than that gets no bits, as there.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_Doubles = npt.NDArray[np.float64]

# Bounds that the tables reach over, in standard deviations.
LOWEST: Final = 2.0**-20
HIGHEST: Final = 2.0**4  # of a million elements not one is left
_POINTS: Final = 1 + 24 * 64
_FINE: Final = 2.0**-6  # below, the formula's terms cancel, and the limit is good to 1e-4


def rate(t: Any) -> _Doubles:
    """Return the entropy of what is quantised within ``t`` standard deviations, in bits."""
    t = np.asarray(t, dtype=np.float64)
    s, q = np.exp(-t * np.sqrt(2)), np.exp(-2 * t * np.sqrt(2))
    return np.asarray(_coin(s) + s * (1 + _coin(q) / -np.expm1(-2 * t * np.sqrt(2))))


def distortion(t: Any) -> _Doubles:
    """Return the mean squared error of the same, in variances."""
    t = np.asarray(t, dtype=np.float64)
    b = np.sqrt(0.5)
    s, q = np.exp(-t / b), np.exp(-2 * t / b)
    above, below = t * t + 2 * b * t + 1, t * t - 2 * b * t + 1
    exact = 1 - s * above + s * (below - q * above) / -np.expm1(-2 * t / b)
    return np.asarray(np.where(t < _FINE, t * t / 3, exact))


def bounds_of_slope(log_slope: _Doubles) -> _Doubles:
    """Return the bounds, in standard deviations, at which a bit less costs e^log_slope variances.

    They are 0 and infinity beyond the tables.
    """
    return np.exp(np.interp(log_slope, _LOG_SLOPES, _LOG_BOUNDS, left=-np.inf, right=np.inf))


def _coin(p: _Doubles) -> _Doubles:
    """Return the entropy of a coin that shows heads with probability ``p``, in bits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, -p * np.log2(p), 0.0)
        return terms + np.where(p < 1, -(1 - p) * np.log1p(-p) / np.log(2), 0.0)


def _tables() -> tuple[_Doubles, _Doubles]:
    """Return logarithms of slopes, which grow, and of the bounds that have them."""
    ends = np.linspace(np.log(LOWEST), np.log(HIGHEST), _POINTS)
    middles = (ends[1:] + ends[:-1]) / 2
    t = np.exp(ends)
    slopes = np.diff(distortion(t)) / -np.diff(rate(t))
    slopes = np.where(t[:-1] < _FINE, 2 * np.log(2) * np.exp(2 * middles) / 3, slopes)
    return np.log(slopes), middles


_LOG_SLOPES, _LOG_BOUNDS = _tables()
