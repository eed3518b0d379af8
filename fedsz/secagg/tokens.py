"""A client's update as tokens of a ring, and the mean update from the sum of clients' tokens.

With x what a client has trained from what it began with, r its residual, w its weight, W the
plan's cap (both 1 where all weigh alike), g a coefficient's grid and c the plan's `most`:

    y = coefficients of x + r (less the forecast: so many of the history's mean steps)
    t = clip(round(w / W y / g), -c, c)            mean = W g sum(t) / sum(w)  (and the forecast)
    r = x + r less the tensor of coefficients W / w g t, of those that are sent

Rounding is to the nearest, so that where nothing was clipped the mean of m clients is off by
m / 2 W g / sum(w) at most, and clients' residuals hold all of that. With dither u, uniform in
[-1/2, 1/2), t is of round(w / W y / g + u), and t - u is what counts: then the error says nothing
of y (subtractive dither; Schuchman 1964).

Whole numbers and running statistics are exact but for a grid of 2^-24 of what the plan says that
they may move. Along with the update go the weight and the mean squares of the tokens before they
are clipped: for each tensor, from which the next scales follow, and with a history for each class,
from which the next factors do. A client says no more than n/2 or 8 times what is expected, so that
one that has moved far does not take scales away from the others.

All of that is of clients that keep to it. Nobody reads what one adds: other digits make a sum that
is refused, or another mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Layout, NDArray
from fedsz.codecs import _methods, _ring
from fedsz.errors import ConfigError, CorruptStream, DivergedUpdate
from fedsz.methods.eigen import History
from fedsz.secagg.packing import Tokens
from fedsz.secagg.scales import growth, is_exact
from fedsz.secagg.selection import key_of, select
from fedsz.secagg.steps import fed_back, moved, step_of
from fedsz.secagg.token_plan import CLASSES, EXACT_VALUES, LARGEST_FACTOR, TokenPlan

_ENERGIES: Final = 1 << 12  # values that an energy has, or more
_MOST_ENERGY: Final = 8.0  # of a client, times what is expected
_SETTLING: Final = 8  # rounds in which nothing is known yet, and clients can say more:
_MOST_AT_FIRST: Final = 64.0
_MOST_CHANGE: Final = 3.0  # that a factor is multiplied with, or divided by, after a round
_FEWEST: Final = 20  # coefficients of a class that say anything of its factor
_STEERING: Final = 0.3  # of what a forecast was short of, that the next is changed by
_MOST_SPARE: Final = 1 << 10  # tokens, beside as many as are needed
_MOST_FORECAST: Final = 0.95

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Encoded:
    """What a client sends, and what it keeps.

    Attributes:
        tokens: below 2^bits, in the smallest of uint8, uint16 and uint32 that holds them.
        residual: by tensor, what was not sent, float32.
        clipped: how many coefficients were clipped.
    """

    tokens: Tokens
    residual: dict[str, NDArray]
    clipped: int


@dataclass(frozen=True)
class Sum:
    """What a sum of tokens says.

    Attributes:
        step: the mean update by tensor, float64 for exact tensors and float32 for others; 0 where
            nothing was sent, and everywhere if all weights are 0.
        weight: the sum of the clients' weights.
        scales: by tensor, of the next round; see `fedsz.secagg.scales.scales_of`.
        factors, forecast: of the next round's plan, if that has a history.
    """

    step: dict[str, NDArray]
    weight: int
    scales: dict[str, float]
    factors: tuple[float, ...] = CLASSES * (1.0,)
    forecast: float = 0.0


class TokenCodec:
    """Turns updates into tokens as a plan says, and their sum into the mean update.

    Args:
        plan: of the round.
        layout: of the model.
        history: of the broadcasts that client and server have seen, up to this round's.

    Raises:
        ModelMismatch: the plan is for another model.
        ReferenceMismatch: the plan is for another history.
    """

    def __init__(self, plan: TokenPlan, layout: Layout, history: History | None = None) -> None:
        self.plan, self.layout = plan, layout
        self.sent = select(plan, layout, history)
        self.exact = [name for name in layout.shapes if is_exact(name, layout)]
        self._trend = history.trend if history and plan.history else {}
        self._sizes = np.zeros(CLASSES, np.int64)
        for one in self.sent.values() if plan.history else ():
            self._sizes += np.bincount(one.classes, minlength=CLASSES)
        self._scales = dict(zip(layout.shapes, plan.scales, strict=True))
        self._wide = plan.digits(EXACT_VALUES)
        self._narrow = plan.digits(_ENERGIES)
        settles = plan.history is not None and plan.number < _SETTLING
        most = min(max(plan.clients / 2, 2.0), _MOST_ENERGY)
        self._most_energy = _MOST_AT_FIRST if settles else most

    @property
    def count(self) -> int:
        """How many tokens each client sends."""
        return self.plan.room or self.needed

    @property
    def needed(self) -> int:
        """How many that takes at least."""
        whole = sum(math.prod(self.layout.shapes[name]) for name in self.exact)
        aside = self.plan.digits(self.plan.cap + 1) + self._energies * self._narrow
        return self.together + whole * self._wide + aside

    @property
    def of_classes(self) -> int:
        """How many tokens the mean squares of classes take, where there is a history."""
        return CLASSES * self._narrow

    @property
    def together(self) -> int:
        """How many tokens coefficients take."""
        return -(-self._coefficients // self.plan.together)

    @property
    def _energies(self) -> int:
        """How many mean squares each client sends."""
        return len(self.sent) + (CLASSES if self.plan.history is not None else 0)

    @property
    def _coefficients(self) -> int:
        return sum(sent.where.size for sent in self.sent.values())

    @property
    def dtype(self) -> np.dtype:
        """Of tokens."""
        return np.dtype(f"u{1 if self.plan.bits <= 8 else 2 if self.plan.bits <= 16 else 4}")

    def start(
        self, model: Mapping[str, NDArray], residual: Mapping[str, NDArray]
    ) -> dict[str, NDArray]:
        """Return what a client begins to train with, as the plan says it; see `encode`."""
        left = residual if self.plan.ahead else {}
        return {
            name: moved(x, left[name].reshape(x.shape))
            if name in left and left[name].size == x.size and name not in self.exact
            else x
            for name, x in model.items()
        }

    def encode(
        self,
        trained: Mapping[str, NDArray],
        start: Mapping[str, NDArray],
        weight: int,
        residual: Mapping[str, NDArray],
        client: int = 0,
    ) -> Encoded:
        """Return the tokens of a client's update.

        Args:
            trained: the model after training.
            start: the model that training began with, as `start` has returned it.
            weight: of the client, such as its number of examples, 0 or more.
            residual: `Encoded.residual` of the client's round before; those of other shapes do not
                count.
            client: tells its dither from others', 0 to 2^64 - 1.

        Raises:
            CorruptStream: the plan has room for fewer tokens, or for many more.
            DivergedUpdate: an element of a floating-point tensor is not finite, or moves further
                than float32 has numbers.
            ModelMismatch: one of the models has another layout than the plan is for.
        """
        plan, left, clipped = self.plan, {}, 0
        self.layout.check({name: x.shape for name, x in trained.items()})
        self.layout.check({name: x.shape for name, x in start.items()})
        used = min(weight, plan.cap)
        spare = self.count - self.needed
        if not 0 <= spare <= self.needed + _MOST_SPARE:
            raise CorruptStream(f"a plan has room for {self.count} tokens, and takes {self.needed}")
        part = 1.0 if plan.even else used / plan.cap
        energies: list[float] = []
        classes = np.zeros(CLASSES)
        rounded = np.zeros(self.together * plan.together, self._dtype)
        free = rounded
        for name, sent in self.sent.items():
            y = fed_back(name, trained[name], start[name], residual.get(name))
            if (trend := self._trend.get(name)) is not None:
                y -= np.float32(plan.forecast) * trend
            if sent.basis is not None:
                y = sent.basis.coefficients(y)
            if plan.history is not None:
                z = y[sent.where] * (part / plan.spread) / sent.grid
                classes += np.bincount(sent.classes, z**2, CLASSES)
            here, free = free[: sent.where.size], free[sent.where.size :]
            drawn = self._dither(name, (client,), here.size)
            grid = sent.positions(y.size), sent.grid, drawn
            energy, far = _ring.quantise(y, *grid, part, plan.most, here)
            if not math.isfinite(energy):
                raise DivergedUpdate(f"{name!r} has coefficients that are not finite")
            energies.append(energy / max(here.size, 1) / plan.spread**2)
            clipped += far
            kept = y if sent.basis is None else sent.basis.tensor(y)
            left[name] = kept.reshape(self.layout.shapes[name])
        parts = [self._in_places(rounded)]
        for name in self.exact:
            v = step_of(name, trained[name], start[name], np.float64)
            half = self._half
            going = np.clip(np.rint(v * (part * half / self._scales[name])), -half, half)
            parts.append(self._as_digits(going.astype(np.int64) + half, self._wide))
        parts.append(self._as_digits(np.array([used]), plan.digits(plan.cap + 1)))
        if plan.history is not None:
            energies += (classes / np.maximum(self._sizes, 1)).tolist()
        parts_of_most = [min(energy / self._most_energy, 1.0) for energy in energies]
        told = np.array([int(part * self._loudest) for part in parts_of_most], np.int64)
        parts.append(self._as_digits(told, self._narrow))
        parts.append(np.zeros(spare, np.int64))
        tokens = np.concatenate([one.astype(self.dtype, copy=False) for one in parts])
        return Encoded(tokens, left, clipped)

    def decode(self, sums: Tokens, clients: Sequence[int]) -> Sum:
        """Return what a sum of tokens modulo 2^bits says.

        Args:
            sums: as many as `count`.
            clients: those whose tokens are in the sum, as they called themselves in `encode`.

        Raises:
            CorruptStream: the sum is not one of so many clients' tokens.
            ConfigError: there are more clients than the plan is for, or none.
        """
        plan, count = self.plan, len(clients)
        if not 0 < count <= plan.clients:
            raise ConfigError(f"a sum of {count} clients; the plan is for 1 to {plan.clients}")
        if sums.shape != (self.count,) or sums.dtype != self.dtype:
            what = f"{self.count} tokens of {self.dtype}"
            raise CorruptStream(f"a sum has {what}, got {sums.dtype} {sums.shape}")
        left = _Reader(sums, plan)
        rounded, steps = left.places(self._coefficients), {}
        wholes = {
            name: left.numbers(math.prod(self.layout.shapes[name]), self._wide, count)
            - count * self._half
            for name in self.exact
        }
        (weight,) = left.numbers(1, plan.digits(plan.cap + 1), count).tolist()
        energies = left.numbers(self._energies, self._narrow, count) / (self._loudest * count)
        energies *= self._most_energy
        if weight > count * plan.cap:
            raise CorruptStream(f"weights of {weight} in all, of {count} clients up to {plan.cap}")
        factor = 1 / count if plan.even else plan.cap / weight if weight else 0.0
        along = size = 0.0
        for name, sent in self.sent.items():
            here, rounded = rounded[: sent.where.size], rounded[sent.where.size :]
            y = np.zeros(math.prod(self.layout.shapes[name]), np.float32)
            grid = sent.positions(y.size), sent.grid, self._dither(name, clients, here.size)
            most = count * plan.most
            largest = _ring.dequantise(here, *grid, most, factor, y)
            left.require(largest, 2 * most)
            step = y if sent.basis is None else sent.basis.tensor(y)
            if (trend := self._trend.get(name)) is not None:
                along += float(np.dot(step, trend))
                size += float(np.dot(trend, trend))
                step += np.float32(plan.forecast) * trend
            steps[name] = step.reshape(self.layout.shapes[name])
        for name, whole in wholes.items():
            step = whole * (factor * self._scales[name] / self._half)
            steps[name] = step.reshape(self.layout.shapes[name])
        grown = {
            name: energy
            for (name, sent), energy in zip(self.sent.items(), energies.tolist(), strict=False)
            if sent.where.size
        }
        short = _STEERING * along / size if size else 0.0
        return Sum(
            {name: steps[name] for name in self.layout.shapes},
            weight,
            {name: scale * growth(grown.get(name, 1.0)) for name, scale in self._scales.items()},
            self._factors_after(energies[len(self.sent) :]),
            min(max(plan.forecast + short, 0.0), _MOST_FORECAST),
        )

    def _factors_after(self, energies: Doubles) -> tuple[float, ...]:
        """Return what the factors become by the mean squares of classes: over that of all."""
        factors = np.array(self.plan.factors)
        if not energies.size or not (total := float(self._sizes @ energies)):
            return self.plan.factors
        changes = np.sqrt(energies * (self._sizes.sum() / total))
        changes = np.clip(changes, 1 / _MOST_CHANGE, _MOST_CHANGE)
        changes[self._sizes < _FEWEST] = 1.0
        factors = np.clip(factors * changes, 1 / LARGEST_FACTOR, LARGEST_FACTOR)
        return tuple(factors.tolist())

    @property
    def _half(self) -> int:
        """The largest absolute value of an exact tensor's wide number."""
        return int(self.plan.base**self._wide - 1) // 2

    @property
    def _loudest(self) -> int:
        """The largest number that digits of an energy have: nobody can say that it is more."""
        return int(self.plan.base**self._narrow - 1)

    def _dither(self, name: str, clients: Sequence[int], count: int) -> Doubles:
        """Return sums of numbers in [-1/2, 1/2) of each client; none if dither is off.

        Only round, client and tensor decide them.
        """
        total = np.zeros(count if self.plan.dither else 0)
        drawn = np.empty_like(total)
        for client in clients if self.plan.dither else ():
            _methods.uniforms(key_of(self.plan, name, self.plan.number, client), 0, drawn)
            drawn -= 0.5
            total += drawn
        return total

    @property
    def _dtype(self) -> np.dtype:
        """Of coefficients before they share a token."""
        return self.dtype if self.plan.together == 1 else np.dtype(np.uint32)

    def _in_places(self, rounded: NDArray) -> NDArray:
        """Return coefficients from 0 on as tokens, of so many places each, the lowest first."""
        plan = self.plan
        if plan.together == 1:
            return rounded
        return np.asarray(rounded.reshape(-1, plan.together) @ _powers(plan.place, plan.together))

    def _as_digits(self, numbers: NDArray, digits: int) -> NDArray:
        """Return numbers from 0 on as digits, the lowest first, each number's side by side."""
        found = np.empty((numbers.size, digits), np.int64)
        for i in range(digits):
            numbers, found[:, i] = np.divmod(numbers, self.plan.base)
        return found.reshape(-1)


class _Reader:
    """Sums of tokens in the order in which `TokenCodec.encode` has them."""

    def __init__(self, sums: NDArray, plan: TokenPlan) -> None:
        self._sums, self._plan = sums, plan

    def places(self, size: int) -> NDArray:
        """Return sums of coefficients from 0 on."""
        plan = self._plan
        numbers = self._take(-(-size // plan.together))
        if plan.together == 1:
            return numbers
        found = np.empty((numbers.size, plan.together), np.uint32)
        for i in range(plan.together):
            numbers, found[:, i] = np.divmod(numbers, plan.place)
        self.require(int(numbers.max(initial=0)), 0)
        return found.reshape(-1)[:size]

    def numbers(self, size: int, digits: int, clients: int) -> NDArray:
        """Return sums of so many clients' numbers of so many digits, int64."""
        total = self._take(size * digits).astype(np.int64)
        self.require(int(total.max(initial=0)), clients * (self._plan.base - 1))
        return np.asarray(total.reshape(size, digits) @ _powers(self._plan.base, digits))

    def _take(self, size: int) -> NDArray:
        taken, self._sums = self._sums[:size], self._sums[size:]
        return taken

    def require(self, largest: int, most: int) -> None:
        """Raise `CorruptStream` if the largest sum in a place is more than ``most``."""
        if largest > most:
            raise CorruptStream(f"a sum in a place of tokens is {largest}; have {most} at most")


def _powers(base: int, count: int) -> NDArray:
    """Return base^0, base^1, ... as int64."""
    return np.array([base**i for i in range(count)], np.int64)
