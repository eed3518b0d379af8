"""Plans for the rounds of a run, one after the other, by what the sums so far have told.

Where a run has fewer than `DENSE` bits for each parameter and round, a round sends a share of the
coefficients, of few values each. The first round sends all: nothing is known of their sizes yet,
and no later one moves a model as far. All weigh alike in it, for by a cap that is far off, few
values say nothing. The rounds after it send more than late ones, for what early rounds leave out,
all later ones are behind by. Over the run's rounds, that is saved again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Final

import msgspec

from fedsz.arrays import Layout, NDArray
from fedsz.errors import ConfigError
from fedsz.methods import History
from fedsz.secagg.scales import scales_of
from fedsz.secagg.selection import LONGEST
from fedsz.secagg.token_plan import (
    CLASSES,
    MAX_BITS,
    MAX_WEIGHT,
    TokenPlan,
    densest,
    layout_digest,
)
from fedsz.secagg.tokens import Sum, TokenCodec

DENSE: Final = 2  # bits for each parameter, from which on a run sends all coefficients
ROUNDS: Final = 60  # that a run has, where nobody says how many

_LEAST: Final = 0.01  # bits
_MOST: Final = 1  # either way, of each coefficient
_SPARED: Final = 0.5  # of the bits, at least, whatever the first round has taken
_SURGE: Final = 1.5  # times the bits of late rounds that early ones take beyond those, at first,
_SURGE_ROUNDS: Final = 25.0  # and 1/e of that after so many
_WEIGHTS: Final = 2  # of a client's weight at most, over the mean of the round before
_ROOM: Final = 0.01  # of the tokens, more, for turns that come together
_ROOM_LEAST: Final = 32  # tokens
_SHORTER: Final = 0.5  # of a share that there is no room for, at least
_NEAR_LEAST: Final = 2.0  # times the share of the longest turns, which no round sends less than


class Learned(msgspec.Struct):
    """What a run's rounds have told, in types that JSON has.

    Attributes:
        cap: the largest weight of a client.
        seed: of what is sent in turn, 0 to 2^63 - 1.
        done: rounds that counted.
        scales: by tensor; see `fedsz.secagg.scales`.
        factors, forecast: as `TokenPlan` has them.
    """

    cap: int
    seed: int
    done: int = 0
    scales: dict[str, float] = {}
    factors: tuple[float, ...] = CLASSES * (1.0,)
    forecast: float = 0.2


class Planner:
    """Plans a run's rounds.

    Args:
        bits: for each parameter and round: of the ring, 2 to 32; or fewer, for a share of the
            coefficients in the basis of what broadcasts have shown.
        share: of the parameters that a round sends, in turn; 1 where there are few bits.
        known: what earlier rounds have told; kept up to date.
        rounds: that the run has, about: few bits are the mean of so many, and of later ones.

    Attributes:
        sparse: whether there are few bits.

    Raises:
        ConfigError: one of these is out of range.
    """

    def __init__(self, bits: float, share: float, known: Learned, rounds: int = ROUNDS) -> None:
        self.sparse = bits < DENSE
        if not (_LEAST <= bits < DENSE or (bits <= MAX_BITS and bits == int(bits))):
            what = f"bits are {_LEAST} to {DENSE}, or a whole number to {MAX_BITS}; got {bits}"
            raise ConfigError(what)
        if not 0 < share <= 1 or (self.sparse and share < 1):
            raise ConfigError(f"share must lie in (0, 1], and be 1 below {DENSE} bits; got {share}")
        if not 1 <= known.cap <= MAX_WEIGHT:
            what = f"a client's largest weight lies in [1, {MAX_WEIGHT}]"
            raise ConfigError(f"{what}, got {known.cap}")
        if rounds < 1:
            raise ConfigError(f"a run has 1 round or more, got {rounds}")
        self._bits, self._share, self._known, self._rounds = bits, share, known, rounds

    @property
    def done(self) -> int:
        """Rounds that counted."""
        return self._known.done

    def codec(
        self,
        model: Mapping[str, NDArray],
        clients: int,
        history: History | None = None,
        room: int = 0,
        *,
        noised: bool = False,
    ) -> TokenCodec:
        """Return what reads the sum of a round, and its plan.

        Args:
            model: that clients begin with.
            clients: that take part, at most.
            history: that all of them have, if there is one; of no use unless `sparse`.
            room: tokens that there is room for, as `room` has it; 0 for as many as it takes.
            noised: whether each client adds noise of its own, and so begins with the model.

        Raises:
            ConfigError: the ring is too small for so many clients.
        """
        share = self._share_of(clients)
        known = history if self.sparse and self.done and history and history.products else None
        codec = self._codec(model, clients, share, known, room, noised=noised)
        while room and codec.needed > room:  # there is room for the share of the longest turns
            fits = (room - codec.needed + codec.together) / codec.together
            share *= min(max(fits, _SHORTER), 1 - _ROOM)
            codec = self._codec(model, clients, share, known, room, noised=noised)
        return codec

    def _codec(
        self,
        model: Mapping[str, NDArray],
        clients: int,
        share: float,
        known: History | None = None,
        room: int = 0,
        *,
        noised: bool = False,
    ) -> TokenCodec:
        layout = Layout.of(model)
        bits, together = self._ring(clients)
        plan = TokenPlan(
            layout=layout_digest(layout),
            number=self.done,
            clients=clients,
            bits=bits,
            share=share,
            seed=self._known.seed,
            cap=self._known.cap,
            scales=scales_of(model, self._known.scales),
            together=together,
            history=known.digest if known else None,
            factors=self._known.factors,
            forecast=self._known.forecast if known else 0.0,
            ahead=self.sparse and not noised,
            even=self.sparse and not self.done,
            room=room,
        )
        return TokenCodec(plan, layout, known)

    def room(self, model: Mapping[str, NDArray], clients: int) -> int:
        """Return how many tokens a round takes, whatever history its plan names in the end."""
        share = self._share_of(clients)
        codec = self._codec(model, clients, share)
        if not self.sparse:
            return codec.needed
        elements = sum(model[name].size for name in codec.sent)
        wanted = math.ceil(share * elements / codec.plan.together)
        coefficients = max(wanted, codec.together)
        if share * LONGEST < _NEAR_LEAST:
            least = self._codec(model, clients, share / LONGEST)
            coefficients = max(coefficients, least.together)
        needed = codec.needed + codec.of_classes + coefficients - codec.together
        return needed + math.ceil(needed * _ROOM) + _ROOM_LEAST

    def _share_of(self, clients: int) -> float:
        """Return the share of the coefficients that the next round sends."""
        if not (self.sparse and self.done):
            return self._share
        bits, together = self._ring(clients)
        spent = self._bits
        if self.done < self._rounds:
            first = bits / together
            others = (self._rounds * self._bits - first) / max(self._rounds - 1, 1)
            spent = max(others, _SPARED * self._bits) * self._surge
        return min(spent * together / bits, 1.0)

    @property
    def _surge(self) -> float:
        """What the next round takes, after the first one, over the mean of all of these."""

        def over_late_ones(done: int) -> float:
            return 1.0 + _SURGE * math.exp(-done / _SURGE_ROUNDS)

        return over_late_ones(self.done) / fmean(map(over_late_ones, range(1, self._rounds)))

    def _ring(self, clients: int) -> tuple[int, int]:
        """Return the bits of the ring, and how many coefficients share a token."""
        if not self.sparse:
            return int(self._bits), 1
        return densest(clients, _MOST)

    def learn(self, found: Sum, clients: int) -> None:
        """Go by what the sum of a round has told, of so many clients."""
        known, mean = self._known, found.weight / clients
        before = mean if self.sparse and not known.done else known.cap  # what weighed 1 then
        known.cap = min(max(math.ceil(_WEIGHTS * mean), 1), MAX_WEIGHT)
        known.scales = {name: x * before / known.cap for name, x in found.scales.items()}
        known.factors, known.forecast = found.factors, found.forecast
        known.done += 1
