"""Updates as tokens of a ring: sums are exact and cannot overflow, the mean is within the grid."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.arrays import Layout
from fedsz.errors import (
    ConfigError,
    CorruptStream,
    DivergedUpdate,
    FedszError,
    ModelMismatch,
    ReferenceMismatch,
)
from fedsz.methods import History
from fedsz.secagg.packing import pack, unpack_add
from fedsz.secagg.scales import is_exact, scales_of
from fedsz.secagg.selection import LONGEST, select
from fedsz.secagg.token_plan import TokenPlan, bits_for, layout_digest
from fedsz.secagg.tokens import Encoded, TokenCodec, moved
from fedsz.update.reference import Reference
from tests.conftest import ROOT

Model = dict[str, np.ndarray]
SHAPES = {"conv.weight": (12, 10, 3, 3), "fc.weight": (40, 50), "fc.bias": (40,)}


def model(dtype: Any = np.float32) -> Model:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


def stepped(start: Model, seed: int, size: float = 1e-2) -> Model:
    """The model after a step that is large in few directions, the same for all seeds."""
    rng, found = np.random.default_rng(seed), {}
    for name, x in start.items():
        fixed = np.random.default_rng(len(name))
        rows = max(len(x) if x.ndim else 1, 1)
        flat = x.reshape(rows, -1)
        left, right = (fixed.normal(size=(n, 2)) for n in flat.shape)
        step = left @ rng.normal(size=(2, 2)) @ right.T + 0.1 * rng.normal(size=flat.shape)
        found[name] = (x + size * step.reshape(x.shape)).astype(x.dtype)
    return found


def history_of(start: Model, steps: int = 3) -> History:
    history, before = History(), Reference(start)
    for seed in range(steps):
        now = Reference(stepped(before.arrays, seed))
        history, before = history.beyond(before, now), now
    return history


def plan_of(start: Model, history: History | None = None, **changes: Any) -> TokenPlan:
    told = {
        "layout": layout_digest(Layout.of(start)),
        "number": 1,
        "clients": 4,
        "bits": 8,
        "share": 1.0,
        "seed": 7,
        "cap": 1000,
        "scales": scales_of(start),
        "history": history.digest if history else None,
    }
    return TokenPlan(**(told | changes))


@dataclass
class Round:
    """A round of clients, and what their plain sum is."""

    codec: TokenCodec
    start: Model
    encoded: list[Encoded]
    clients: list[int]

    @classmethod
    def of(
        cls,
        codec: TokenCodec,
        start: Model,
        trained: list[Model],
        weights: list[int],
        residuals: list[Mapping[str, np.ndarray]] | None = None,
    ) -> Round:
        kept = residuals or [{} for _ in trained]
        encoded = [
            codec.encode(x, start, w, r, client)
            for client, (x, w, r) in enumerate(zip(trained, weights, kept, strict=True))
        ]
        return cls(codec, start, encoded, list(range(len(trained))))

    @property
    def sums(self) -> np.ndarray:
        """Through packed bytes."""
        bits = self.codec.plan.bits
        sums = np.zeros(self.codec.count, self.codec.dtype)
        for one in self.encoded:
            unpack_add(pack(one.tokens, bits), bits, sums)
        return sums

    @property
    def plain(self) -> np.ndarray:
        total = np.sum([one.tokens.astype(np.int64) for one in self.encoded], axis=0)
        return total % (1 << self.codec.plan.bits)


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


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__
)
def test_ugly_models(dtype: Any) -> None:
    start = {
        "empty": np.zeros((0, 3), dtype),
        "scalar": np.array(2.0, dtype),
        "one": np.ones((1, 1), dtype),
        "constant": np.zeros((8, 8), dtype),
        "tiny": np.full((4, 5), 1e-7, dtype),
        "bn.running_var": np.array([1e-3, 1.0, 50.0], dtype),
        "bn.num_batches_tracked": np.array(40, np.int64),
        "seen": np.array([True, False]),
        "bytes": np.array([0, 255, 3], np.uint8),
        "large": np.array([2**63, 2**64 - 2], np.uint64),
        "wide": np.array([-1e4, 0, 1e4], dtype),
    }
    plan = plan_of(start, clients=3, bits=8)
    codec = TokenCodec(plan, Layout.of(start))
    trained = []
    for seed in range(3):
        trained.append({
            name: (x + (seed + 1) * 0.01).astype(dtype) if x.dtype == dtype else x.copy()
            for name, x in start.items()
        })  # fmt: skip
        trained[-1]["bn.num_batches_tracked"] += 7
        trained[-1]["bytes"] = np.array([seed, 254, 3], np.uint8)
        trained[-1]["seen"] = np.array([True, seed < 2])
        trained[-1]["large"] += np.uint64(1)

    done = Round.of(codec, start, trained, [5, 5, 5])
    mean = codec.decode(done.sums, done.clients)
    after = {name: moved(x, mean.step[name]) for name, x in start.items()}

    for name, x in start.items():
        assert (after[name].shape, after[name].dtype) == (x.shape, x.dtype)
        assert np.isfinite(after[name].astype(np.float64)).all()
    assert after["bn.num_batches_tracked"] == 47
    assert after["bytes"].tolist() == [1, 254, 3]
    assert after["seen"].tolist() == [True, True]
    assert after["large"].tolist() == [2**63 + 1, 2**64 - 1]
    variance = np.mean([x["bn.running_var"].astype(np.float64) for x in trained], axis=0)
    near = max(2e-3 * 50, float(ml_dtypes.finfo(dtype).eps)) * np.ones(3)
    assert (np.abs(after["bn.running_var"].astype(np.float64) - variance) <= near).all()
    assert all(is_exact(name, codec.layout) == (name not in codec.sent) for name in start)


def test_what_diverged_is_not_sent() -> None:
    start = model()
    codec = TokenCodec(plan_of(start), Layout.of(start))
    for wrong in (np.nan, np.inf, -np.inf):
        trained = stepped(start, 1)
        trained["fc.bias"][3] = wrong
        with pytest.raises(DivergedUpdate, match=r"fc\.bias"):
            codec.encode(trained, start, 1, {})
    doubles = {"w": np.zeros(3)}
    codec = TokenCodec(plan_of(doubles), Layout.of(doubles))
    with pytest.raises(DivergedUpdate):
        codec.encode({"w": np.full(3, 1e300)}, doubles, 1, {})
    with pytest.raises(ConfigError, match="complex"):
        layout_digest(Layout.of({"z": np.zeros(3, np.complex64)}))


def test_scales_follow_what_clients_have_to_send() -> None:
    start = model()
    before, scales = None, []
    for number in range(1, 7):
        plan = plan_of(start, number=number, bits=5, scales=scales_of(start, before))
        codec = TokenCodec(plan, Layout.of(start))
        trained = [stepped(start, 4 * number + seed, size=1e-5) for seed in range(4)]
        done = Round.of(codec, start, trained, [plan.cap] * 4)
        before = codec.decode(done.sums, done.clients).scales
        scales.append(before["fc.weight"])
    rms = np.sqrt(np.mean([(x["fc.weight"] - start["fc.weight"]) ** 2 for x in trained]))
    assert scales[0] > 100 * rms
    assert 0.5 * rms < scales[-1] < 2 * rms


def test_sums_that_cannot_be_are_refused() -> None:
    start = model()
    plan = plan_of(start, bits=6)  # 0 to 14 of each client, of 63
    codec = TokenCodec(plan, Layout.of(start))
    done = Round.of(codec, start, [stepped(start, s) for s in range(4)], [1] * 4)
    beyond = done.sums
    beyond[0] = 60
    with pytest.raises(CorruptStream, match="is 60; have 56"):
        codec.decode(beyond, done.clients)
    with pytest.raises(CorruptStream, match="a sum has"):
        codec.decode(done.sums[1:], done.clients)
    for wrong in ([], list(range(5))):
        with pytest.raises(ConfigError, match="the plan is for 1 to 4"):
            codec.decode(done.sums, wrong)
    nothing = Round.of(codec, start, [stepped(start, s) for s in range(4)], [0] * 4)
    mean = codec.decode(nothing.sums, nothing.clients)
    assert mean.weight == 0
    assert not any(step.any() for step in mean.step.values())


def test_plans_are_bytes_and_others_are_refused() -> None:
    start = model()
    plan = plan_of(start, history_of(start), dither=True)
    data = plan.encode()
    assert TokenPlan.decode(data) == plan
    assert len(data) < 120
    told = msgspec.msgpack.decode(data)
    hostile = [data[:end] for end in range(len(data))] + [data + b"\0", b"\xc0" * (1 << 20)]
    for place, value in [(2, 0), (2, 1 << 40), (3, 33), (3, 2), (4, 0.0), (4, 1.5), (6, 0),
                         (7, [float("nan")]), (7, [0.0]), (7, [1.0] * 70_000), (0, b"short"),
                         (8, 0), (8, 17), (8, 3), (9, 1), (10, b""), (5, -1)]:  # fmt: skip
        hostile.append(msgspec.msgpack.encode([*told[:place], value, *told[place + 1 :]]))
    hostile += [msgspec.msgpack.encode([*told, 1]), b"\0" * ((1 << 20) + 1)]
    for wrong in hostile:
        with pytest.raises(CorruptStream):
            TokenPlan.decode(wrong)


@given(data=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(FedszError):
        TokenPlan.decode(data)
