"""Laws are told from each other, and histograms count everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from benchmarks.paper.error_distribution import BINS, density, distribution
from tests.strategies import specials

DRAW = {
    "laplace": lambda rng: rng.laplace(0.3, 0.02, 100_000),
    "uniform": lambda rng: rng.uniform(-0.1, 0.4, 100_000),
    "normal": lambda rng: rng.normal(-1, 3, 100_000),
}


@pytest.mark.parametrize("name", DRAW)
def test_the_law_that_numbers_were_drawn_from_fits_best(name: str) -> None:
    x = DRAW[name](np.random.default_rng(0))

    found = distribution(x, "weights", "w")

    law = next(law for law in found.laws if law.name == name)
    assert found.best == name
    # Beyond 1.36 / sqrt(n), Kolmogorov and Smirnov would doubt the law at 5 %.
    assert law.ks < 1.36 / np.sqrt(x.size)
    assert all(other.ks > 0.03 for other in found.laws if other is not law)
    expected = {"laplace": (0.3, 0.02), "uniform": (0.15, 0.25), "normal": (-1, 3)}[name]
    assert (law.location, law.scale) == pytest.approx(expected, rel=0.02)
    grid = np.linspace(law.location - 30 * law.scale, law.location + 30 * law.scale, 200_001)
    assert np.trapezoid(density(law, grid), grid) == pytest.approx(1, abs=1e-3)


@given(x=specials(np.float32))
def test_every_finite_number_is_counted(x: np.ndarray) -> None:
    found = distribution(x, "weights", "w")

    assert found.numbers == sum(found.counts) == np.isfinite(x).sum()
    assert len(found.counts) == BINS
    assert all(0 <= law.ks <= 1 for law in found.laws)


def test_numbers_that_are_all_equal_follow_no_law() -> None:
    found = distribution(np.full(10, 2.5), "error", "w")

    assert (found.low, found.high, found.laws, found.best) == (2.5, 2.5, [], "")
    assert sum(found.counts) == 10
    assert distribution(np.empty(0), "error", "w").numbers == 0
