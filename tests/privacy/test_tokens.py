"""Updates as tokens of a ring: sums are exact and cannot overflow, the mean is within the grid."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.errors import ConfigError, ModelMismatch
from fedsz.privacy.quantizer import TokenCodec, about
from tests.conftest import ROOT
from tests.privacy.token_rounds import Round, model, plan_of, stepped


@given(clients=st.integers(1, 1 << 20), bits=st.integers(2, 32))
def test_no_sum_of_tokens_overflows(clients: int, bits: int) -> None:
    try:
        plan = plan_of({"w": np.ones(3, np.float32)}, clients=clients, bits=bits)
    except ConfigError:
        assert 2 * clients + 1 > 1 << bits  # not even -1, 0 and 1
        return
    assert clients * 2 * plan.most < 1 << bits
    assert clients * (plan.base - 1) < 1 << bits
    needed = [(2 * (plan.most + more) * clients).bit_length() for more in (0, 1)]
    assert needed[0] <= bits < needed[1]


@pytest.mark.repository
def test_the_table_of_bits_is_what_rings_take() -> None:
    page = (ROOT / "docs" / "results" / "privacy.md").read_text("utf-8")
    for most in (1, 3, 31):
        first, *others = (str((2 * most * clients).bit_length()) for clients in (4, 10, 100, 1000))
        unit = " bits" if most == 1 else ""
        assert f"| {2 * most + 1} | {first}{unit} | {' | '.join(others)} |" in page


@pytest.mark.parametrize(
    ("clients", "bits"), [(1, 2), (4, 5), (4, 8), (5, 4), (100, 10), (4, 16), (4, 32), (1, 32)]
)
def test_the_largest_updates_do_not_overflow(clients: int, bits: int) -> None:
    start = model()
    plan = plan_of(start, clients=clients, bits=bits)
    codec = TokenCodec(plan, start)
    for sign in (1, -1):
        far = {name: x + np.float32(sign * 1e30) for name, x in start.items()}
        done = Round.of(codec, [far] * clients, [plan.cap] * clients)

        mean = codec.decode(done.sums, done.clients)

        assert mean.weight == clients * plan.cap
        for name, spacing in codec.sent.items():
            assert (mean.step[name] == np.float32(sign * plan.most * spacing)).all()


@pytest.mark.parametrize("bits", [9, 12, 28])
def test_the_mean_is_that_of_the_sum_and_within_the_grid(bits: int) -> None:
    start = model()
    plan = plan_of(start, bits=bits, scales=(0.05, 0.05, 0.05))
    codec = TokenCodec(plan, start)
    weights = [1000, 10, 0, 333]
    trained = [stepped(start, seed) for seed in range(4)]
    done = Round.of(codec, trained, weights)

    assert np.array_equal(done.sums, done.plain)
    assert not any(one.clipped for one in done.encoded)
    mean = codec.decode(done.sums, done.clients)

    assert mean.weight == sum(weights)
    tightest = 0.0
    for name, spacing in codec.sent.items():
        steps = [x[name] - start[name] for x in trained]
        true = sum(w * v.astype(np.float64) for w, v in zip(weights, steps, strict=True))
        error = np.abs(true / sum(weights) - mean.step[name])
        bound = 4 / 2 * plan.cap / sum(weights) * spacing
        assert (error <= bound * (1 + 1e-5) + 1e-7).all()
        tightest = max(tightest, float((error / bound).max()))
    assert tightest > 0.2


def test_what_is_not_sent_is_kept() -> None:
    start, weights = model(), [1000, 10, 0, 2333]  # the last is more than the cap
    residuals: list[Mapping[str, np.ndarray]] = [{} for _ in weights]
    meant = [{name: np.zeros(x.shape) for name, x in start.items()} for _ in weights]
    arrived = {name: np.zeros(x.shape) for name, x in start.items()}
    for number in range(1, 9):
        plan = plan_of(start, bits=5)
        codec = TokenCodec(plan, start)
        trained = [stepped(start, 10 * number + seed) for seed in range(4)]
        done = Round.of(codec, trained, weights, residuals)
        mean = codec.decode(done.sums, done.clients)
        used = np.minimum(weights, plan.cap)
        assert mean.weight == used.sum()
        residuals = [one.residual for one in done.encoded]
        for name, x in start.items():
            arrived[name] += mean.step[name]
            for total, one in zip(meant, trained, strict=True):
                total[name] += one[name].astype(np.float64) - x

    for name in start:
        sent = sum(
            w * (total[name] - left[name])
            for w, total, left in zip(used, meant, residuals, strict=True)
        )
        np.testing.assert_allclose(arrived[name], sent / used.sum(), atol=1e-5)
    assert np.allclose(residuals[2]["fc.weight"], meant[2]["fc.weight"], atol=1e-5)  # of weight 0


def test_a_plan_is_about_every_bit_of_it_and_of_the_model() -> None:
    start = model()
    plan, other = plan_of(start), {name: x.copy() for name, x in start.items()}
    other["fc.bias"][7] = np.nextafter(other["fc.bias"][7], np.float32(9))
    wide = {name: x.astype(np.float64) for name, x in start.items()}
    wider = plan_of(start, scales=(*plan.scales[:-1], 1e15))

    assert about(plan, start) == about(plan_of(start), model())
    assert (
        len({about(plan, start), about(plan, other), about(wider, start), about(plan, wide)}) == 4
    )


def test_a_plan_is_for_one_layout() -> None:
    start = model()
    with pytest.raises(ModelMismatch, match="for another model"):
        TokenCodec(plan_of(start, scales=(1.0,)), start)
    with pytest.raises(ModelMismatch):
        TokenCodec(plan_of(start), start).encode({**start, "fc.bias": np.zeros(3)}, 1, {})
