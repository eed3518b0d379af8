"""`layered`: subtractive dither of a drawn step, so that the error is exactly Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray, chunks
from fedsz.codecs import _methods
from fedsz.errors import CodecError
from fedsz.methods.base import Kind, Shared, Stage, Symbols, require_count
from fedsz.spec_strings import setting

SLICE: Final = 1 << 13  # elements worked on at a time: a cache holds their draws
MOST_STEPS: Final = 1 << 22  # of an element, as many as a level may have
WORDS: Final = 4  # that an element takes
LEAST: Final = 2.0**-40  # of R^2: less comes once in 10^18 draws

LN_2: Final = math.log(2)
ROOT_HALF: Final = math.sqrt(0.5)
LOGARITHM: Final = tuple(2 / k for k in range(23, 0, -2))  # of (m - 1) / (m + 1), odd powers
SINE: Final = tuple((-1) ** (k // 2) / math.factorial(k) for k in range(23, 0, -2))


@dataclass(frozen=True)
class Layered(Stage):
    """The direct layered quantiser of a Gaussian (Hegazy and Li 2022; Hegazy et al. 2024).

    A point uniform below the density of the error is at a height that is reached in an interval of
    width w. Within that the error is uniform, which subtractive dither gives. With R^2 chi-squared
    of three degrees of freedom and u uniform in [-1/2, 1/2), both drawn by both sides:

        w = 2 sigma R;  send the q nearest to x / w + u;  decode w (q - u)

    So the error is normal, of deviation ``sigma``, and independent of x: it says nothing of it.
    Those who know the draws know more.

    Attributes:
        sigma: the deviation of the error, in the unit of the tensor, whatever that holds.

    Raises:
        ConfigError: sigma is out of range.
    """

    name = "layered"
    summary = "subtractive dither of a drawn step: the error is Gaussian, whatever is sent"
    symbols = {"levels": Kind.LEVELS}
    biased = False

    sigma: float = setting(1e-3, 1e-12, 1e12)

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        levels = np.empty(x.size, np.int32)
        for here in chunks(x.size, SLICE):
            step, dither = self._drawn(shared, here.start, levels[here].size)
            wanted = x[here] / step + dither
            if max(wanted.max(), -wanted.min()) > MOST_STEPS:
                raise CodecError(f"an element is beyond 2^22 steps of sigma {self.sigma:g}")
            levels[here] = np.rint(wanted, out=wanted)
        return {"levels": levels}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        spec, levels = shared.spec, symbols["levels"]
        require_count("levels", levels, spec.size)
        y = np.empty(spec.size, spec.dtype)
        for here in chunks(spec.size, SLICE):
            step, dither = self._drawn(shared, here.start, y[here].size)
            y[here] = (levels[here] - dither) * step
        return y.reshape(spec.shape)

    def _drawn(self, shared: Shared, start: int, count: int) -> tuple[NDArray, NDArray]:
        """Return steps and dither of elements from number ``start`` on, float64.

        R^2 is 2 E, and 2 E' times the square of a cosine of a uniform angle, with E and E'
        exponential: chi-squared of two degrees of freedom, and of one.
        """
        draws = np.empty(WORDS * count)
        _methods.uniforms(shared.key(own=True), WORDS * start, draws)
        one, other, angle, dither = draws.reshape(count, WORDS).T
        sine = _sine(angle * (math.pi / 2))
        squares = 2 * _exponential(one) + 2 * _exponential(other) * (sine * sine)
        return 2 * self.sigma * np.sqrt(np.maximum(squares, LEAST)), dither - 0.5


# numpy's own logarithms and sines differ by their last bit from one processor to another. Sums,
# products, quotients and roots are the same everywhere, and so is what is made of them here.


def _exponential(u: NDArray) -> NDArray:
    """Return -ln(1 - u) of numbers from 0 to below 1."""
    rest, exponent = np.frexp(1 - u)
    low = rest < ROOT_HALF
    rest, exponent = np.where(low, 2 * rest, rest), exponent - low
    s = (rest - 1) / (rest + 1)
    logarithm: NDArray = exponent * LN_2 + s * _polynomial(LOGARITHM, s * s)
    return -logarithm


def _sine(angle: NDArray) -> NDArray:
    """Return the sine of angles of up to pi / 2."""
    sine: NDArray = angle * _polynomial(SINE, angle * angle)
    return sine


def _polynomial(coefficients: tuple[float, ...], x: NDArray) -> NDArray:
    """Return that of ``x``, its highest power first."""
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total
