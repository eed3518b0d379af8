"""Updates as tokens of a ring: sums are exact and cannot overflow, the mean is within the grid."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.arrays import Layout
from fedsz.errors import (
    ConfigError,
    ModelMismatch,
    ReferenceMismatch,
)
from fedsz.methods import History
from fedsz.secagg.selection import LONGEST, select
from fedsz.secagg.token_plan import bits_for
from fedsz.secagg.tokens import TokenCodec
from tests.conftest import ROOT
from tests.token_rounds import Round, history_of, model, plan_of, stepped


@given(clients=st.integers(1, 1 << 20), bits=st.integers(2, 32), together=st.integers(1, 16))
def test_no_sum_of_tokens_overflows(clients: int, bits: int, together: int) -> None:
    told = {"clients": clients, "bits": bits, "together": together}
    try:
        plan = plan_of({"w": np.ones(3, np.float32)}, **told)
    except ConfigError:
        assert (2 * clients + 1) ** together > 1 << bits  # not even -1, 0 and 1
        return
    highest = sum(clients * 2 * plan.most * plan.place**i for i in range(together))
    assert clients * 2 * plan.most < plan.place
    assert highest < plan.place**together <= 1 << bits
    assert clients * (plan.base - 1) < 1 << bits
    needed = [bits_for(clients, plan.most + more, together) for more in (0, 1)]
    assert needed[0] <= bits < needed[1]


@pytest.mark.repository
def test_the_table_of_bits_is_what_rings_take() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    for most in (1, 3, 31):
        least = [
            min(bits / k for k in range(1, 17) if (bits := bits_for(clients, most, k)) <= 32)
            for clients in (4, 10, 100, 1000)
        ]
        first, *others = (f"{bits:.1f}" for bits in least)
        unit = " bits" if most == 1 else ""
        assert f"| {2 * most + 1} | {first}{unit} | {' | '.join(others)} |" in page


@pytest.mark.parametrize(
    ("clients", "bits", "together"),
    [
        (1, 2, 1),
        (4, 5, 1),
        (4, 8, 1),
        (5, 4, 1),
        (100, 10, 1),
        (4, 16, 5),
        (4, 32, 10),
        (1, 32, 16),
    ],
)
def test_the_largest_updates_do_not_overflow(clients: int, bits: int, together: int) -> None:
    start = model()
    plan = plan_of(start, clients=clients, bits=bits, together=together)
    codec = TokenCodec(plan, Layout.of(start))
    for sign in (1, -1):
        far = {name: x + np.float32(sign * 1e30) for name, x in start.items()}
        done = Round.of(codec, start, [far] * clients, [plan.cap] * clients)

        mean = codec.decode(done.sums, done.clients)

        assert mean.weight == clients * plan.cap
        for name, sent in codec.sent.items():
            here = sent.where
            ends = sign * plan.most * sent.grid
            assert np.array_equal(mean.step[name].reshape(-1)[here], ends.astype(np.float32))


@pytest.mark.parametrize("dither", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(("bits", "together", "share"), [(12, 1, 1.0), (9, 1, 0.2), (28, 3, 0.2)])
def test_the_mean_is_that_of_the_sum_and_within_the_grid(
    dither: bool, steps: int, bits: int, together: int, share: float
) -> None:
    start = model()
    history = history_of(start, steps) if steps else None
    told = {"bits": bits, "together": together, "share": share, "dither": dither}
    plan = plan_of(start, history, **told, scales=(0.05, 0.05, 0.05))
    codec = TokenCodec(plan, Layout.of(start), history)
    weights = [1000, 10, 0, 333]
    trained = [stepped(start, seed) for seed in range(4)]
    done = Round.of(codec, start, trained, weights)

    assert np.array_equal(done.sums, done.plain)
    assert not any(one.clipped for one in done.encoded)
    mean = codec.decode(done.sums, done.clients)

    assert mean.weight == sum(weights)
    tightest = 0.0
    for name, sent in codec.sent.items():
        steps_of = [x[name].reshape(-1) - start[name].reshape(-1) for x in trained]
        true = sum(w * v.astype(np.float64) for w, v in zip(weights, steps_of, strict=True))
        pair = [true / sum(weights), mean.step[name].reshape(-1).astype(np.float64)]
        if sent.basis is not None:
            pair = [sent.basis.coefficients(v) for v in pair]
        error = np.abs(pair[0] - pair[1])[sent.where]
        bound = 4 / 2 * plan.cap / sum(weights) * sent.grid
        assert (error <= bound * (1 + 1e-5) + 1e-7).all()
        tightest = max(tightest, float((error / bound).max()))
    assert tightest > 0.2


def test_what_is_not_sent_is_kept() -> None:
    start, weights = model(), [1000, 10, 0, 2333]  # the last is more than the cap
    history = history_of(start)
    residuals: list[Mapping[str, np.ndarray]] = [{} for _ in weights]
    meant = [{name: np.zeros(x.shape) for name, x in start.items()} for _ in weights]
    arrived = {name: np.zeros(x.shape) for name, x in start.items()}
    for number in range(1, 9):
        plan = plan_of(start, history, number=number, bits=16, together=5, share=0.2)
        codec = TokenCodec(plan, Layout.of(start), history)
        trained = [stepped(start, 10 * number + seed) for seed in range(4)]
        done = Round.of(codec, start, trained, weights, residuals)
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
    wider = plan_of(start, scales=(*plan.scales[:-1], 1e15))

    assert plan.about(start) == plan_of(start).about(model())
    assert len({plan.about(start), plan.about(other), wider.about(start)}) == 3


def test_each_coefficient_is_sent_in_its_turn() -> None:
    start = model()
    rng = np.random.default_rng(0)
    history = history_of(start)
    waited = {name: np.zeros(x.size, int) for name, x in start.items()}
    shares = []
    for number in range(2 * LONGEST):
        scales = tuple(rng.uniform(0.1, 10, 3))
        plan = plan_of(start, history, number=number, share=0.2, scales=scales)
        sent = select(plan, Layout.of(start), history)
        for name, one in sent.items():
            waited[name] += 1
            waited[name][one.where] = 0
            assert waited[name].max() < LONGEST
        shares.append(
            sum(s.where.size for s in sent.values()) / sum(x.size for x in start.values())
        )
    assert 0.15 < np.mean(shares) < 0.21


def test_a_history_shows_where_an_update_is_large() -> None:
    start = model()
    history, share = history_of(start), 0.1
    trained = stepped(start, 99)
    step = trained["fc.weight"] - start["fc.weight"]

    def kept(history: History | None) -> float:
        plan = plan_of(start, history, share=share, scales=(1.0, 1.0, 1.0))
        sent = select(plan, Layout.of(start), history)["fc.weight"]
        y = step.reshape(-1) if sent.basis is None else sent.basis.coefficients(step)
        return float(np.sum(y[sent.where] ** 2) / np.sum(y**2))

    assert kept(history) > 0.8 > 0.3 > kept(None)


def test_sides_of_one_history_select_the_same() -> None:
    start = model()
    ours, theirs = history_of(start), history_of(start)
    plan = plan_of(start, ours, share=0.2)
    pairs = [select(plan, Layout.of(start), h) for h in (ours, theirs)]
    for one, other in zip(*(p.values() for p in pairs), strict=True):
        assert np.array_equal(one.where, other.where)
        assert np.array_equal(one.grid, other.grid)
    for wrong in (None, history_of(start, 2)):
        with pytest.raises(ReferenceMismatch):
            TokenCodec(plan, Layout.of(start), wrong)
    with pytest.raises(ModelMismatch):
        TokenCodec(plan, Layout.of(model(np.float64)), ours)


def test_dithered_errors_are_uniform_whatever_the_update() -> None:
    start = {"w": np.zeros(20_000, np.float32)}
    plan = plan_of(start, clients=1, bits=8, scales=(1.0,), dither=True)
    codec = TokenCodec(plan, Layout.of(start))
    for value in (0.0, 0.3, -0.511):
        trained = {"w": np.full(20_000, value, np.float32)}
        mean = codec.decode(codec.encode(trained, start, plan.cap, {}, 5).tokens, [5])
        error = (mean.step["w"] - trained["w"]) / codec.sent["w"].grid
        ranks = np.sort(error)
        assert np.abs(ranks - np.linspace(-0.5, 0.5, ranks.size)).max() < 0.02  # Kolmogorov-Smirnov
        assert abs(np.corrcoef(error[1:], error[:-1])[0, 1]) < 0.03
