"""Tokens of ugly models, and sums and plans that cannot be."""

from __future__ import annotations

import contextlib
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.errors import (
    ConfigError,
    CorruptStream,
    DivergedUpdate,
    FedszError,
)
from fedsz.privacy.quantizer import TokenCodec, TokenPlan, is_exact, moved, scales_of
from tests.privacy.token_rounds import Round, model, plan_of, stepped


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


def test_scales_are_bounded_by_the_weights() -> None:
    start = model()
    (most,) = set(np.divide(scales_of(start, dict.fromkeys(start, 1e300)), scales_of(start)))
    assert most == 100


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
    hostile += [msgspec.msgpack.encode([*told, 1]), b"\0" * ((1 << 20) + 1)]
    for wrong in hostile:
        with pytest.raises(CorruptStream):
            TokenPlan.decode(wrong)


@given(data=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(FedszError):
        TokenPlan.decode(data)
