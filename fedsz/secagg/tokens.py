"""A client's update as tokens of a ring, and the mean update from the sum of clients' tokens.

With x what a client has trained from what it began with, r its residual, w its weight, W the
plan's cap, g a coefficient's grid and c the plan's `most`:

    y = coefficients of x + r
    t = clip(round(w / W y / g), -c, c)            mean = W g sum(t) / sum(w)
    r = x + r less the tensor of coefficients W / w g t, of those that are sent

Rounding is to the nearest, so that where nothing was clipped the mean of m clients is off by
m / 2 W g / sum(w) at most, and clients' residuals hold all of that. With dither u, uniform in
[-1/2, 1/2), t is of round(w / W y / g + u), and t - u is what counts: then the error says nothing
of y (subtractive dither; Schuchman 1964).

Whole numbers and running statistics are exact but for a grid of 2^-24 of what the plan says that
they may move. Along with the update go the weight and, for each tensor, the mean square of the
tokens before they are clipped; the next scales follow from those. Of n clients, none can say more
than n/2 or 8 times what is expected, so that one that lies cannot take scales away from the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Layout, NDArray, cast, saturate
from fedsz.codecs import _methods, _ring
from fedsz.errors import ConfigError, CorruptStream, DivergedUpdate
from fedsz.methods.eigen import History
from fedsz.secagg.packing import Tokens
from fedsz.secagg.scales import growth, is_exact
from fedsz.secagg.selection import key_of, select
from fedsz.secagg.token_plan import EXACT_VALUES, TokenPlan

_ENERGIES: Final = 1 << 12  # values that an energy has, or more
_MOST_ENERGY: Final = 8.0  # of a client, times what is expected

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
    """

    step: dict[str, NDArray]
    weight: int
    scales: dict[str, float]


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
        self._scales = dict(zip(layout.shapes, plan.scales, strict=True))
        self._wide = plan.digits(EXACT_VALUES)
        self._narrow = plan.digits(_ENERGIES)
        self._most_energy = min(max(plan.clients / 2, 2.0), _MOST_ENERGY)

    @property
    def count(self) -> int:
        """How many tokens each client sends."""
        whole = sum(math.prod(self.layout.shapes[name]) for name in self.exact)
        aside = self.plan.digits(self.plan.cap + 1) + len(self.sent) * self._narrow
        return -(-self._coefficients // self.plan.together) + whole * self._wide + aside

    @property
    def _coefficients(self) -> int:
        return sum(sent.where.size for sent in self.sent.values())

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
        client: int = 0,
    ) -> Encoded:
        """Return the tokens of a client's update.

        Args:
            trained: the model after training.
            start: the model that training began with.
            weight: of the client, such as its number of examples, 0 or more.
            residual: `Encoded.residual` of the client's round before; those of other shapes do not
                count.
            client: tells its dither from others', 0 to 2^64 - 1.

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
        energies: list[int] = []
        rounded = np.zeros(-(-self._coefficients // plan.together) * plan.together, self._dtype)
        free = rounded
        for name, sent in self.sent.items():
            y = _fed_back(name, trained[name], start[name], residual.get(name))
            if sent.basis is not None:
                y = sent.basis.coefficients(y)
            here, free = free[: sent.where.size], free[sent.where.size :]
            drawn = self._dither(name, (client,), here.size)
            grid = sent.positions(y.size), sent.grid, drawn
            energy, far = _ring.quantise(y, *grid, part, plan.most, here)
            mean = energy / max(here.size, 1) / plan.spread**2
            energies.append(int(min(mean / self._most_energy, 1.0) * self._loudest))
            clipped += far
            kept = y if sent.basis is None else sent.basis.tensor(y)
            left[name] = kept.reshape(self.layout.shapes[name])
        parts = [self._in_places(rounded)]
        for name in self.exact:
            v = _step(name, trained[name], start[name], np.float64)
            half = self._half
            moved = np.clip(np.rint(v * (part * half / self._scales[name])), -half, half)
            parts.append(self._as_digits(moved.astype(np.int64) + half, self._wide))
        parts.append(self._as_digits(np.array([used]), plan.digits(plan.cap + 1)))
        parts.append(self._as_digits(np.array(energies, np.int64), self._narrow))
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
        energies = left.numbers(len(self.sent), self._narrow, count) / (self._loudest * count)
        energies *= self._most_energy
        if weight > count * plan.cap:
            raise CorruptStream(f"weights of {weight} in all, of {count} clients up to {plan.cap}")
        factor = plan.cap / weight if weight else 0.0
        for name, sent in self.sent.items():
            here, rounded = rounded[: sent.where.size], rounded[sent.where.size :]
            y = np.zeros(math.prod(self.layout.shapes[name]), np.float32)
            grid = sent.positions(y.size), sent.grid, self._dither(name, clients, here.size)
            most = count * plan.most
            largest = _ring.dequantise(here, *grid, most, factor, y)
            left.require(largest, 2 * most)
            step = y if sent.basis is None else sent.basis.tensor(y)
            steps[name] = step.reshape(self.layout.shapes[name])
        for name, whole in wholes.items():
            step = whole * (factor * self._scales[name] / self._half)
            steps[name] = step.reshape(self.layout.shapes[name])
        grown = {
            name: energy
            for (name, sent), energy in zip(self.sent.items(), energies.tolist(), strict=True)
            if sent.where.size
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


def _fed_back(name: str, x: NDArray, base: NDArray, before: NDArray | None) -> NDArray:
    """Return x - base and what a client has kept of the round before, as flat float32.

    Raises:
        DivergedUpdate: x - base is not finite.
    """
    kept = np.zeros(0, np.float32)
    if before is not None and before.size == x.size:
        kept = _flat(before.astype(np.float32, copy=False))
    if not x.dtype == base.dtype == np.float32:
        step = _step(name, x, base, np.float32)
        return step + kept if kept.size else step
    y = np.empty(x.size, np.float32)
    if not _ring.add_step(_flat(x), _flat(base), kept, y):
        raise DivergedUpdate(f"{name!r} has moved by what is not finite; nothing is sent")
    return y


def _flat(x: NDArray) -> NDArray:
    """Return an array as natives take it."""
    return np.require(x, requirements=["C", "A"]).reshape(-1)


def _step(name: str, x: NDArray, base: NDArray, dtype: Any) -> NDArray:
    """Return x - base as flat floats of a dtype.

    Raises:
        DivergedUpdate: it is not finite.
    """
    if x.dtype.kind in "iub":
        return _whole_step(x, base).astype(dtype)
    wide = np.result_type(dtype, np.float64 if x.dtype == np.float64 else dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = x.reshape(-1).astype(wide) - base.reshape(-1).astype(wide)
        step: NDArray = difference.astype(dtype)
    if not np.isfinite(step).all():
        raise DivergedUpdate(f"{name!r} has moved by what is not finite; nothing is sent")
    return step


def _whole_step(x: NDArray, base: NDArray) -> NDArray:
    """Return x - base of whole numbers, int64: of 8 bytes, modulo 2^64."""
    x, base = x.reshape(-1), base.reshape(-1)
    if x.dtype.itemsize < 8:
        return x.astype(np.int64) - base.astype(np.int64)
    step: NDArray = np.subtract(x, base).view(np.int64)
    return step


def moved(x: NDArray, step: NDArray) -> NDArray:
    """Return a tensor after a mean step, in its own dtype; whole numbers rounded, none wrapped."""
    if x.dtype.kind in "iub":
        return _counted(x, np.rint(step))
    with np.errstate(over="ignore"):
        sums = np.add(x, step, dtype=np.result_type(step.dtype, np.float32))
    saturate(sums, x.dtype)
    return cast(sums, x.dtype)


def _counted(x: NDArray, step: NDArray) -> NDArray:
    """Return x + step of whole numbers, as Python adds them: int64 would lack some of uint64's."""
    low, high = (0, 1) if x.dtype.kind == "b" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    pairs = zip(x.reshape(-1).tolist(), step.reshape(-1).tolist(), strict=True)
    sums = [min(max(a + int(d), int(low)), int(high)) for a, d in pairs]
    return np.array(sums, x.dtype).reshape(x.shape)
