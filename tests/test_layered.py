"""`layered` and `uveqfed`: errors of a known law, which say nothing of what was coded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedsz.errors import CodecError
from fedsz.methods import Shared, TensorSpec, parse
from fedsz.methods.layered import _exponential, _sine

SIZE = 60_000
TENSORS = {
    "zeros": lambda draws: np.zeros(SIZE),
    "laplace": lambda draws: draws.laplace(size=SIZE) * 0.01,
    "sparse": lambda draws: np.where(draws.random(SIZE) < 0.01, 1.0, 0.0),
    "one value": lambda draws: np.full(SIZE, 0.123456789),
    "wide": lambda draws: draws.standard_cauchy(SIZE) * 1e3,
}


def error_of(text: str, x: np.ndarray, round_: int = 1) -> np.ndarray:
    part, shared = parse(text), Shared(TensorSpec(x.shape, x.dtype, "w"), 5, round_, 7)
    planes, _, _ = part.encode(x, {}, shared)
    sent = part.sent(shared.spec)
    assert sent is not None
    return np.asarray(sent.decode(planes, shared)).astype(np.float64) - x


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
    with pytest.raises(CodecError, match=r"beyond 2\^40 steps of sigma 1e-10"):
        error_of("layered:sigma=1e-10", np.full(10, 1e6))
