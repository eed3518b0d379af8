"""Noise in the ring: its law, what one client moves the sum by at most, and no overflow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsz.errors import ConfigError, CorruptStream, DivergedUpdate, ModelMismatch
from fedsz.privacy.graph import Assumptions, Plan, plan
from fedsz.privacy.ring_noise import (
    MOST_GROWTH,
    OVERFLOW,
    NoisedCodec,
    NoisedPlan,
    rounded,
    share_of,
)
from tests.conftest import ROOT

CLIENTS = 10
C = 0.3
Model = dict[str, np.ndarray]


def start_of(size: int = 3000) -> Model:
    model = {"w": np.zeros(size, np.float32), "seen": np.array(3), "half": np.ones(5, np.float16)}
    return {**model, "gone": np.full(2, -np.inf, np.float32)}


def members_of(clients: int = CLIENTS) -> Plan:
    return plan(clients, Assumptions())


def codec_of(
    start: Model, bits: int = 16, multiplier: float = 2.0, clients: int = CLIENTS
) -> NoisedCodec:
    return NoisedCodec(NoisedPlan(bits, C, multiplier), start, members_of(clients))


def sum_of(codec: NoisedCodec, trained: list[Model], seed: int = 0) -> Any:
    draws = np.random.default_rng(seed).bytes
    tokens = [codec.encode(model, draws).tokens for model in trained]
    total = np.add.reduce(tokens) & ((1 << codec.plan.bits) - 1)
    return codec.decode(total.astype(tokens[0].dtype), len(trained))


def in_steps(codec: NoisedCodec, found: Any, clients: int, name: str = "w") -> np.ndarray:
    return np.asarray(found.step[name] * clients * codec.share.norm / codec.plan.norm)


@pytest.mark.parametrize("clients", [2, 5])
def test_the_sums_noise_has_the_law_of_sums_of_discrete_gaussians(clients: int) -> None:
    start = start_of(60_000)
    # Of so small a norm in so small a ring, noise is of few steps, and its form is seen.
    codec = codec_of(start, 13, 0.05, clients)
    share = codec.share

    found = sum_of(codec, [start] * clients)

    whole = in_steps(codec, found, clients)
    drawn = np.rint(whole).astype(np.int64)
    assert np.abs(whole - drawn).max() < 1e-6
    reach = math.ceil(9 * share.sigma)
    one = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * share.sigma**2))
    mass = one = one / one.sum()
    for _ in range(clients - 1):
        mass = np.convolve(mass, one)
    wanted, middle = drawn.size * mass, mass.size // 2
    often = np.flatnonzero(wanted >= 5)
    counted = np.bincount(drawn + middle, minlength=mass.size)
    tail = drawn.size - counted[often].sum()
    assert tail <= 10 + 3 * (drawn.size - wanted[often].sum())
    expected = wanted[often] * counted[often].sum() / wanted[often].sum()
    assert stats.chisquare(counted[often], expected).pvalue > 1e-4
    assert set(found.step["seen"].ravel()) == {0}


@pytest.mark.parametrize("clients", [2, 3, 10, 100])
@pytest.mark.parametrize("multiplier", [0.3, 2.0, 12.0])
@pytest.mark.parametrize("size", [10, 60_000])
def test_the_fewest_honest_survivors_make_the_noise_that_is_asked_for(
    clients: int, multiplier: float, size: int
) -> None:
    members = members_of(clients)

    share = codec_of({"w": np.zeros(size, np.float32)}, 20, multiplier, clients).share

    honest = members.least - members.corrupt
    assert share.sigma * math.sqrt(honest) == pytest.approx(multiplier * share.moves, rel=1e-5)
    assert share.moves >= math.hypot(share.norm, math.sqrt(size) / 2)
    assert share.growth <= MOST_GROWTH
    assert share.bits(clients, size) <= 20


@pytest.mark.parametrize("size", [1, 7, 5000])
@pytest.mark.parametrize("norm", [1.0, 40.0])
def test_rounding_keeps_to_its_norm_and_has_no_bias(size: int, norm: float) -> None:
    draws = np.random.default_rng(1)
    y = draws.normal(size=size)
    y *= norm / np.linalg.norm(y)
    most = math.sqrt(norm**2 + size / 4 + norm + math.sqrt(size) / 2)

    many = np.array([rounded(y, most, draws.bytes) for _ in range(400)])

    assert np.linalg.norm(many, axis=1).max() <= most
    assert (np.abs(many - y) < 1).all()
    if size > 100:  # of few elements, those of a large norm are many, and are not taken
        assert np.abs((many - y).mean(axis=0)).max() < 6 * 0.5 / math.sqrt(400)
    assert np.array_equal(rounded(y, 0.0, draws.bytes), np.trunc(y))  # no try keeps to that


def test_clipping_is_the_last_thing_before_the_noise() -> None:
    """An update of any size goes out as the one on the norm does, rounded and noised alike."""
    start = start_of()
    codec = codec_of(start)
    step = np.random.default_rng(2).normal(size=3000)
    step *= C / np.linalg.norm(step)
    tokens = []
    for scale in (1.0, 3.0, 1e6, 1e30):
        trained = {**start, "w": (scale * step).astype(np.float64), "seen": np.array(9)}
        tokens.append(codec.encode(trained, np.random.default_rng(3).bytes).tokens)
    short = {**start, "w": 0.5 * step}
    tokens.append(codec.encode(short, np.random.default_rng(3).bytes).tokens)

    for other in tokens[1:4]:
        assert (other != tokens[0]).mean() < 1e-3  # a fraction next to its random number
    assert (tokens[4] != tokens[0]).mean() > 0.5


def test_the_mean_is_that_of_clipped_updates_and_the_noise() -> None:
    start = start_of()
    codec, draws = codec_of(start, bits=24, multiplier=0.01), np.random.default_rng(4)
    steps = [scale * draws.normal(size=3000) for scale in 10.0 ** np.arange(-5, 5)]

    found = sum_of(codec, [{**start, "w": step.astype(np.float32)} for step in steps])

    clipped = [step * min(1.0, C / np.linalg.norm(step)) for step in steps]
    error = (found.step["w"] - np.mean(clipped, axis=0)) * CLIENTS / C
    members = members_of()
    honest = members.least - members.corrupt
    assert error.std() == pytest.approx(0.01 * math.sqrt(CLIENTS / honest), rel=0.05)
    assert found.weight == CLIENTS


@pytest.mark.parametrize("bits", [13, 16, 20, 32])
@pytest.mark.parametrize("clients", [2, 30])
def test_the_ring_holds_what_all_clients_send_in_one_direction(bits: int, clients: int) -> None:
    """Each of them with all of its norm, or all of what an element may have, in one element."""
    start = start_of(50)
    codec = codec_of(start, bits, 0.5, clients)
    share = codec.share
    trained = {**start, "w": np.full(50, -1e-30, np.float64)}
    trained["w"][7] = 1e150

    found = sum_of(codec, [trained] * clients)

    sums = in_steps(codec, found, clients)
    spread = share.sigma * math.sqrt(clients)
    assert share.limit <= share.norm
    assert abs(sums[7] - clients * share.limit) < 7 * spread + clients
    assert np.abs(np.delete(sums, 7)).max() < 7 * spread + clients
    assert share.bits(clients, codec.count) == bits


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_finite_is_not_sent(wrong: float) -> None:
    start = start_of()
    codec = codec_of(start)
    trained = {**start, "w": start["w"].astype(np.float64)}
    trained["w"][5] = wrong

    with pytest.raises(DivergedUpdate, match="nothing is sent"):
        codec.encode(trained)
    with pytest.raises(ModelMismatch):
        codec.encode({**start, "w": np.zeros(4, np.float32)})
    with pytest.raises(CorruptStream, match="tokens, got"):
        codec.decode(np.zeros(3, np.uint16), 2)


def test_what_is_not_finite_in_the_model_stays_and_moves_nothing() -> None:
    start = start_of()
    codec = codec_of(start)
    trained = {**start, "gone": np.array([3.0, np.nan], np.float32)}
    seeds = [np.random.default_rng(5) for _ in range(2)]

    ours, others = (
        codec.encode(model, seed.bytes).tokens
        for model, seed in zip((start, trained), seeds, strict=True)
    )

    assert np.array_equal(ours, others)


@pytest.mark.parametrize("clients", [2, 100, 1000])
@pytest.mark.parametrize("multiplier", [0.5, 12.0])
def test_too_small_a_ring_says_how_many_bits_would_do(clients: int, multiplier: float) -> None:
    start = {"w": np.zeros(10**6, np.float32)}
    with pytest.raises(ConfigError, match=r"needs a ring of (\d+) bits, got 10") as refused:
        codec_of(start, 10, multiplier, clients)

    need = int(str(refused.value).split("a ring of ")[1].split()[0])

    assert codec_of(start, need, multiplier, clients).share.growth <= MOST_GROWTH
    with pytest.raises(ConfigError, match=f"needs a ring of {need} bits, got {need - 1}"):
        codec_of(start, need - 1, multiplier, clients)


@pytest.mark.repository
def test_what_the_page_says_of_the_noise_is_so() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    codec = codec_of({"w": np.zeros(60_000, np.float32)}, bits=16, multiplier=12.0)
    members = members_of(10)

    growth = codec.share.growth

    said = f"{100 * (growth - 1):.0f} % more for 10 clients, 60,000 parameters, 16 bits and 12"
    assert said in page
    assert f"of 10 clients, {members.least - members.corrupt}." in page
    assert f"but for 2<sup>-{OVERFLOW}</sup> a round" in page
    assert MOST_GROWTH == 1.5


def test_noise_that_colluding_clients_know_all_of_is_refused() -> None:
    few = Plan(10, 9, 5, least=4, consents=0, corrupt=4)
    with pytest.raises(ConfigError, match="4 survivors of which 4 may collude"):
        share_of(NoisedPlan(16, C, 2.0), 100, few)
    with pytest.raises(ConfigError, match="larger ring than there is"):
        codec_of(start_of(), 32, multiplier=1e9)
    with pytest.raises(ConfigError, match="nothing that noise could hide"):
        codec_of({"n": np.array(3)})
    with pytest.raises(ConfigError, match="no complex numbers"):
        codec_of({"z": np.zeros(3, np.complex64)})
