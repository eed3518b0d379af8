"""What rounds spend of a privacy budget, the noise that it asks for, and norms to clip to.

The accountants are those of Google's dp-accounting. Two runs are neighbours if one client takes
part in one of them and not in the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from fedsz import extras
from fedsz.errors import ConfigError
from fedsz.spec_strings import check_settings, chosen, setting

if TYPE_CHECKING:  # at run time `fedsz --help`, which has plans, would pay for numpy
    from fedsz.privacy.noise import RandomBytes

DELTA: Final = 1e-5
CROWD: Final = 20.0  # clients for each unit of the count's deviation, as Andrew et al. have it

LEAST_NOISE: Final = 1e-2  # times the sensitivity: less is as good as none
MOST_NOISE: Final = 1e6
LEAST_SIGMA: Final = 0.5  # steps
PRECISION: Final = 1e-3  # of a multiplier that is searched for, relative, upwards


class Release(NamedTuple):
    """A sum that is released with Gaussian noise.

    Attributes:
        multiplier: the noise's deviation over the most that one client moves the sum.
        sampling: the probability with which each client takes part, independent of all others.
    """

    multiplier: float
    sampling: float = 1.0


def epsilon_of(releases: Mapping[Release, int], delta: float, *, renyi: bool = False) -> float:
    """Return the epsilon of so many of each of these releases, at a delta.

    With all clients in each round it is that of the Gaussian mechanism, exactly (Balle and Wang,
    2018). With sampled ones it is that of Renyi's divergences (Mironov, Talwar and Zhang, 2019).

    Args:
        releases: how many of each.
        delta: above 0, below 1.
        renyi: whether no more is known of the noise than its Renyi divergences, as of
            `multiplier_of_sum`: a law of these divergences can spend more than the Gaussian has.

    Raises:
        MissingPackage: dp-accounting is not installed.
    """
    spent = {release: count for release, count in releases.items() if count}
    if not spent:
        return 0.0
    if not renyi and all(release.sampling == 1 for release in spent):
        return float(_accounting().get_epsilon_gaussian(together(spent), delta))
    return _renyi_epsilon(spent, delta)


def together(releases: Mapping[Release, int]) -> float:
    """Return the multiplier of one release that spends as much as these, all without sampling."""
    return math.sqrt(1 / sum(n / release.multiplier**2 for release, n in releases.items()))


def _renyi_epsilon(releases: Mapping[Release, int], delta: float) -> float:
    accountant = _accounting().rdp.RdpAccountant()
    with _quiet():
        for release, count in releases.items():
            accountant.compose(event_of(release), count)
        return float(accountant.get_epsilon(delta))


def event_of(release: Release) -> Any:
    """Return a release as dp-accounting has it."""
    dp = _accounting()
    gaussian = dp.GaussianDpEvent(release.multiplier)
    if release.sampling == 1:
        return gaussian
    return dp.PoissonSampledDpEvent(release.sampling, gaussian)


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
        spent = {Release(multiplier, sampling): rounds}
        return epsilon_of(spent, delta, renyi=renyi) <= epsilon

    high = 1.0
    while not fits(high):
        high *= 2
        if high > MOST_NOISE:
            raise ConfigError(f"no noise gives epsilon {epsilon:g} over {rounds} rounds")
    low = high / 2
    while low > LEAST_NOISE and fits(low):
        low, high = low / 2, low
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def rounds_within(
    epsilon: float,
    delta: float,
    release: Release,
    most: int,
    spent: Mapping[Release, int],
    *,
    renyi: bool = False,
) -> int:
    """Return how many more releases, up to ``most``, keep the total within ``epsilon``.

    ``renyi`` as in `epsilon_of`.
    """

    def fits(rounds: int) -> bool:
        total = {**spent, release: spent.get(release, 0) + rounds}
        return epsilon_of(total, delta, renyi=renyi) <= epsilon

    if fits(most):
        return most
    low, high = -1, most  # fits at low, if that is not below 0, and not at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def multiplier_of_sum(sigma: float, clients: int, sensitivity: float, elements: int) -> float:
    """Return the noise multiplier of a sum to which each client has added discrete noise.

    A sum of discrete Gaussians is no discrete Gaussian, but close. Its Renyi divergence of each
    order is at most that of a Gaussian of the multiplier returned: Kairouz, Liu and Steinke (ICML
    2021), proposition 14, of whose bounds this takes the better.

    Args:
        sigma: of the noise of one client, in steps of the grid, as `fedsz.privacy.noise.noise` has.
        clients: that have added some to this sum: those that dropped out, or that tell others what
            they added, do not count.
        sensitivity: the norm of a client's vector of integers, at most.
        elements: of the vector.

    Raises:
        ConfigError: no client, or a sigma below `LEAST_SIGMA`, for which this is not proven.
    """
    if clients < 1 or sigma < LEAST_SIGMA:
        raise ConfigError(
            f"{clients} clients' noise of {sigma:g} steps: at least 1 of {LEAST_SIGMA:g}"
        )
    terms = (math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, clients))
    gap = 10 * sum(terms)
    plain = sensitivity / (sigma * math.sqrt(clients))
    each = math.sqrt(plain**2 + 2 * gap * elements)
    return 1 / min(each, plain + gap * math.sqrt(elements))


def _accounting() -> Any:
    extras.require("dp_accounting", what="differential privacy")
    import dp_accounting

    return dp_accounting


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the block, orders that the Renyi accountant leaves out are not warned of."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


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
        self, within: int, above: int, clients: float, deviation: float, generator: RandomBytes
    ) -> None:
        """Take the norm on by a noised count of a round's updates.

        Args:
            within: updates that kept to the norm.
            above: those that did not.
            clients: that were expected, which is no secret.
            deviation: of the count's noise; `split` returns it.
            generator: of the noise.
        """
        if self.quantile is None:
            return
        import numpy as np

        from fedsz.privacy.noise import with_noise

        # Each update counts for half of one, up or down: so one client moves the sum by a half.
        noised = float(with_noise(np.array([(within - above) / 2]), deviation, generator)[0])
        share = min(max(noised / clients + 0.5, 0.0), 1.0)
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
        if not self.rounds_left({}):
            alone = f"a round alone spends epsilon {self.spent({self.release: 1}):.4g}"
            raise ConfigError(f"{alone} at delta {self.delta:g}: the budget is {self.epsilon:g}")

    @property
    def multiplier(self) -> float:
        """The noise multiplier, found if it was not given."""
        if self.noise:
            return self.noise
        sampling, renyi = self._hidden_sampling, self._adds_up
        return self._moves * _found(self.epsilon, self.delta, self.rounds, sampling, renyi=renyi)

    @property
    def release(self) -> Release:
        """What a round spends."""
        return Release(self.multiplier / self._moves, self._hidden_sampling)

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

    def spent(self, releases: dict[Release, int]) -> float:
        """Return the epsilon of what has been released."""
        return epsilon_of(releases, self.delta, renyi=self._adds_up)

    def rounds_left(self, releases: dict[Release, int], most: int = 1) -> int:
        """Return how many more rounds, up to ``most``, the budget has after ``releases``."""
        budget = self.epsilon, self.delta, self.release, most, releases
        return max(0, rounds_within(*budget, renyi=self._adds_up))

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
