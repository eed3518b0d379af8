"""A client's update as tokens of a ring, and the mean update from the sum of clients' tokens.

With x what a client has trained from what it began with, r its residual, w its weight, W the
plan's cap, g a tensor's grid and c the plan's `most`:

    t = clip(round(w / W (x + r) / g), -c, c)      mean = W g sum(t) / sum(w)
    r = x + r - W / w g t

Rounding is to the nearest, so that where nothing was clipped the mean of m clients is off by
m / 2 W g / sum(w) at most, and clients' residuals hold all of that.

Whole numbers and running statistics are exact but for a grid of 2^-24 of what the plan says that
they may move. Along with the update go the weight and for each tensor the mean square of its tokens
before they are clipped, from which the next scales follow. A client says no more than n/2 or 8
times what is expected, so that one that has moved far does not take scales away from the others.

All of that is of clients that keep to it. Nobody reads what one adds: other digits make a sum that
is refused, or another mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import Layout, NDArray
from fedsz.codecs import _ring
from fedsz.errors import ConfigError, CorruptStream, DivergedUpdate
from fedsz.secagg.packing import Tokens
from fedsz.secagg.scales import growth, is_exact
from fedsz.secagg.steps import fed_back, step_of
from fedsz.secagg.token_plan import EXACT_VALUES, TokenPlan

_ENERGIES: Final = 1 << 12  # values that an energy has, or more
_MOST_ENERGY: Final = 8.0  # of a client, times what is expected
_ALL: Final = np.empty(0, np.int64)  # positions: `_ring` takes none for all elements
_NO_DITHER: Final = np.empty(0)


@dataclass(frozen=True)
class Encoded:
    """What a client sends, and what it keeps.

    Attributes:
        tokens: below 2^bits, in the smallest of uint8, uint16 and uint32 that holds them.
        residual: by tensor, what was not sent, float32.
        clipped: how many elements were clipped.
    """

    tokens: Tokens
    residual: dict[str, NDArray]
    clipped: int


@dataclass(frozen=True)
class Sum:
    """What a sum of tokens says.

    Attributes:
        step: the mean update by tensor, float64 for exact tensors and float32 for others; 0
            everywhere if all weights are 0.
        weight: the sum of the clients' weights.
        scales: by tensor, of the next round; see `fedsz.secagg.scales.scales_of`.
    """

    step: dict[str, NDArray]
    weight: int
    scales: dict[str, float]


class TokenCodec:
    """Turns updates into tokens as a plan says, and their sum into the mean update.

    Args:
        plan: of the round.
        layout: of the model.

    Attributes:
        sent: by tensor that is not exact, the distance between two tokens' values.
        exact: the names of the other tensors.

    Raises:
        ModelMismatch: the plan is for another model.
    """

    def __init__(self, plan: TokenPlan, layout: Layout) -> None:
        plan.require(layout)
        self.plan, self.layout = plan, layout
        self._scales = dict(zip(layout.shapes, plan.scales, strict=True))
        self._sizes = {name: math.prod(shape) for name, shape in layout.shapes.items()}
        self.exact = [name for name in layout.shapes if is_exact(name, layout)]
        self.sent = {
            name: scale / plan.spread
            for name, scale in self._scales.items()
            if name not in self.exact
        }
        self._wide = plan.digits(EXACT_VALUES)
        self._narrow = plan.digits(_ENERGIES)
        self._most_energy = min(max(plan.clients / 2, 2.0), _MOST_ENERGY)

    @property
    def count(self) -> int:
        """How many tokens each client sends."""
        exact = sum(self._sizes[name] for name in self.exact)
        aside = self.plan.digits(self.plan.cap + 1) + len(self.sent) * self._narrow
        return self._elements + exact * self._wide + aside

    @property
    def _elements(self) -> int:
        """How many of these are elements that are rounded to the grid."""
        return sum(self._sizes[name] for name in self.sent)

    @property
    def dtype(self) -> np.dtype:
        """Of tokens."""
        return np.dtype(f"u{1 if self.plan.bits <= 8 else 2 if self.plan.bits <= 16 else 4}")

    def encode(
        self,
        trained: Mapping[str, NDArray],
        start: Mapping[str, NDArray],
        weight: int,
        residual: Mapping[str, NDArray],
    ) -> Encoded:
        """Return the tokens of a client's update.

        Args:
            trained: the model after training.
            start: the model that training began with.
            weight: of the client, such as its number of examples, 0 or more.
            residual: `Encoded.residual` of the client's round before; those of other shapes do not
                count.

        Raises:
            DivergedUpdate: an element of a floating-point tensor is not finite, or moves further
                than float32 has numbers.
            ModelMismatch: one of the models has another layout than the plan is for.
        """
        plan, left, clipped = self.plan, {}, 0
        self.layout.check({name: x.shape for name, x in trained.items()})
        self.layout.check({name: x.shape for name, x in start.items()})
        used = min(weight, plan.cap)
        part = used / plan.cap
        energies: list[float] = []
        rounded = np.zeros(self._elements, self.dtype)
        free = rounded
        for name, spacing in self.sent.items():
            y = fed_back(name, trained[name], start[name], residual.get(name))
            here, free = free[: y.size], free[y.size :]
            grid = _ALL, np.full(y.size, spacing), _NO_DITHER
            energy, far = _ring.quantise(y, *grid, part, plan.most, here)  # y becomes what is left
            if not math.isfinite(energy):
                raise DivergedUpdate(f"{name!r} has elements that are not finite")
            energies.append(energy / max(y.size, 1) / plan.spread**2)
            clipped += far
            left[name] = y.reshape(self.layout.shapes[name])
        parts = [rounded]
        for name in self.exact:
            v = step_of(name, trained[name], start[name], np.float64)
            half = self._half
            going = np.clip(np.rint(v * (part * half / self._scales[name])), -half, half)
            parts.append(self._as_digits(going.astype(np.int64) + half, self._wide))
        parts.append(self._as_digits(np.array([used]), plan.digits(plan.cap + 1)))
        loudness = [min(energy / self._most_energy, 1.0) for energy in energies]
        told = np.array([int(x * self._loudest) for x in loudness], np.int64)
        parts.append(self._as_digits(told, self._narrow))
        tokens = np.concatenate([one.astype(self.dtype, copy=False) for one in parts])
        return Encoded(tokens, left, clipped)

    def decode(self, sums: Tokens, clients: int) -> Sum:
        """Return what a sum of tokens modulo 2^bits says.

        Args:
            sums: as many as `count`.
            clients: how many clients' tokens are in the sum.

        Raises:
            CorruptStream: the sum is not one of so many clients' tokens.
            ConfigError: there are more clients than the plan is for, or none.
        """
        plan = self.plan
        if not 0 < clients <= plan.clients:
            raise ConfigError(f"a sum of {clients} clients; the plan is for 1 to {plan.clients}")
        if sums.shape != (self.count,) or sums.dtype != self.dtype:
            what = f"{self.count} tokens of {self.dtype}"
            raise CorruptStream(f"a sum has {what}, got {sums.dtype} {sums.shape}")
        left = _Reader(sums, plan, clients)
        rounded = {name: left.tokens(self._sizes[name]) for name in self.sent}
        wholes = {
            name: left.numbers(self._sizes[name], self._wide) - clients * self._half
            for name in self.exact
        }
        (weight,) = left.numbers(1, plan.digits(plan.cap + 1)).tolist()
        energies = left.numbers(len(self.sent), self._narrow) / (self._loudest * clients)
        energies *= self._most_energy
        if weight > clients * plan.cap:
            what = f"weights of {weight} in all, of {clients} clients up to {plan.cap}"
            raise CorruptStream(what)
        factor = plan.cap / weight if weight else 0.0
        steps: dict[str, NDArray] = {}
        for name, spacing in self.sent.items():
            y, most = np.zeros(self._sizes[name], np.float32), clients * plan.most
            grid = _ALL, np.full(y.size, spacing), _NO_DITHER
            largest = _ring.dequantise(rounded[name], *grid, most, factor, y)
            left.require(largest, 2 * most)
            steps[name] = y.reshape(self.layout.shapes[name])
        for name, whole in wholes.items():
            step = whole * (factor * self._scales[name] / self._half)
            steps[name] = step.reshape(self.layout.shapes[name])
        grown = {
            name: energy
            for name, energy in zip(self.sent, energies.tolist(), strict=True)
            if self._sizes[name]
        }
        return Sum(
            {name: steps[name] for name in self.layout.shapes},
            weight,
            {name: scale * growth(grown.get(name, 1.0)) for name, scale in self._scales.items()},
        )

    @property
    def _half(self) -> int:
        """The largest absolute value of an exact tensor's wide number."""
        return int(self.plan.base**self._wide - 1) // 2

    @property
    def _loudest(self) -> int:
        """The largest number that digits of an energy have: nobody can say that it is more."""
        return int(self.plan.base**self._narrow - 1)

    def _as_digits(self, numbers: NDArray, digits: int) -> NDArray:
        """Return numbers from 0 on as digits, the lowest first, each number's side by side."""
        found = np.empty((numbers.size, digits), np.int64)
        for i in range(digits):
            numbers, found[:, i] = np.divmod(numbers, self.plan.base)
        return found.reshape(-1)


class _Reader:
    """Sums of so many clients' tokens in the order in which `TokenCodec.encode` has them."""

    def __init__(self, sums: NDArray, plan: TokenPlan, clients: int) -> None:
        self._sums, self._plan, self._clients = sums, plan, clients

    def tokens(self, size: int) -> NDArray:
        """Return so many sums as they are."""
        taken, self._sums = self._sums[:size], self._sums[size:]
        return taken

    def numbers(self, size: int, digits: int) -> NDArray:
        """Return sums of numbers of so many digits, int64."""
        total = self.tokens(size * digits).astype(np.int64)
        self.require(int(total.max(initial=0)), self._clients * (self._plan.base - 1))
        powers = np.array([self._plan.base**i for i in range(digits)], np.int64)
        return np.asarray(total.reshape(size, digits) @ powers)

    def require(self, largest: int, most: int) -> None:
        """Raise `CorruptStream` if the largest sum of tokens is more than ``most``."""
        if largest > most:
            raise CorruptStream(f"a sum of tokens is {largest}; have {most} at most")
