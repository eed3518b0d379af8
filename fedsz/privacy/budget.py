"""What rounds spend of a privacy budget, the noise that it asks for, and norms to clip to.

The accountants are those of Google's dp-accounting. Two runs are neighbours if one client takes
part in one of them and not in the other.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fedsz import extras
from fedsz.errors import ConfigError
from fedsz.spec_strings import check_settings, chosen, setting

if TYPE_CHECKING:  # at run time `fedsz --help`, which has plans, would pay for numpy
    from fedsz.privacy.noise import RandomBytes

DELTA: Final = 1e-5
CROWD: Final = 20.0  # clients for each unit of the count's deviation, as Andrew et al. have it

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


@dataclass(frozen=True)
class Quantile:
    """A norm that follows a quantile of the norms of updates.

    Andrew, Thakkar, McMahan and Ramaswamy (NeurIPS 2021), algorithm 1: of a count of the updates
    within the norm, released with noise, the norm is multiplied by exp(-rate (share - target)).

    Attributes:
        target: the share of updates that are to keep to the norm.
        start: the norm of the first round.
        rate: how fast it follows.

    Raises:
        ConfigError: one of these is out of range.
    """

    name: ClassVar[str] = "quantile"
    target: float = setting(0.5, 0, 1, above=True, below=True)
    start: float = setting(0.1, 0, above=True)
    rate: float = setting(0.2, 0, 10, above=True)

    def __post_init__(self) -> None:
        check_settings(self)


class ClippingNorm:
    """What updates are clipped to, as it changes over rounds.

    Args:
        text: a number; or ``quantile``, maybe with settings: ``quantile:target=0.5,start=0.1``.

    Attributes:
        norm: of this round, in the unit of the weights; over all floats of an update.
        quantile: what it follows; None if it is fixed.

    Raises:
        ConfigError: it is neither, or a norm that is not above 0 and finite.
    """

    def __init__(self, text: str | float) -> None:
        self.quantile: Quantile | None = None
        try:
            self.norm = float(text)
        except ValueError:
            self.quantile = chosen("clipping norm", str(text), [Quantile()])
            self.norm = self.quantile.start
        if not 0 < self.norm < math.inf:
            raise ConfigError(f"a clipping norm must be above 0 and finite, got {text!r}")

    def split(self, multiplier: float, clients: float) -> tuple[float, float]:
        """Return what a noise multiplier is split into: for the sum, and the count's deviation.

        Both together spend what the multiplier alone does (theorem 1 there). The count's deviation
        is a twentieth of the clients that are expected, or the multiplier if that is more: the
        sum's noise is then a seventh above what it would be.
        """
        if self.quantile is None:
            return multiplier, 0.0
        deviation = max(clients / CROWD, multiplier)
        return multiplier / math.sqrt(1 - (multiplier / (2 * deviation)) ** 2), deviation

    def follow(
        self, within: int, above: int, clients: float, deviation: float, random: RandomBytes
    ) -> None:
        """Take the norm on by a noised count of a round's updates.

        Args:
            within: updates that kept to the norm.
            above: those that did not.
            clients: that were expected, which is no secret.
            deviation: of the count's noise; `split` returns it.
            random: of the noise.
        """
        if self.quantile is None:
            return
        import numpy as np

        from fedsz.privacy.noise import add_noise

        # Each update counts for half of one, up or down: so one client moves the sum by a half.
        count = np.array([(within - above) / 2])
        add_noise(count, deviation, random)
        share = min(max(float(count[0]) / clients + 0.5, 0.0), 1.0)
        self.norm *= math.exp(-self.quantile.rate * (share - self.quantile.target))


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
        clip: see `ClippingNorm`.
        sampling: the probability with which each client takes part in a round.
        at: where noise is added, a `NoiseAt`.
        seed: draws noise and clients that a test can repeat, and anybody can foresee; None for the
            system's secure generator.

    Raises:
        ConfigError: a number is out of range, one round alone spends more than ``epsilon``, or
            ``clip`` follows a quantile of norms, which a server does not see where clients add
            noise.
        MissingPackage: dp-accounting is not installed.
    """

    epsilon: float
    delta: float = DELTA
    rounds: int = 1
    noise: float = 0.0
    clip: str | float = "quantile"
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
        if self.at != NoiseAt.SERVER and ClippingNorm(self.clip).quantile is not None:
            what = f"clip must be a number, as 0.5, got {self.clip!r}"
            raise ConfigError(f"where clients add noise, {what}")
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
            f" {self.clip}{sampled}; what is clipped off is not fed back"
        )


_found = lru_cache(multiplier_for)
