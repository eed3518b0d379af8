"""A client's update as tokens of a ring, and the mean update from the sum of clients' tokens.

Of n clients each adds a number from 0 to floor((2^b - 1) / n) in a token of b bits. So the sum of n
that keep to it is below 2^b, and a ring of b bits cannot overflow. An element is rounded to one of
2c + 1 values, c = floor((2^b - 1) / 2n). Numbers that need more go as digits below
floor((2^b - 1) / n) + 1, one in a token. With x what a client has trained from what it began with,
r its residual, w its weight, W the plan's cap and g a tensor's grid:

    t = clip(round(w / W (x + r) / g), -c, c)      mean = W g sum(t) / sum(w)
    r = x + r - W / w g t

Rounding is to the nearest, so that where nothing was clipped the mean of m clients is off by
m / 2 W g / sum(w) at most, and clients' residuals hold all of that.

Whole numbers and running statistics are exact but for a grid of 2^-24 of what the plan says that
they may move. Along with the update go the weight and for each tensor the mean square of its tokens
before they are clipped, from which the grids of the next round follow. A client says no more than
n/2 or 8 times what is expected, so that one that has moved far does not take grids away from the
others.

All of that is of clients that keep to it. Nobody reads what one adds: other digits make a sum that
is refused, or another mean.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, Self

import msgspec
import numpy as np

from fedsz.arrays import COMPLEX_DTYPES, DTYPE_NAMES, Buffer, Layout, NDArray
from fedsz.codecs import _ring
from fedsz.codecs.spread import energy
from fedsz.core.clipping import stepped
from fedsz.core.partition import PARAMETERS, is_lossy
from fedsz.errors import ConfigError, CorruptStream, DivergedUpdate, ModelMismatch
from fedsz.privacy.ring import MAX_BITS, MIN_BITS, Ring, Tokens

MAX_BYTES: Final = 1 << 20  # of a plan
MAX_TENSORS: Final = 1 << 16
MAX_CLIENTS: Final = 1 << 20
NUMBERS: Final = 1 << 24  # values that a number in digits has, or more
MAX_WEIGHT: Final = NUMBERS - 1  # of a client
_MOST_ENERGY: Final = 8.0  # of a client, times what is expected
_ALL: Final = np.empty(0, np.int64)  # positions: `_ring` takes none for all elements
_NO_DITHER: Final = np.empty(0)
_WEIGHTS: Final = 2  # of a client's weight at most, over the mean of the round before

_STEP: Final = 0.1  # of the weights' root mean square: the first step, by guess
_LEAST: Final = 0.1  # of that over all tensors: for those that begin with zeros
_WHOLE: Final = float(1 << 16)  # that whole numbers may move, such as counters
_ROOM: Final = 8.0  # times the largest element that running statistics may move
_FURTHER: Final = 1.0  # that they may move beyond that
_SLOWEST: Final = 0.2  # that a scale is multiplied with after a round, at least
_FARTHEST: Final = 100.0  # times the first guess, whatever clients have said
_LARGEST: Final = 1e30
_SMALLEST: Final = 1e-15  # or the scale of a tensor that does not train would become 0


# Squares, products and quotients of two of them are floats.
_Scale = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]


class TokenPlan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """The plan of a round without noise in the sum; the server makes it, and everybody may know it.

    Attributes:
        bits: of the ring.
        clients: whose tokens may be added up, at most.
        cap: the largest weight; a client of more counts as one of this.
        scales: of each tensor, in the model's order: the root mean square of the elements that
            clients have to send; of an exact tensor, how far an element may move.

    Raises:
        ConfigError: a ring of so many bits is too small for the clients.
    """

    bits: Annotated[int, msgspec.Meta(ge=MIN_BITS, le=MAX_BITS)]
    clients: Annotated[int, msgspec.Meta(ge=1, le=MAX_CLIENTS)]
    cap: Annotated[int, msgspec.Meta(ge=1, le=MAX_WEIGHT)]
    scales: Annotated[tuple[_Scale, ...], msgspec.Meta(max_length=MAX_TENSORS)]

    def __post_init__(self) -> None:
        if self.most < 1:
            need = (2 * self.clients).bit_length()
            what = f"values of {self.clients} clients need a ring of {need} bits or more"
            raise ConfigError(f"{what}, got {self.bits}")

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Return the plan that these bytes are, in MessagePack.

        Raises:
            CorruptStream: they are no such plan, or more than `MAX_BYTES`.
        """
        if len(data) > MAX_BYTES:
            raise CorruptStream(f"a plan of {len(data)} bytes; have {MAX_BYTES} at most")
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as err:
            raise CorruptStream(f"no plan of a secure sum: {err}") from err

    @property
    def most(self) -> int:
        """The most steps of the grid that an element may have, either way: c above."""
        return ((1 << self.bits) - 1) // (2 * self.clients)

    @property
    def base(self) -> int:
        """What digits are below."""
        return ((1 << self.bits) - 1) // self.clients + 1

    @property
    def spread(self) -> float:
        """The root mean square that elements are to have, in steps of the grid.

        A grid of so many steps in a root mean square clips 1 to 3 % of them: fewer steps lose more
        to rounding, and more lose more to clipping.
        """
        return self.most / (1.0 + 0.65 * math.log2(self.most + 1.0))

    @property
    def digits(self) -> int:
        """How many digits a number takes."""
        count, room = 1, self.base
        while room < NUMBERS:
            count, room = count + 1, room * self.base
        return count


# msgspec learns a type on its first use. Another thread that uses it meanwhile ends the process.
msgspec.msgpack.Decoder(TokenPlan)


class Encoded(NamedTuple):
    """What a client sends, and what it keeps.

    Attributes:
        tokens: below 2^bits, in the smallest of uint8, uint16 and uint32 that holds them.
        residual: by tensor, what was not sent, float32.
        clipped: how many elements were clipped.
    """

    tokens: Tokens
    residual: dict[str, NDArray]
    clipped: int


class Sum(NamedTuple):
    """What a sum of tokens says.

    Attributes:
        step: the mean update by tensor, in float32 or float64; 0 everywhere if all weights are 0.
        weight: the sum of the clients' weights.
        scales: by tensor, of the next round's grids; none if these do not follow from the sum.
    """

    step: dict[str, NDArray]
    weight: int
    scales: dict[str, float]


class TokenCodec:
    """Turns updates into tokens as a plan says, and their sum into the mean update.

    Args:
        plan: of the round.
        start: the model that training begins with.

    Attributes:
        sent: by tensor that is not exact, the distance between two tokens' values.
        exact: the names of the other tensors.
        dtype: of tokens.

    Raises:
        ConfigError: the model has complex numbers.
        ModelMismatch: the plan is for another model.
    """

    def __init__(self, plan: TokenPlan, start: Mapping[str, NDArray]) -> None:
        self.plan, self._start, self.layout = plan, start, (layout := Layout.of(start))
        require_real(layout)
        if len(plan.scales) != len(layout.shapes):
            raise ModelMismatch("the plan of a secure sum is for another model")
        self._scales = dict(zip(layout.shapes, plan.scales, strict=True))
        self._sizes = {name: math.prod(shape) for name, shape in layout.shapes.items()}
        self.exact = [name for name in layout.shapes if is_exact(name, layout)]
        self.sent = {
            name: scale / plan.spread
            for name, scale in self._scales.items()
            if name not in self.exact
        }
        self.dtype = Ring(plan.bits).dtype
        self._largest = plan.base**plan.digits - 1  # number in digits
        self._most_energy = min(max(plan.clients / 2, 2.0), _MOST_ENERGY)

    @property
    def count(self) -> int:
        """How many tokens each client sends."""
        numbers = sum(self._sizes[name] for name in self.exact) + 1 + len(self.sent)
        return self._elements + numbers * self.plan.digits

    @property
    def _elements(self) -> int:
        """How many of these are elements that are rounded to the grid."""
        return sum(self._sizes[name] for name in self.sent)

    def encode(
        self, trained: Mapping[str, NDArray], weight: int, residual: Mapping[str, NDArray]
    ) -> Encoded:
        """Return the tokens of a client's update.

        Args:
            trained: the model after training.
            weight: of the client, such as its number of examples, 0 or more.
            residual: `Encoded.residual` of the client's round before; those of other shapes do not
                count.

        Raises:
            DivergedUpdate: an element of a floating-point tensor is not finite, or moves further
                than float32 has numbers.
            ModelMismatch: it has another layout than the model before.
        """
        plan, start, left, clipped = self.plan, self._start, {}, 0
        self.layout.check({name: x.shape for name, x in trained.items()})
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
        numbers, half = [np.empty(0, np.int64)], self._largest // 2
        for name in self.exact:
            v = step_of(name, trained[name], start[name], np.float64)
            going = np.clip(np.rint(v * (part * half / self._scales[name])), -half, half)
            numbers.append(going.astype(np.int64) + half)
        loudness = [min(energy / self._most_energy, 1.0) for energy in energies]
        numbers.append(np.array([used, *(int(x * self._largest) for x in loudness)], np.int64))
        digits = self._in_digits(np.concatenate(numbers))
        return Encoded(np.concatenate([rounded, digits.astype(self.dtype)]), left, clipped)

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
        rounded, numbers = sums[: self._elements], self._numbers(sums[self._elements :], clients)
        wholes = {}
        for name in self.exact:
            here, numbers = numbers[: self._sizes[name]], numbers[self._sizes[name] :]
            wholes[name] = here - clients * (self._largest // 2)
        weight, energies = int(numbers[0]), numbers[1:] / (self._largest * clients)
        energies *= self._most_energy
        if weight > clients * plan.cap:
            what = f"weights of {weight} in all, of {clients} clients up to {plan.cap}"
            raise CorruptStream(what)
        factor = plan.cap / weight if weight else 0.0
        steps: dict[str, NDArray] = {}
        for name, spacing in self.sent.items():
            y, most = np.zeros(self._sizes[name], np.float32), clients * plan.most
            grid = _ALL, np.full(y.size, spacing), _NO_DITHER
            here, rounded = rounded[: y.size], rounded[y.size :]
            _require(_ring.dequantise(here, *grid, most, factor, y), 2 * most)
            steps[name] = y.reshape(self.layout.shapes[name])
        for name, whole in wholes.items():
            step = whole * (factor * self._scales[name] / (self._largest // 2))
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

    def _in_digits(self, numbers: NDArray) -> NDArray:
        """Return numbers from 0 on as digits, the lowest first, each number's side by side."""
        found = np.empty((numbers.size, self.plan.digits), np.int64)
        for i in range(self.plan.digits):
            numbers, found[:, i] = np.divmod(numbers, self.plan.base)
        return found.reshape(-1)

    def _numbers(self, sums: Tokens, clients: int) -> NDArray:
        """Return the sums of numbers, int64, from those of so many clients' digits."""
        total = sums.astype(np.int64)
        _require(int(total.max(initial=0)), clients * (self.plan.base - 1))
        powers = np.array([self.plan.base**i for i in range(self.plan.digits)], np.int64)
        return np.asarray(total.reshape(-1, self.plan.digits) @ powers)


def _require(largest: int, most: int) -> None:
    """Raise `CorruptStream` if the largest sum of tokens is more than ``most``."""
    if largest > most:
        raise CorruptStream(f"a sum of tokens is {largest}; have {most} at most")


class Learned(msgspec.Struct):
    """What a run's rounds have told, in types that JSON has.

    Attributes:
        cap: the largest weight of a client, 1 to `MAX_WEIGHT`.
        scales: by tensor; see `fedsz.privacy.quantizer`.
    """

    cap: int
    scales: dict[str, float] = {}

    def codec(self, model: Mapping[str, NDArray], clients: int, bits: int) -> TokenCodec:
        """Return the codec of the next round, with its plan.

        Args:
            model: that clients begin with.
            clients: that take part, at most.
            bits: of the ring, 2 to 32.

        Raises:
            ConfigError: the ring is too small for so many clients, or the model has complex
                numbers.
        """
        return TokenCodec(TokenPlan(bits, clients, self.cap, scales_of(model, self.scales)), model)

    def learn(self, found: Sum, clients: int) -> None:
        """Go by what the sum of a round has told, of so many clients."""
        before, mean = self.cap, found.weight / clients
        self.cap = min(max(math.ceil(_WEIGHTS * mean), 1), MAX_WEIGHT)
        self.scales = {name: x * before / self.cap for name, x in found.scales.items()}


def about(plan: msgspec.Struct, start: Mapping[str, NDArray]) -> bytes:
    """Return SHA-256 over a plan and the model that training begins with, in order.

    Updates from other models, or in other steps, must not be added up: the largest would be all
    that is seen of the sum.
    """
    hashed = hashlib.sha256(msgspec.msgpack.encode(plan))
    for name, x in start.items():
        head = f"{name}\0{DTYPE_NAMES[x.dtype]}\0{','.join(map(str, x.shape))}\0"
        hashed.update(head.encode("utf-8", "surrogatepass"))
        hashed.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
    return hashed.digest()


def require_real(layout: Layout) -> None:
    """Raise `ConfigError` if a tensor is complex: such have no sum of tokens."""
    for name, dtype in layout.dtypes.items():
        if dtype in COMPLEX_DTYPES:
            raise ConfigError(f"{name!r} is {dtype}: secure sums have no complex numbers")


def is_exact(name: str, layout: Layout) -> bool:
    """Say whether a tensor goes exactly, in wide numbers: all but floating-point parameters."""
    x = np.broadcast_to(np.zeros((), layout.dtypes[name]), layout.shapes[name])
    return not is_lossy(name, x, rule=PARAMETERS, threshold=0)


def scales_of(
    arrays: Mapping[str, NDArray], before: Mapping[str, float] | None = None
) -> tuple[float, ...]:
    """Return the scales of a round's plan.

    Args:
        arrays: the model that clients begin with.
        before: what `Sum.scales` said after the last round; None before the first.
    """
    layout, known = Layout.of(arrays), before or {}
    sizes = {
        name: energy(x, double=True) for name, x in arrays.items() if not is_exact(name, layout)
    }
    elements = sum(arrays[name].size for name in sizes)
    finite = [size for size in sizes.values() if math.isfinite(size)]
    whole = math.sqrt(sum(finite) / elements) if elements else 0.0
    found = []
    for name, x in arrays.items():
        if name not in sizes:
            counts = x.dtype.kind in "iub"
            found.append(_WHOLE if counts else min(_ROOM * _largest(x) + _FURTHER, _LARGEST))
            continue
        rms = math.sqrt(sizes[name] / x.size) if math.isfinite(sizes[name]) else whole
        guess = _STEP * max(rms, _LEAST * whole) or _STEP
        scale = min(known.get(name, guess), _FARTHEST * guess)
        found.append(min(max(scale, _SMALLEST), _LARGEST))
    return tuple(found)


def growth(energy: float) -> float:
    """Return what a scale is multiplied with where tokens had so much of the expected energy."""
    return max(math.sqrt(energy), _SLOWEST)


def _largest(x: NDArray) -> float:
    """Return the largest absolute value of the finite elements, 0 of none."""
    values = np.abs(x.astype(np.float64)).reshape(-1)
    return float(values[np.isfinite(values)].max(initial=0.0))


def fed_back(name: str, x: NDArray, base: NDArray, before: NDArray | None) -> NDArray:
    """Return x - base and what a client has kept of the round before, as flat float32.

    Where the sum is not finite, and x - base is, what was kept is forgotten.

    Raises:
        DivergedUpdate: x - base is not finite.
    """
    kept = np.zeros(0, np.float32)
    if before is not None and before.size == x.size:
        kept = _flat(before.astype(np.float32, copy=False))
    if not x.dtype == base.dtype == np.float32:
        step = step_of(name, x, base, np.float32)
        with np.errstate(over="ignore"):
            y = step + kept if kept.size else step
        return y if np.isfinite(y).all() else step
    y = np.empty(x.size, np.float32)
    beside = [kept, kept[:0]] if kept.size else [kept]
    if not any(_ring.add_step(_flat(x), _flat(base), one, y) for one in beside):
        raise DivergedUpdate(f"{name!r} has moved by what is not finite; nothing is sent")
    return y


def _flat(x: NDArray) -> NDArray:
    """Return an array as natives take it."""
    return np.require(x, requirements=["C", "A"]).reshape(-1)


def step_of(name: str, x: NDArray, base: NDArray, dtype: Any) -> NDArray:
    """Return x - base as flat floats of a dtype.

    Raises:
        DivergedUpdate: it is not finite.
    """
    if x.dtype.kind in "iub":  # of 8 bytes, modulo 2^64
        return (x.reshape(-1).astype(np.int64) - base.reshape(-1).astype(np.int64)).astype(dtype)
    wide = np.result_type(dtype, np.float64 if x.dtype == np.float64 else dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = x.reshape(-1).astype(wide) - base.reshape(-1).astype(wide)
        step: NDArray = difference.astype(dtype)
    if not np.isfinite(step).all():
        raise DivergedUpdate(f"{name!r} has moved by what is not finite; nothing is sent")
    return step


def moved(x: NDArray, step: NDArray) -> NDArray:
    """Return a tensor after a mean step, in its own dtype; whole numbers rounded, none wrapped."""
    if x.dtype.kind in "iub":
        return _counted(x, np.rint(step))
    return stepped(x, step.reshape(-1))


def _counted(x: NDArray, step: NDArray) -> NDArray:
    """Return x + step of whole numbers, as Python adds them: int64 would lack some of uint64's."""
    low, high = (0, 1) if x.dtype.kind == "b" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    pairs = zip(x.reshape(-1).tolist(), step.reshape(-1).tolist(), strict=True)
    sums = [min(max(a + int(d), int(low)), int(high)) for a, d in pairs]
    return np.array(sums, x.dtype).reshape(x.shape)
