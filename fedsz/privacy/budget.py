"""What rounds spend of a privacy budget, and the noise that it asks for.

The accountants are those of Google's dp-accounting. Two runs are neighbours if one client takes
part in one of them and not in the other.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from fedsz import extras
from fedsz.errors import ConfigError

DELTA: Final = 1e-5
CLIP: Final = 0.5

LEAST_NOISE: Final = 1e-2  # times the sensitivity: less is as good as none
MOST_NOISE: Final = 1e6
PRECISION: Final = 1e-3  # of a multiplier that is searched for, relative, upwards
# Orders of Renyi's divergences with sampling: others have no closed form, and hardly spend less.
_ORDERS: Final = (*range(2, 65), 128, 256, 512, 1024)


@lru_cache(maxsize=4096)  # each round asks for that of its number
def epsilon_of(
    multiplier: float, rounds: int, delta: float, sampling: float = 1.0, *, renyi: bool = False
) -> float:
    """Return the epsilon of so many sums that are released with Gaussian noise, at a delta.

    With all clients in each round it is that of the Gaussian mechanism, exactly (Balle and Wang,
    2018). With sampled ones it is that of Renyi's divergences (Mironov, Talwar and Zhang, 2019).

    Args:
        multiplier: the noise's deviation over the most that one client moves the sum.
        rounds: how many sums.
        delta: above 0, below 1.
        sampling: the probability with which each client takes part, independent of all others.
        renyi: whether no more is known of the noise than its Renyi divergences, as of a sum of
            clients' shares: a law of these divergences can spend more than the Gaussian has.

    Raises:
        MissingPackage: dp-accounting is not installed.
    """
    if not rounds:
        return 0.0
    extras.require("dp_accounting", what="differential privacy")
    import dp_accounting as dp

    if sampling == 1 and not renyi:
        return float(dp.get_epsilon_gaussian(multiplier / math.sqrt(rounds), delta))
    event: Any = dp.GaussianDpEvent(multiplier)
    orders = None if sampling == 1 else _ORDERS
    if sampling < 1:
        event = dp.PoissonSampledDpEvent(sampling, event)
    return float(dp.rdp.RdpAccountant(orders).compose(event, rounds).get_epsilon(delta))


def multiplier_for(
    epsilon: float, delta: float, rounds: int, sampling: float = 1.0, *, renyi: bool = False
) -> float:
    """Return the noise multiplier with which ``rounds`` releases spend ``epsilon`` at most.

    It is above the least one by a factor of 1 + `PRECISION` at most; ``renyi`` as in `epsilon_of`.

    Raises:
        ConfigError: no multiplier up to `MOST_NOISE` does.
        MissingPackage: dp-accounting is not installed.
    """

    def fits(multiplier: float) -> bool:
        return epsilon_of(multiplier, rounds, delta, sampling, renyi=renyi) <= epsilon

    low, high = LEAST_NOISE, MOST_NOISE
    if not fits(high):
        raise ConfigError(f"no noise gives epsilon {epsilon:g} over {rounds} rounds")
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def concentrated(rho: float, delta: float = DELTA) -> float:
    """Return an epsilon of zero-concentrated differential privacy, without any package.

    Bun and Steinke (2016), proposition 1.3. A release of a multiplier m has a rho of 1 / (2 m^2);
    that of several is the sum.
    """
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


class NoiseAt(StrEnum):
    """Where noise is added."""

    SERVER = "server"  # once, to the sum of clipped updates: who receives models learns little
    CLIENT = "client"  # to each update before it leaves: the server learns little, too
    SUM = "sum"  # a share by each client: the server, which sees a secure sum alone, learns little


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """What a run may spend, and how.

    Attributes:
        epsilon: the most that the run may spend, at ``delta``.
        delta: of it.
        rounds: for which the noise is found, where ``noise`` is 0.
        noise: the noise multiplier: the noise's deviation over the clipping norm. 0 for the least
            with which ``rounds`` rounds stay within ``epsilon``.
        clip: the norm that updates are clipped to, over all floats of one, in the unit of the
            weights; above 0 and finite.
        sampling: the probability with which each client takes part in a round.
        at: where noise is added, a `NoiseAt`.
        seed: draws noise and clients that a test can repeat, and anybody can foresee; None for the
            system's secure generator.

    Raises:
        ConfigError: a number is out of range, or one round alone spends more than ``epsilon``.
        MissingPackage: dp-accounting is not installed.
    """

    epsilon: float
    delta: float = DELTA
    rounds: int = 1
    noise: float = 0.0
    clip: float = CLIP
    sampling: float = 1.0
    at: str = NoiseAt.SERVER
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.at not in tuple(NoiseAt):
            raise ConfigError(f"noise is added at {', '.join(NoiseAt)}; not at {self.at!r}")
        for name, most in (("epsilon", 1e6), ("delta", 0.5), ("sampling", 1.0)):
            if not 0 < (have := getattr(self, name)) <= most:
                raise ConfigError(f"{name} must be above 0, up to {most:g}, got {have:g}")
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, got {self.rounds}")
        if not 0 <= self.noise <= 1e6:
            raise ConfigError(f"a noise multiplier must lie in 0..1e6, got {self.noise:g}")
        if not 0 < self.clip < math.inf:
            raise ConfigError(f"a clipping norm must be above 0 and finite, got {self.clip:g}")
        if not self.rounds_left(0):
            alone = f"a round alone spends epsilon {self.spent(1):.4g}"
            raise ConfigError(f"{alone} at delta {self.delta:g}: the budget is {self.epsilon:g}")

    @property
    def multiplier(self) -> float:
        """The noise multiplier, found if it was not given."""
        if self.noise:
            return self.noise
        sampling, renyi = self._hidden_sampling, self._adds_up
        return self._moves * _found(self.epsilon, self.delta, self.rounds, sampling, renyi=renyi)

    @property
    def _moves(self) -> float:
        """How far one client's data moves what is released, in clipping norms.

        It is there or not, in a sum; or it is any other, for a server that knows who has sent it.
        """
        return 1.0 if self.at == NoiseAt.SERVER else 2.0

    @property
    def _hidden_sampling(self) -> float:
        """The sampling that hides who takes part; from a server that asks, it hides nobody."""
        return self.sampling if self.at == NoiseAt.SERVER else 1.0

    @property
    def _adds_up(self) -> bool:
        """Whether the noise is a sum of shares: of its law, the Renyi divergences are known."""
        return self.at == NoiseAt.SUM

    def spent(self, rounds: int) -> float:
        """Return the epsilon of so many rounds."""
        multiplier, sampling = self.multiplier / self._moves, self._hidden_sampling
        return epsilon_of(multiplier, rounds, self.delta, sampling, renyi=self._adds_up)

    def rounds_left(self, done: int, most: int = 1) -> int:
        """Return how many more rounds, up to ``most``, the budget has after ``done``."""
        ahead = range(done + 1, done + most + 1)
        return bisect_right(ahead, self.epsilon, key=self.spent)

    def __str__(self) -> str:
        """Say all of it in a line."""
        where = {
            NoiseAt.SERVER: "the sum",
            NoiseAt.CLIENT: "each update",
            NoiseAt.SUM: "the secure sum, a share by each client",
        }[NoiseAt(self.at)]
        sampled = f", each client with probability {self.sampling:g}" if self.sampling < 1 else ""
        return (
            f"differential privacy: epsilon {self.epsilon:g} at delta {self.delta:g}; noise of"
            f" {self.multiplier:.4g} clipping norms on {where}; updates are clipped to"
            f" {self.clip:g}{sampled}; what is clipped off is not fed back"
        )


_found = lru_cache(multiplier_for)
