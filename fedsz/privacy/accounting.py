"""What rounds of noised sums spend of a privacy budget, and the noise that a budget asks for.

The accountants are those of Google's dp-accounting. Two runs are neighbours if one client takes
part in one of them and not in the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from fedsz import extras
from fedsz.errors import ConfigError

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
