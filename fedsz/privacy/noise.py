"""Gaussian noise on a grid of integers, from the operating system's random bytes.

Noise in floating point gives its data away by its last bits (Mironov, CCS 2012). So what is to be
released is rounded to a grid, and the noise is a whole number of its steps.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from fedsz.arrays import Layout, NDArray, chunks
from fedsz.core.clipping import add_step, parts, stepped
from fedsz.errors import ConfigError, DivergedUpdate

FINE: Final = 32  # bits: how much smaller than the noise's deviation a step of the grid is
WIDEST: Final = 2.0**40  # steps: the largest deviation, so that sums of many stay below 2^63

RandomBytes = Callable[[int], bytes]  # returns so many


def random_bytes(seed: int | None, number: int = 0) -> RandomBytes:
    """Return a secure generator; with a seed, one that tests can repeat and anybody can foresee."""
    return os.urandom if seed is None else np.random.default_rng((seed, number)).bytes


def noise(count: int, sigma: float, random: RandomBytes) -> NDArray:
    """Return ``count`` independent draws of the discrete Gaussian of parameter ``sigma``, int64.

    Its mass at k is proportional to exp(-k^2 / (2 sigma^2)). Rejection from a discrete Laplace, as
    in Canonne, Kamath and Steinke (2020), algorithm 3. Its probabilities are float64 and uniform
    numbers have 53 bits: each draw is within 2^-48 of the law, in total variation.

    Args:
        count: 0 or more.
        sigma: in steps of the grid, above 0 and up to `WIDEST`.
        random: `os.urandom`, or for tests ``numpy.random.default_rng(seed).bytes``.

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
            draws = _candidates(3 * (part.size - filled) + 16, sigma, random)
            draws = draws[: part.size - filled]
            part[filled : filled + draws.size] = draws
            filled += draws.size
    return out


def _candidates(count: int, sigma: float, random: RandomBytes) -> NDArray:
    """Return those of ``count`` draws of a discrete Laplace that are accepted."""
    scale = 1 << max(0, math.ceil(math.log2(sigma)))  # a power of two: its remainders are uniform
    low, high, last = np.frombuffer(random(24 * count), np.uint64).reshape(3, count)
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


def add_noise(x: NDArray, deviation: float, random: RandomBytes) -> None:
    """Round ``x`` to a grid and add discrete Gaussian noise on it, in place.

    Args:
        x: flat float64, finite.
        deviation: of the noise, in the unit of ``x``, above 0; of the grid, see `grid_of`.
        random: see `noise`.
    """
    grid = grid_of(deviation)
    for here in chunks(x.size):
        steps = np.rint(x[here] / grid) + noise(x[here].size, deviation / grid, random)
        x[here] = steps * grid


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


def floats_in(model: Mapping[str, NDArray]) -> int:
    """Return how many floats a model has; a complex number is two."""
    return sum(parts(x).size for x in model.values() if x.dtype.kind not in "iub")


def add_floats(x: Mapping[str, NDArray], start: Mapping[str, NDArray], sums: NDArray) -> None:
    """Add how far all floats have moved to flat float64, in the order of ``start``.

    Where ``start`` is not finite, nothing is added. Whole numbers and bools do not count.

    Args:
        x: a model.
        start: another of its names, shapes and dtypes.
        sums: one for each of `floats_in`.

    Raises:
        ModelMismatch: ``x`` has other names or shapes than ``start``.
    """
    Layout.of(start).check({name: array.shape for name, array in x.items()})
    at = 0
    for name, before in start.items():
        if before.dtype.kind not in "iub":
            size = parts(before).size
            with np.errstate(over="ignore", invalid="ignore"):
                add_step(x[name], before, sums[at : at + size])
            at += size


def moved_floats(start: Mapping[str, NDArray], step: NDArray) -> dict[str, NDArray]:
    """Return a model with its floats moved by flat float64, in its own dtypes and their ranges."""
    out, at = {}, 0
    for name, before in start.items():
        size = 0 if before.dtype.kind in "iub" else parts(before).size
        out[name] = stepped(before, step[at : at + size]) if size else before
        at += size
    return out


def norm_of(step: NDArray) -> float:
    """Return the norm of an update; raise `DivergedUpdate` if it is not finite."""
    norm = math.sqrt(float(np.vdot(step, step)))
    if not math.isfinite(norm):
        raise DivergedUpdate("training made NaN or infinities; nothing is sent")
    return norm
