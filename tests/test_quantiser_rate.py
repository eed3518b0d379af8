"""Rate and distortion of a quantised Laplace variable, and the bound for a slope of theirs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.control.quantiser_rate import bounds_of_slope, distortion, rate


@given(st.floats(2.0**-20, 15.0))
def test_rate_and_distortion_are_those_of_a_quantised_laplace_variable(t: float) -> None:
    b, k = math.sqrt(0.5), np.arange(1, 1 << 12)
    mass = 0.5 * np.exp(-(2 * k - 1) * t / b) * -math.expm1(-2 * t / b)
    zero = -math.expm1(-t / b)
    kept = mass[mass > 0]
    bits = -zero * math.log2(zero) - 2 * float(kept @ np.log2(kept))
    if t >= 1e-2:  # else more bins would be needed
        assert rate(t) == pytest.approx(bits, rel=1e-9)
    x = np.linspace(0, 40 * b, 1 << 16)
    error = np.abs(x - 2 * t * np.rint(x / (2 * t)))
    density = np.exp(-x / b) / b
    square = float(np.trapezoid(error**2 * density, x))
    if t >= 1e-2:
        assert distortion(t) == pytest.approx(square, rel=1e-2)
    assert float(rate(t)) > float(rate(t * 1.01))
    assert float(distortion(t)) < float(distortion(t * 1.01))


def test_slopes_lead_back_to_bounds() -> None:
    t = np.geomspace(1e-4, 8.0, 50)
    eps = 1e-4
    slopes = (distortion(t * (1 + eps)) - distortion(t)) / (rate(t) - rate(t * (1 + eps)))
    assert bounds_of_slope(np.log(slopes[t > 0.05])) == pytest.approx(t[t > 0.05], rel=1e-2)
    assert bounds_of_slope(np.array([-math.inf, math.inf])).tolist() == [0.0, math.inf]
    fine = 2 * math.log(2) * t**2 / 3
    assert bounds_of_slope(np.log(fine[t < 0.01])) == pytest.approx(t[t < 0.01], rel=1e-3)
