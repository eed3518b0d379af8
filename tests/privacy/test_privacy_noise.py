"""Noise: its law, that it hides the last bits of what it is added to, and where it comes from."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from scipy import stats

from fedsz.errors import ConfigError
from fedsz.privacy.noise import (
    FINE,
    WIDEST,
    add_noise,
    deviation_of,
    grid_of,
    noise,
    random_bytes,
)

COUNT = 150_000  # more than two chunks


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0, 1.7, 9.3])
def test_it_is_the_discrete_gaussian(sigma: float) -> None:
    draws = noise(COUNT, sigma, np.random.default_rng(1).bytes)

    reach = math.ceil(12 * sigma) + 1
    k = np.arange(-reach, reach + 1)
    mass = np.exp(-(k**2) / (2 * sigma**2))
    wanted = COUNT * mass / mass.sum()
    found = np.bincount(draws + reach, minlength=k.size)
    assert draws.dtype == np.int64
    assert found.size == k.size
    often = wanted >= 5
    seldom = max(10.0, 3 * wanted[~often].sum())
    assert found[~often].sum() <= seldom
    expected = wanted[often] * found[often].sum() / wanted[often].sum()
    assert often.sum() < 2 or stats.chisquare(found[often], expected).pvalue > 1e-4


@pytest.mark.parametrize("sigma", [1000.5, 2.0**32 * 1.3, WIDEST])
def test_wide_noise_is_as_good_as_gaussian(sigma: float) -> None:
    draws = noise(COUNT, sigma, np.random.default_rng(2).bytes) / sigma

    assert stats.kstest(draws, "norm").pvalue > 1e-4
    neighbours = np.corrcoef(draws[:-1], draws[1:])[0, 1]
    assert abs(neighbours) < 5 / math.sqrt(COUNT)


def test_the_secure_generator_repeats_nothing_and_a_seed_does() -> None:
    secure, other = (noise(1000, 1e6, random_bytes(None)) for _ in range(2))
    seeded = [noise(1000, 1e6, random_bytes(7, turn)) for turn in (1, 1, 2)]

    assert (secure != other).mean() > 0.99
    assert np.array_equal(seeded[0], seeded[1])
    assert (seeded[0] != seeded[2]).mean() > 0.99
    assert noise(0, 1.0, os.urandom).shape == (0,)


@pytest.mark.parametrize("sigma", [0, -1, math.nan, math.inf, 2 * WIDEST])
def test_noise_of_no_width_is_refused(sigma: float) -> None:
    with pytest.raises(ConfigError, match="sigma must be above 0"):
        noise(3, sigma, os.urandom)


@pytest.mark.parametrize("deviation", [1e-30, 0.03, 1.0, 12345.6])
def test_what_is_released_lies_on_the_grid_whatever_it_was(deviation: float) -> None:
    grid = grid_of(deviation)
    x = deviation * np.random.default_rng(3).standard_normal(2000)
    x[:50] = 0
    x[50:100] = deviation / 3  # on no grid
    released = x.copy()

    add_noise(released, deviation, np.random.default_rng(4).bytes)

    assert deviation / 2 ** (FINE + 1) < grid <= deviation / 2**FINE
    assert np.array_equal(np.rint(released / grid) * grid, released)
    assert stats.kstest((released - x) / deviation, "norm").pvalue > 1e-4


def test_the_deviation_pays_for_rounding() -> None:
    """Two sums that differ by the norm differ by more once both are on the grid, and not by more
    than the deviation has been raised for."""
    multiplier, norm, elements = 0.5, 3.0, 10_000
    deviation = deviation_of(multiplier, norm, elements)
    grid = grid_of(deviation)
    x = np.random.default_rng(5).uniform(-1, 1, elements)
    step = np.full(elements, norm / math.sqrt(elements))

    moved = np.rint((x + step) / grid) * grid - np.rint(x / grid) * grid

    assert np.linalg.norm(moved) <= deviation / multiplier
    assert deviation == pytest.approx(multiplier * norm, rel=1e-6)
