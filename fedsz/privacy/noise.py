"""Gaussian noise on a grid of integers, from the operating system's random bytes.

Noise in floating point gives its data away by its last bits (Mironov, CCS 2012). So what is to be
released is rounded to a grid, and the noise is a whole number of its steps.
"""

from __future__ import annotations

import math
import os
from typing import Final, Protocol

import numpy as np

from fedsz.arrays import NDArray, chunks
from fedsz.errors import ConfigError

FINE: Final = 32  # bits: how much smaller than the noise's deviation a step of the grid is
WIDEST: Final = 2.0**40  # steps: the largest deviation, so that sums of many stay below 2^63


class RandomBytes(Protocol):
    """Where random bytes come from; numpy's Generator is one, of bytes that can be repeated."""

    def bytes(self, length: int, /) -> bytes:
        """Return so many."""


class SecureBytes:
    """The operating system's cryptographically secure generator."""

    def bytes(self, length: int, /) -> bytes:
        """Return so many bytes, which nobody can foresee."""
        return os.urandom(length)


def random_bytes(seed: int | None, turn: int = 0) -> RandomBytes:
    """Return a secure generator; with a seed, one that tests can repeat and anybody can foresee."""
    return SecureBytes() if seed is None else np.random.default_rng((seed, turn))


def noise(count: int, sigma: float, generator: RandomBytes) -> NDArray:
    """Return ``count`` independent draws of the discrete Gaussian of parameter ``sigma``, int64.

    Its mass at k is proportional to exp(-k^2 / (2 sigma^2)). Rejection from a discrete Laplace, as
    in Canonne, Kamath and Steinke (2020), algorithm 3. Its probabilities are float64 and uniform
    numbers have 53 bits: each draw is within 2^-48 of the law, in total variation.

    Args:
        count: 0 or more.
        sigma: in steps of the grid, above 0 and up to `WIDEST`.
        generator: `SecureBytes`, or for tests ``numpy.random.default_rng(seed)``.

    Raises:
        ConfigError: sigma is out of range.
    """
    if not 0 < sigma <= WIDEST:
        raise ConfigError(f"sigma must be above 0, up to {WIDEST:g}, got {sigma:g}")
    out = np.empty(count, np.int64)
    for here in chunks(count):
        part = out[here]
        filled = 0
        while filled < part.size:
            draws = _candidates(3 * (part.size - filled) + 16, sigma, generator)
            draws = draws[: part.size - filled]
            part[filled : filled + draws.size] = draws
            filled += draws.size
    return out


def _candidates(count: int, sigma: float, generator: RandomBytes) -> NDArray:
    """Return those of ``count`` draws of a discrete Laplace that are accepted."""
    scale = 1 << max(0, math.ceil(math.log2(sigma)))  # a power of two: its remainders are uniform
    low, high, last = np.frombuffer(generator.bytes(24 * count), np.uint64).reshape(3, count)
    rest = (low >> np.uint64(1)) & np.uint64(scale - 1)
    # floor(-ln u) is at least k with probability exp(-k).
    turns = np.floor(-np.log(_uniform(high))).astype(np.int64)
    size = rest.astype(np.int64) + scale * turns
    negative = (low & np.uint64(1)).astype(bool)
    from_centre = (size - sigma**2 / scale) / sigma
    # The first term makes a discrete Laplace of these, the second a Gaussian of that.
    likely = np.exp(-rest.astype(np.float64) / scale - from_centre**2 / 2)
    taken = (_uniform(last) <= likely) & ~(negative & (size == 0))
    draws: NDArray = np.where(negative, -size, size)[taken]
    return draws


def _uniform(bits: NDArray) -> NDArray:
    """Return numbers above 0, up to 1, in steps of 2^-53."""
    return ((bits >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53


def with_noise(x: NDArray, deviation: float, generator: RandomBytes) -> NDArray:
    """Return ``x``, rounded to a grid, plus discrete Gaussian noise on it, in float64.

    Args:
        x: finite, in float64.
        deviation: of the noise, in the unit of ``x``, above 0; of the grid, see `grid_of`.
        generator: see `noise`.
    """
    grid = grid_of(deviation)
    flat = x.reshape(-1)
    out = np.empty(flat.size, np.float64)
    for here in chunks(flat.size):
        steps = np.rint(flat[here] / grid) + noise(flat[here].size, deviation / grid, generator)
        out[here] = steps * grid
    return out.reshape(x.shape)


def grid_of(deviation: float) -> float:
    """Return the step of the grid on which noise of a deviation is: a power of two."""
    return 2.0 ** (math.floor(math.log2(deviation)) - FINE)


def deviation_of(multiplier: float, norm: float, elements: int) -> float:
    """Return the noise's deviation that a multiplier of the sensitivity asks for.

    Rounding to the grid moves each of two sums by half a step an element, so the sensitivity is
    ``norm`` and the grid's step times the root of ``elements``: some 10^-6 of it.
    """
    plain = multiplier * norm
    return multiplier * (norm + 2 * grid_of(plain) * math.sqrt(elements))
