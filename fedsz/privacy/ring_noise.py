"""Differential privacy in the ring: each client adds a share of the noise that a sum is to have.

The distributed discrete Gaussian (Kairouz, Liu and Steinke, ICML 2021; algorithm 1 without the
rotation). All floats of an update are one vector x of d numbers. With C the clipping norm, S what
it is in steps of the one grid, and c a limit in steps:

    y = clip(S / C x min(1, C / |x|), -c, c)        by element, which makes no norm larger
    t = round(y) + noise of sigma                   modulo 2^bits; mean = C / S sum(t) / survivors

Each element is rounded up or down at random, so that its mean is y. All are rounded anew until

    |round(y)|^2 <= D^2 = S^2 + d/4 + S + sqrt(d)/2     (equation 2 there, beta = exp(-1/2))

so D is the most that a client moves the sum. What is accounted is the noise of the fewest honest
clients: of the fewest survivors with which a round counts, less those that may collude, who know
what they have added. Others only add to it.

Noised tokens wrap around in the ring, and are not clipped: the sum of wrapped tokens follows from
the sum that is accounted for, and a sum of clipped ones does not. Clients' values cannot overflow
the ring, for that holds ``c`` of each; above them it has room for the noise of the sum, which goes
beyond that with a probability of 2^-`OVERFLOW` a round. Then an element of the model is wrong, and
nothing is told.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from fedsz.arrays import Layout, NDArray, chunks
from fedsz.errors import ConfigError, CorruptStream
from fedsz.privacy.graph import Plan
from fedsz.privacy.noise import RandomBytes, add_floats, floats_in, noise, norm_of
from fedsz.privacy.quantizer import Encoded, Sum, require_real
from fedsz.privacy.ring import MAX_BITS, Ring, Tokens

OVERFLOW: Final = 40  # bits
MOST_GROWTH: Final = 1.5  # of the noise, by rounding: a coarser grid is refused
# The largest element, before noise: so many times one client's noise, or if that is more, so many
_NOISES: Final = 2.0
_MEANS: Final = 8.0  # times the elements of an update of the norm whose elements are all alike.
LEAST_SIGMA: Final = 2.0  # steps
# Times the noise that is asked for. A sum of discrete Gaussians is none, but its Renyi divergences
# are at most those of a Gaussian of nearly its deviation: proposition 14 there. Of `LEAST_SIGMA`
# and more, of d numbers and up to 2^14 clients, what it lacks is below this.
ABOVE: Final = 1 + 1e-6
_MOST_STEPS: Final = 1 << 30  # of a norm
_TRIES: Final = 64  # of rounding, each of which is taken with a probability of 1 - exp(-1/2)
_SHORTER: Final = 1 - 1e-9  # than the norm: what sums in float64 lose


class NoisedPlan(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The plan of a round whose clients add noise to the sum; nobody sends it.

    The terms of the round and the noise that is asked for say all of it.

    Attributes:
        bits: of the ring.
        norm: that each update is clipped to, in the unit of the weights.
        multiplier: deviation of the sum's noise, in norms: of the fewest honest survivors.
    """

    bits: int
    norm: float
    multiplier: float


class NoiseShare(NamedTuple):
    """What each client adds, in steps of the grid; server and clients find the same.

    Attributes:
        norm: that updates are clipped to: S above.
        limit: of an element, before the noise: c above.
        sigma: of the noise of each client.
        moves: the most that a client moves the sum: D above.
    """

    norm: int
    limit: int
    sigma: float
    moves: float

    @property
    def growth(self) -> float:
        """What the noise is multiplied with because updates are rounded."""
        return self.moves / self.norm

    def bits(self, clients: int, elements: int) -> int:
        """Return how many bits a ring needs for the values and the noise of so many."""
        # An element of noise is beyond r deviations with a probability of 2 exp(-r^2 / 2).
        reach = math.sqrt(2 * math.log(2) * (OVERFLOW + 1 + elements.bit_length()))
        largest = clients * self.limit + reach * self.sigma * math.sqrt(clients)
        return math.ceil(largest).bit_length() + 1


def share_of(plan: NoisedPlan, elements: int, members: Plan) -> NoiseShare:
    """Return what each of a round's members is to add, on the finest grid that the ring has.

    Args:
        plan: of the round.
        elements: floats of the model: d above, at least 1.
        members: what follows from their number.

    Raises:
        ConfigError: no survivor is honest for sure; or on the grids of this ring, rounding moves
            the sum by more than half of what clients do.
    """
    honest = members.least - members.corrupt
    if honest < 1:
        few = f"{members.least} survivors of which {members.corrupt} may collude"
        raise ConfigError(f"noise of {few} hides nothing: lower corrupt or dropout")

    def at(norm: int) -> NoiseShare:
        moves = math.sqrt(norm**2 + elements / 4 + norm + math.sqrt(elements) / 2)
        sigma = ABOVE * plan.multiplier * moves / math.sqrt(honest)
        limit = math.ceil(max(_NOISES * sigma, _MEANS * norm / math.sqrt(elements)))
        return NoiseShare(norm, min(norm, limit), sigma, moves)

    def is_fine(norm: int) -> bool:
        share = at(norm)
        return share.sigma >= LEAST_SIGMA and share.growth <= MOST_GROWTH

    least = _first(is_fine)
    if (need := at(least).bits(members.clients, elements)) > plan.bits:
        what = f"noise of {plan.multiplier:.4g} norms on {elements} numbers"
        ring = f"a ring of {need} bits" if need <= MAX_BITS else "a larger ring than there is"
        raise ConfigError(f"{what} of {members.clients} clients needs {ring}, got {plan.bits}")
    return at(_first(lambda norm: at(norm).bits(members.clients, elements) > plan.bits) - 1)


def _first(holds: Callable[[int], bool]) -> int:
    """Return the first norm in steps for which something holds, and for all above."""
    low, high = 0, _MOST_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class NoisedCodec:
    """Turns updates into noised tokens as a plan says, and their sum into the mean update.

    Whole numbers and bools do not train: nothing is sent of them.

    Args:
        plan: of the round.
        start: the model that training begins with; where it is not finite, nothing moves.
        members: what follows from the number of members.

    Attributes:
        sent: the names of tensors of floats.
        count: how many tokens each client sends: one for each float.
        share: what each client adds.

    Raises:
        ConfigError: the model has no floats, or complex numbers; or as `share_of`.
    """

    def __init__(self, plan: NoisedPlan, start: Mapping[str, NDArray], members: Plan) -> None:
        self._layout, self.plan, self._start = Layout.of(start), plan, start
        require_real(self._layout)
        self.count = floats_in(start)
        self.sent = [name for name, x in start.items() if x.dtype.kind not in "iub"]
        if not self.count:
            raise ConfigError("a model without floats has nothing that noise could hide")
        self.share = share_of(plan, self.count, members)

    def encode(self, trained: Mapping[str, NDArray], random: RandomBytes = os.urandom) -> Encoded:
        """Return the tokens of a client's update, and nothing to feed back.

        Args:
            trained: the model after training.
            random: of roundings and noise.

        Raises:
            DivergedUpdate: the update, or its norm in float64, is not finite.
            ModelMismatch: it has another layout than the model before.
        """
        share, steps = self.share, np.zeros(self.count, np.float64)
        add_floats(trained, self._start, steps)
        steps *= _SHORTER * share.norm / max(norm_of(steps), self.plan.norm)
        limited = int(np.count_nonzero(np.abs(steps) > share.limit))
        np.clip(steps, -share.limit, share.limit, out=steps)
        tokens = rounded(steps, share.moves, random)
        tokens += noise(tokens.size, share.sigma, random)
        ring = Ring(self.plan.bits)
        return Encoded((tokens & ((1 << ring.bits) - 1)).astype(ring.dtype), {}, limited)

    def decode(self, sums: Tokens, clients: int) -> Sum:
        """Return what the sum of so many clients' tokens modulo 2^bits says.

        Args:
            sums: as many as `count`.
            clients: whose tokens are in the sum.

        Raises:
            CorruptStream: there are more or fewer tokens.
        """
        if sums.shape != (self.count,):
            raise CorruptStream(f"a sum has {self.count} tokens, got {sums.shape}")
        width = 1 << self.plan.bits
        total = sums.astype(np.int64)
        total[total >= width // 2] -= width
        mean = total * (self.plan.norm / self.share.norm / clients)
        steps, at = {}, 0
        for name, shape in self._layout.shapes.items():
            size = math.prod(shape) if name in self.sent else 0
            here = mean[at : at + size] if size else np.zeros(math.prod(shape))
            steps[name], at = here.reshape(shape), at + size
        return Sum(steps, clients, {})


def rounded(y: NDArray, most: float, random: RandomBytes) -> NDArray:
    """Return flat float64 rounded to whole numbers, int64, of a norm of at most ``most``.

    Each goes up with the probability of its fraction. Should no try keep to the norm, all go
    towards 0, which makes it no larger.
    """
    for _ in range(_TRIES):
        out = np.empty(y.size, np.int64)
        for here in chunks(y.size):
            bits = np.frombuffer(random(8 * y[here].size), np.uint64)
            low = np.floor(y[here])
            up = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 < y[here] - low
            out[here] = low.astype(np.int64) + up
        if float(np.vdot(out.astype(np.float64), out.astype(np.float64))) <= most**2:
            return out
    return np.trunc(y).astype(np.int64)
