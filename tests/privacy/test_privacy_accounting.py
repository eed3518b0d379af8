"""What rounds spend: the accountant's published examples, and laws that any budget keeps to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedsz import extras
from fedsz.errors import ConfigError, MissingPackage
from fedsz.privacy.budget import PRECISION, PrivacyPlan, epsilon_of, multiplier_for
from fedsz.privacy.ring_noise import ABOVE, LEAST_SIGMA

needs_accounting = pytest.mark.skipif(
    bool(extras.missing("dp_accounting")), reason="dp-accounting is not installed"
)
DELTA = 1e-5
MNIST = 60_000
EPOCH = MNIST // 256  # steps

# Multiplier, sampling, rounds, epsilon as published at a delta of 1e-5: Abadi et al. (CCS 2016),
# section 2.1 of whose example that is; then the table of TensorFlow Privacy's tutorial. All are of
# an older conversion of divergences, which spends more.
PUBLISHED = [
    (4.0, 0.01, 10_000, 1.26),
    (1.12, 256 / MNIST, 60 * EPOCH, 2.92),
    (0.6, 256 / MNIST, 30 * EPOCH, 9.74),
    (1.2, 256 / MNIST, 10 * EPOCH, 1.20),
]


@needs_accounting
@pytest.mark.parametrize(("multiplier", "sampling", "rounds", "published"), PUBLISHED)
def test_published_examples(
    multiplier: float, sampling: float, rounds: int, published: float
) -> None:
    assert 0.7 * published < epsilon_of(multiplier, rounds, DELTA, sampling) < published


@needs_accounting
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("rounds", [1, 40])
def test_without_sampling_it_is_the_gaussian_mechanisms_exactly(
    multiplier: float, rounds: int
) -> None:
    epsilon = epsilon_of(multiplier, rounds, DELTA)

    z = multiplier / math.sqrt(rounds)
    log_second = epsilon + norm.logcdf(-epsilon * z - 1 / (2 * z))
    assert norm.cdf(1 / (2 * z) - epsilon * z) - math.exp(log_second) == pytest.approx(DELTA, 1e-3)


@needs_accounting
@pytest.mark.parametrize("multiplier", [0.5, 2.0, 12.0])
@pytest.mark.parametrize("rounds", [1, 100])
def test_of_renyi_divergences_alone_it_is_the_closed_form(multiplier: float, rounds: int) -> None:
    """Canonne, Kamath and Steinke (2020), proposition 12, at the order that spends least."""
    epsilon = epsilon_of(multiplier, rounds, DELTA, renyi=True)

    rho = rounds / (2 * multiplier**2)
    orders = np.linspace(1.001, 1000, 1_000_000)
    spent = rho * orders + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1)
    assert spent.min() <= epsilon * (1 + 1e-9)
    assert epsilon == pytest.approx(spent.min(), rel=0.01)
    assert epsilon > epsilon_of(multiplier, rounds, DELTA)


@needs_accounting
@pytest.mark.parametrize(
    "budget", [(8, 100, 1.0, "server"), (50, 10, 0.5, "server"), (2, 20, 0.1, "server"),
               (8, 50, 1.0, "client"), (8, 50, 1.0, "sum")],
)  # fmt: skip
def test_the_noise_that_is_found_spends_the_budget_and_no_more(
    budget: tuple[float, int, float, str],
) -> None:
    epsilon, rounds, sampling, at = budget
    asked = {"epsilon": epsilon, "clip": 1.0, "sampling": sampling, "at": at}

    found = PrivacyPlan(**asked, rounds=rounds)  # type: ignore[arg-type]

    assert found.spent(0) == 0 < found.spent(1) < found.spent(rounds) <= epsilon
    assert found.rounds_left(0, rounds + 5) == rounds
    assert found.rounds_left(rounds) == 0
    less = PrivacyPlan(**asked, noise=found.multiplier / (1 + 2 * PRECISION))  # type: ignore[arg-type]
    assert less.spent(rounds) > epsilon
    assert less.rounds_left(rounds - 1) == 0


@needs_accounting
def test_what_hides_more_needs_less_noise() -> None:
    """In a sum a client is there or not; from a server that knows the sender, it is any other."""
    sampled, server, client, summed = (
        PrivacyPlan(epsilon=8, rounds=50, clip=1.0, sampling=q, at=at).multiplier
        for q, at in ((0.1, "server"), (1, "server"), (1, "client"), (0.1, "sum"))
    )

    assert 3 * sampled < server
    assert client == 2 * server
    assert 1 < summed / client < 1.07
    with pytest.raises(ConfigError, match="no noise gives epsilon 1e-09"):
        multiplier_for(1e-9, 1e-12, 10**9)


@pytest.mark.parametrize(("sigma", "clients"), [(LEAST_SIGMA, 2), (LEAST_SIGMA, 9), (3.0, 4)])
@pytest.mark.parametrize("shift", [1, 4])
def test_a_sum_of_discrete_noise_hides_as_much_as_is_accounted(
    sigma: float, clients: int, shift: int
) -> None:
    """Its Renyi divergences, by convolution, are those of a Gaussian, and below what is counted."""
    reach = 60 * math.ceil(sigma)
    k = np.arange(-reach, reach + 1)
    one = np.exp(-(k**2) / (2 * sigma**2))
    mass = one = one / one.sum()
    for _ in range(clients - 1):
        mass = np.convolve(mass, one)
    p, q = mass[shift:], mass[:-shift]
    likely = (p > 1e-280) & (q > 1e-280)

    multiplier = sigma * math.sqrt(clients) / shift / ABOVE

    for order in (1.5, 2, 4, 8):
        terms = order * np.log(p[likely]) + (1 - order) * np.log(q[likely])
        divergence = math.log(np.exp(terms).sum()) / (order - 1)
        assert divergence <= order / (2 * multiplier**2)


@pytest.mark.parametrize("clients", [2, 100, 1 << 14])
@pytest.mark.parametrize("multiplier", [0.01, 1.0, 1e4])
@pytest.mark.parametrize("elements", [1, 10**4, 10**9])
def test_what_a_sum_of_discrete_noise_lacks_is_paid_for(
    clients: int, multiplier: float, elements: int
) -> None:
    """By proposition 14 of Kairouz, Liu and Steinke (ICML 2021), for the noise of any plan."""
    moves = math.sqrt(1 + elements / 4 + 1 + math.sqrt(elements) / 2)
    sigma = max(ABOVE * multiplier * moves / math.sqrt(clients), LEAST_SIGMA)
    k = np.arange(1, clients)
    gap = 10 * np.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)).sum()
    plain = moves / (sigma * math.sqrt(clients))

    each = min(math.sqrt(plain**2 + 2 * gap * elements), plain + gap * math.sqrt(elements))

    assert each <= plain * ABOVE


def test_without_the_package_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_is_here", lambda package: False)

    with pytest.raises(MissingPackage, match=r"needs the package 'dp_accounting': .*\[privacy\]'"):
        epsilon_of(1.0, 1, 1e-6)
