"""What rounds spend: the accountant's published examples, and laws that any budget keeps to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedsz import extras
from fedsz.errors import ConfigError, MissingPackage
from fedsz.privacy import budget
from fedsz.privacy.budget import (
    PRECISION,
    Release,
    epsilon_of,
    multiplier_for,
    multiplier_of_sum,
    rounds_within,
    together,
)

needs_accounting = pytest.mark.skipif(
    bool(extras.missing("dp_accounting")), reason="dp-accounting is not installed"
)
DELTA = 1e-5
MNIST = 60_000
EPOCH = MNIST // 256  # steps

# Multiplier, sampling, rounds, epsilon as published at a delta of 1e-5: Abadi et al. (CCS 2016),
# section 2.1 of whose example that is; then the table of TensorFlow Privacy's tutorial.
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
    """All are of the older conversion, min over orders of rdp + ln(1 / delta) / (order - 1)."""
    from dp_accounting.rdp import RdpAccountant

    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 256))
    classical = math.inf
    for order in orders:
        accountant = RdpAccountant([order])
        with budget._quiet():
            accountant.compose(budget.event_of(Release(multiplier, sampling)), rounds)
        # At a delta of exp(1 - order) what is added to the divergence is known.
        added = 1 + math.log1p(-1 / order) - math.log(order) / (order - 1)
        divergence = accountant.get_epsilon(math.exp(1 - order)) - added
        if divergence > 0:
            classical = min(classical, divergence + math.log(1 / DELTA) / (order - 1))

    assert classical == pytest.approx(published, rel=3e-3, abs=0.006)
    ours = epsilon_of({Release(multiplier, sampling): rounds}, DELTA)
    assert 0.7 * published < ours < published


@needs_accounting
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("rounds", [1, 40])
def test_without_sampling_it_is_the_gaussian_mechanisms_exactly(
    multiplier: float, rounds: int
) -> None:
    epsilon = epsilon_of({Release(multiplier): rounds}, DELTA)

    z = multiplier / math.sqrt(rounds)
    log_second = epsilon + norm.logcdf(-epsilon * z - 1 / (2 * z))
    assert norm.cdf(1 / (2 * z) - epsilon * z) - math.exp(log_second) == pytest.approx(DELTA, 1e-3)


@needs_accounting
@pytest.mark.parametrize("multiplier", [0.5, 2.0, 12.0])
@pytest.mark.parametrize("rounds", [1, 100])
def test_of_renyi_divergences_alone_it_is_the_closed_form(multiplier: float, rounds: int) -> None:
    """Canonne, Kamath and Steinke (2020), proposition 12, at the order that spends least."""
    epsilon = epsilon_of({Release(multiplier): rounds}, DELTA, renyi=True)

    rho = rounds / (2 * multiplier**2)
    orders = np.linspace(1.001, 1000, 1_000_000)
    spent = rho * orders + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1)
    assert spent.min() <= epsilon * (1 + 1e-9)
    assert epsilon == pytest.approx(spent.min(), rel=0.01)
    assert epsilon > epsilon_of({Release(multiplier): rounds}, DELTA)
    found = multiplier_for(epsilon, DELTA, rounds, renyi=True)
    assert multiplier / (1 + 2 * PRECISION) < found <= multiplier * (1 + PRECISION)
    assert rounds_within(epsilon, DELTA, Release(found), rounds + 1, {}, renyi=True) == rounds


@needs_accounting
def test_releases_of_all_kinds_add_up() -> None:
    one, other, sampled = Release(2.0), Release(3.0), Release(2.0, 0.5)

    assert epsilon_of({}, DELTA) == epsilon_of({one: 0}, DELTA) == 0
    both = {one: 3, other: 4}
    assert epsilon_of(both, DELTA) == pytest.approx(epsilon_of({Release(together(both)): 1}, DELTA))
    assert epsilon_of({one: 3}, DELTA) < epsilon_of({one: 3, sampled: 3}, DELTA)
    assert epsilon_of({sampled: 3}, DELTA) < epsilon_of({one: 3}, DELTA)
    assert epsilon_of({one: 3, sampled: 3}, DELTA) < epsilon_of({one: 6}, DELTA) * 1.15


@needs_accounting
@pytest.mark.parametrize("budget", [(8, 100, 1.0), (0.1, 3, 1.0), (50, 10, 0.5), (2, 20, 0.1)])
def test_the_noise_that_is_found_spends_the_budget_and_no_more(
    budget: tuple[float, int, float],
) -> None:
    epsilon, rounds, sampling = budget

    found = multiplier_for(epsilon, DELTA, rounds, sampling)

    assert epsilon_of({Release(found, sampling): rounds}, DELTA) <= epsilon
    less = Release(found / (1 + 2 * PRECISION), sampling)
    assert epsilon_of({less: rounds}, DELTA) > epsilon
    assert rounds_within(epsilon, DELTA, less, rounds, {}) == rounds - 1
    assert rounds_within(epsilon, DELTA, less, 1, {less: rounds - 1}) == 0
    assert rounds_within(epsilon, DELTA, less, 1, {less: rounds}) == -1
    with pytest.raises(ConfigError, match="no noise gives epsilon 1e-09"):
        multiplier_for(1e-9, 1e-12, 10**9)


@pytest.mark.parametrize(("sigma", "clients"), [(0.5, 2), (0.5, 5), (0.8, 3), (3.0, 4)])
@pytest.mark.parametrize("shift", [1, 2])
def test_a_sum_of_discrete_noise_hides_as_much_as_is_accounted(
    sigma: float, clients: int, shift: int
) -> None:
    """Its Renyi divergences, by convolution, are below those that the multiplier stands for."""
    reach = 60 * math.ceil(sigma)
    k = np.arange(-reach, reach + 1)
    one = np.exp(-(k**2) / (2 * sigma**2))
    mass = one = one / one.sum()
    for _ in range(clients - 1):
        mass = np.convolve(mass, one)
    p, q = mass[shift:], mass[:-shift]
    likely = (p > 1e-280) & (q > 1e-280)

    multiplier = multiplier_of_sum(sigma, clients, shift, 1)

    assert multiplier <= sigma * math.sqrt(clients) / shift
    for order in (1.5, 2, 4, 8):
        terms = order * np.log(p[likely]) + (1 - order) * np.log(q[likely])
        divergence = math.log(np.exp(terms).sum()) / (order - 1)
        assert divergence <= order / (2 * multiplier**2) * (1 + 1e-9)


def test_a_sum_counts_only_noise_that_is_there() -> None:
    many, few = (multiplier_of_sum(4.0, clients, 10.0, 10**6) for clients in (100, 80))

    assert many == pytest.approx(4.0, rel=1e-6)
    assert few == pytest.approx(4.0 * math.sqrt(0.8), rel=1e-6)
    assert multiplier_of_sum(0.5, 100, 10.0, 10**6) < 0.1  # so coarse that the sum's form shows
    with pytest.raises(ConfigError, match="0 clients"):
        multiplier_of_sum(4.0, 0, 10.0, 10)
    with pytest.raises(ConfigError, match=r"noise of 0\.4 steps"):
        multiplier_of_sum(0.4, 10, 10.0, 10)


def test_without_the_package_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_is_here", lambda package: False)

    with pytest.raises(MissingPackage, match=r"needs the package 'dp_accounting': .*\[privacy\]'"):
        epsilon_of({Release(1.0): 1}, DELTA)
