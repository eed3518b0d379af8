"""Methods that one paper has, and the plugins by which they are found.

What all methods have in common is in tests/methods/test_methods_laws.py, for those of
`fedsz.contrib`, too.
"""

from __future__ import annotations

import math
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsz import contrib, plugins
from fedsz.contrib.layered import _exponential, _sine
from fedsz.errors import CodecError, ConfigError
from fedsz.methods import Shared, TensorSpec, all_methods, parse
from tests.methods import test_methods_laws as laws

SPEC = TensorSpec((60, 40), name="fc.weight")


def matrix(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SPEC.shape).astype(np.float32)


def coded(text: str, x: np.ndarray, state: Any = None, round_: int = 1) -> tuple[np.ndarray, Any]:
    return laws.coded(parse(text), x, Shared(SPEC, 1, round_), state)[1:]


def test_factors_that_are_kept_come_near_the_best_of_their_rank() -> None:
    x, state, losses = matrix(1), None, []
    for round_ in range(60):
        decoded, state = coded("powersgd:rank=4", x, state, round_)
        losses.append(float(np.square(decoded - x).sum()))
    best = np.square(np.linalg.svd(x, compute_uv=False)[4:]).sum()

    assert losses[0] > 1.05 * best
    assert losses[-1] < 1.01 * best


def test_what_has_the_rank_comes_back_in_the_first_round() -> None:
    x = matrix(2)[:, :3] @ matrix(3)[:3]

    decoded, _ = coded("powersgd:rank=4", x)

    assert np.allclose(decoded, x, atol=1e-4)


def test_momentum_ends_where_it_is_sent_and_goes_on_elsewhere() -> None:
    x = matrix(4)

    decoded, state = coded("dgc:momentum=0.5>topk:k=10%", x)

    sent = decoded != 0
    assert 0 < sent.sum() < sent.size
    assert not state["inner"]["dgc.momentum"][sent].any()
    assert not state["inner"]["dgc.residual"][sent].any()
    assert np.array_equal(state["inner"]["dgc.momentum"][~sent], x[~sent])

    _, state = coded("dgc:momentum=0.5>topk:k=10%", np.zeros_like(x), state, 2)
    waits = ~sent & (state["inner"]["dgc.momentum"] != 0)
    assert np.allclose(state["inner"]["dgc.residual"][waits], 1.5 * x[waits])


def test_large_steps_are_clipped_before_they_become_momentum() -> None:
    x = matrix(5)

    decoded, _ = coded("dgc:clip=2>topk:k=100%", x)

    assert np.allclose(decoded, 2 * x / np.linalg.norm(x), atol=1e-6)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_extrapolated_errors_are_those_of_the_formula_and_none_is_lost(decay: float) -> None:
    text, state = f"ecx:decay={decay},smooth=0.3>centroids:bits=3", None
    sent = given = owed = last = before = np.zeros(SPEC.shape, np.float32)

    for round_ in range(1, 30):
        x = matrix(round_)
        decoded, state = coded(text, x, state, round_)
        owed = 0.7 * owed + 0.3 * (2 * last - before)
        assert np.allclose(state["inner"]["ecx.filtered"], owed, atol=1e-4)
        last, before = x + decay * owed - decoded, last
        assert np.allclose(state["inner"]["ecx.residual"], last, atol=1e-4)
        sent, given = sent + decoded, given + x

    if decay < 1:
        return
    for round_ in range(30, 60):  # what is owed arrives when nothing is added
        decoded, state = coded(text, np.zeros_like(sent), state, round_)
        sent = sent + decoded
    assert np.abs(sent - given).max() < 1e-3 * np.abs(given).max()


def kept(text: str, factors: list[float]) -> list[int]:
    """Return how many elements are sent of an update that is multiplied by each factor."""
    transform, counts, x = parse(text), [], matrix(1)
    state = transform.init(SPEC)
    for round_, factor in enumerate(factors, 1):
        shared = Shared(SPEC, 1, round_)
        coded, state = transform.encode(np.float32(factor) * x, state, shared)
        counts.append(coded[0]["values"].size)
    return counts


def test_accordion_keeps_more_where_the_norm_changes() -> None:
    few, many = 24, 240
    assert kept("adaptive>topk:k=1%", [1, 1, 1.4, 0.4, 0.4, 0, 1]) == [
        many, few, few, many, few, many, many,
    ]  # fmt: skip
    assert kept("adaptive:times=2,threshold=0.1>topk:k=24", [1, 1, 1.2]) == [48, 24, 48]


def test_an_adaptive_k_follows_the_variance_within_its_limits() -> None:
    assert kept("adaptive:by=variance,times=4>topk:k=1%", [1, 1, 1.1, 10, 0.01]) == [
        24, 24, 29, 96, 6,
    ]  # fmt: skip


def test_a_receiver_needs_no_word_of_what_was_adapted() -> None:
    text = "adaptive>feedback>topk:k=1%>ternary"
    assert str(parse(text).sent) == "topk>ternary"


SIZE = 60_000
TENSORS = {
    "zeros": lambda draws: np.zeros(SIZE),
    "laplace": lambda draws: draws.laplace(size=SIZE) * 0.01,
    "sparse": lambda draws: np.where(draws.random(SIZE) < 0.01, 1.0, 0.0),
    "one value": lambda draws: np.full(SIZE, 0.123456789),
    "heavy tails": lambda draws: draws.standard_t(3, SIZE),
}


def error_of(text: str, x: np.ndarray, round_: int = 1) -> np.ndarray:
    part, shared = parse(text), Shared(TensorSpec(x.shape, x.dtype, "w"), 5, round_, 7)
    symbols, _ = part.encode(x, {}, shared)
    return np.asarray(part.decode(symbols, shared)).astype(np.float64) - x


@pytest.mark.parametrize("sigma", [1e-4, 0.02, 50.0])
@pytest.mark.parametrize("kind", TENSORS)
def test_the_error_is_normal_whatever_is_coded(kind: str, sigma: float) -> None:
    x = TENSORS[kind](np.random.default_rng(1))

    error = error_of(f"layered:sigma={sigma}", x) / sigma

    assert stats.kstest(error, "norm").pvalue > 1e-4


@pytest.mark.parametrize("text", ["layered:sigma=0.02", "uveqfed:step=2"])
def test_the_error_is_independent_of_the_data(text: str) -> None:
    """It has one law where elements are small, large, positive and negative, and no correlation
    with them in sign or in size; qsgd, for one, errs otherwise."""

    def tells(text: str) -> float:
        x = np.random.default_rng(2).laplace(size=SIZE) * 0.03
        error = error_of(text, x)
        parts = [np.abs(x) < 0.01, np.abs(x) > 0.06, x > 0, x < 0]
        pairs = [(error[part], error[~part]) for part in parts]
        laws = [stats.ks_2samp(*pair).pvalue for pair in pairs]
        both = [stats.spearmanr(np.abs(x), e).pvalue for e in (error, np.abs(error))]
        return float(min(*laws, *both))

    assert tells(text) > 1e-4
    assert tells("qsgd") < 1e-20


def test_errors_of_rounds_and_senders_are_independent() -> None:
    x = np.random.default_rng(3).normal(size=SIZE)

    one, other = (error_of("layered:sigma=0.1", x, r) for r in (1, 2))

    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(SIZE)
    assert np.array_equal(one, error_of("layered:sigma=0.1", x, 1))
    half = np.std([error_of("layered:sigma=0.1", x, r)[:2000] for r in range(30)], axis=0)
    assert half.mean() == pytest.approx(0.1, rel=0.03)


def test_a_mean_of_n_has_the_noise_of_one_over_root_n() -> None:
    x = np.random.default_rng(4).laplace(size=4000)

    mean = np.mean([error_of("layered:sigma=0.5", x, r) for r in range(25)], axis=0)

    assert stats.kstest(mean / 0.1, "norm").pvalue > 1e-4


def test_own_logarithms_and_sines_are_right() -> None:
    u = np.concatenate([np.random.default_rng(5).random(50_000), [0, 0.5, 1 - 2.0**-53]])
    angle = u * (math.pi / 2)

    np.testing.assert_allclose(_exponential(u), -np.log1p(-u), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(_sine(angle), np.sin(angle), rtol=1e-14)


def test_what_has_too_many_steps_is_refused() -> None:
    with pytest.raises(CodecError, match=r"beyond 2\^22 steps of sigma 1e-10"):
        error_of("layered:sigma=1e-10", np.full(10, 1e6))


class Mine:
    """A method of another package, of which only the name is asked for here."""

    name = "mine"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Register entry points of an installed package: name and object."""

    def register(*entries: tuple[str, str]) -> None:
        found = [EntryPoint(name, value, plugins.METHODS) for name, value in entries]
        monkeypatch.setattr(plugins, "entry_points", lambda group: found)
        plugins.loaded.cache_clear()

    yield register
    plugins.loaded.cache_clear()


def test_methods_of_contrib_and_of_other_packages_are_found(registered: Any) -> None:
    registered(("mine", "tests.contrib.test_contrib:Mine"))

    names = [method.name for method in all_methods()]

    assert names[-1] == "mine"
    own = [name for name, _ in contrib.ENTRY_POINTS[plugins.METHODS]]
    assert names[-1 - len(own) : -1] == own


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module:Mine", "No module named 'no_such_module'"),
        ("tests.contrib.test_contrib:NoSuchClass", "no attribute 'NoSuchClass'"),
        ("fedsz.contrib.dgc:Dgc", "'dgc' exists"),
    ],
)
def test_a_plugin_that_does_not_load_is_named(registered: Any, value: str, why: str) -> None:
    registered(("broken", value))

    with pytest.raises(ConfigError, match=f"plugin 'broken' .*{why}"):
        parse("nosuchmethod")
    assert str(parse("topk>ternary")) == "topk>ternary"  # which the core has
