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

from fedsz.errors import ConfigError, CorruptStream, DivergedUpdate, FedszError, ModelMismatch
from fedsz.privacy.quantizer import (
    Encoded,
    TokenCodec,
    TokenPlan,
    about,
    is_exact,
    moved,
    scales_of,
)
from fedsz.privacy.ring import Ring
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


def plan_of(start: Model, **changes: Any) -> TokenPlan:
    told = {"clients": 4, "bits": 8, "cap": 1000, "scales": scales_of(start)}
    return TokenPlan(**(told | changes))


@dataclass
class Round:
    """A round of clients, and what their plain sum is."""

    codec: TokenCodec
    encoded: list[Encoded]

    @classmethod
    def of(
        cls,
        codec: TokenCodec,
        trained: list[Model],
        weights: list[int],
        residuals: list[Mapping[str, np.ndarray]] | None = None,
    ) -> Round:
        kept = residuals or [{} for _ in trained]
        encoded = [codec.encode(x, w, r) for x, w, r in zip(trained, weights, kept, strict=True)]
        return cls(codec, encoded)

    @property
    def clients(self) -> int:
        return len(self.encoded)

    @property
    def sums(self) -> np.ndarray:
        """Through packed bytes."""
        bits = self.codec.plan.bits
        sums = np.zeros(self.codec.count, self.codec.dtype)
        for one in self.encoded:
            Ring(bits).unpack_add(Ring(bits).pack(one.tokens), sums)
        return sums

    @property
    def plain(self) -> np.ndarray:
        total = np.sum([one.tokens.astype(np.int64) for one in self.encoded], axis=0)
        return total % (1 << self.codec.plan.bits)


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


# Models that are ugly, and sums and plans that cannot be.


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
    codec = TokenCodec(plan, start)
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

    done = Round.of(codec, trained, [5, 5, 5])
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
    codec = TokenCodec(plan_of(start), start)
    for wrong in (np.nan, np.inf, -np.inf):
        trained = stepped(start, 1)
        trained["fc.bias"][3] = wrong
        with pytest.raises(DivergedUpdate, match=r"fc\.bias"):
            codec.encode(trained, 1, {})
    doubles = {"w": np.zeros(3)}
    codec = TokenCodec(plan_of(doubles), doubles)
    with pytest.raises(DivergedUpdate):
        codec.encode({"w": np.full(3, 1e300)}, 1, {})
    with pytest.raises(ConfigError, match="complex"):
        TokenCodec(plan_of({"w": np.zeros(3)}), {"z": np.zeros(3, np.complex64)})


def test_scales_follow_what_clients_have_to_send() -> None:
    start = model()
    before, scales = None, []
    for number in range(1, 7):
        plan = plan_of(start, bits=5, scales=scales_of(start, before))
        codec = TokenCodec(plan, start)
        trained = [stepped(start, 4 * number + seed, size=1e-5) for seed in range(4)]
        done = Round.of(codec, trained, [plan.cap] * 4)
        before = codec.decode(done.sums, done.clients).scales
        scales.append(before["fc.weight"])
    rms = np.sqrt(np.mean([(x["fc.weight"] - start["fc.weight"]) ** 2 for x in trained]))
    assert scales[0] > 100 * rms
    assert 0.5 * rms < scales[-1] < 2 * rms


@pytest.mark.parametrize(("clients", "bits", "liars"), [(5, 16, 1), (5, 8, 1), (100, 16, 10)])
def test_clients_that_lie_about_energies_keep_nobody_from_learning(
    clients: int, bits: int, liars: int
) -> None:
    start = {"w": model()["fc.weight"][:4]}
    trained = [stepped(start, seed) for seed in range(clients)]
    step = np.mean([x["w"].astype(np.float64) - start["w"] for x in trained], axis=0)
    residuals: list[dict[str, np.ndarray]] = [{} for _ in trained]
    before, arrived = None, np.zeros(step.shape)
    for _ in range(200):
        scales = scales_of(start, before)
        plan = plan_of(start, clients=clients, bits=bits, scales=scales)
        codec = TokenCodec(plan, start)
        done = Round.of(codec, trained, [plan.cap] * clients, residuals)
        residuals = [one.residual for one in done.encoded]
        sums = done.sums.copy()
        for one in done.encoded[:liars]:  # the last numbers are energies, one of each tensor
            digits = plan.digits
            sums[-digits:] += np.full(digits, plan.base - 1, sums.dtype) - one.tokens[-digits:]
        mean = codec.decode(sums, done.clients)
        before, arrived = mean.scales, arrived + mean.step["w"]
    rms = np.sqrt(np.mean([(x["w"] - start["w"]) ** 2 for x in trained]))
    assert mean.scales["w"] < 4 * rms
    np.testing.assert_allclose(arrived / 200, step, atol=0.1 * rms)


def test_the_scale_of_a_tensor_that_does_not_train_stays_above_zero() -> None:
    start, before = model(), None
    for _ in range(600):
        plan = plan_of(start, scales=scales_of(start, before))
        codec = TokenCodec(plan, start)
        done = Round.of(codec, [start] * 4, [1] * 4)
        before = codec.decode(done.sums, done.clients).scales

    assert all(0 < scale < 1e-10 for scale in plan.scales)
    codec.encode(stepped(start, 1), 1, {})


def test_sums_that_cannot_be_are_refused() -> None:
    start = model()
    plan = plan_of(start, bits=6)  # 0 to 14 of each client, of 63
    codec = TokenCodec(plan, start)
    done = Round.of(codec, [stepped(start, s) for s in range(4)], [1] * 4)
    beyond = done.sums
    beyond[0] = 60
    with pytest.raises(CorruptStream, match="is 60; have 56"):
        codec.decode(beyond, done.clients)
    with pytest.raises(CorruptStream, match="a sum has"):
        codec.decode(done.sums[1:], done.clients)
    for wrong in (0, 5):
        with pytest.raises(ConfigError, match="the plan is for 1 to 4"):
            codec.decode(done.sums, wrong)
    nothing = Round.of(codec, [stepped(start, s) for s in range(4)], [0] * 4)
    mean = codec.decode(nothing.sums, nothing.clients)
    assert mean.weight == 0
    assert not any(step.any() for step in mean.step.values())


def test_plans_are_bytes_and_others_are_refused() -> None:
    start = model()
    plan = plan_of(start)
    data = msgspec.msgpack.encode(plan)
    assert TokenPlan.decode(data) == plan
    assert len(data) < 300
    told = msgspec.msgpack.decode(data)
    hostile = [data[:end] for end in range(len(data))] + [data + b"\0", b"\xc0" * (1 << 20)]
    for place, value in [(0, "Other"), (1, 33), (1, 3), (1, 1), (2, 0), (2, 1 << 40), (3, 0),
                         (3, 1 << 33), (3, -1), (4, [float("nan")]), (4, [0.0]), (4, [1e308]),
                         (4, [5e-324]), (4, [1.0] * 70_000)]:  # fmt: skip
        hostile.append(msgspec.msgpack.encode([*told[:place], value, *told[place + 1 :]]))
    hostile += [msgspec.msgpack.encode([*told, 1]), b"\0" * ((1 << 20) + 1), b"\x95\xa4\0\0\0\x80"]
    for wrong in hostile:
        with pytest.raises(CorruptStream):
            TokenPlan.decode(wrong)


@given(data=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(FedszError):
        TokenPlan.decode(data)
