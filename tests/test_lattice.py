"""Missed broadcasts add up: any number of them is one array, and leads to the same model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsz
from fedsz.codecs import Uniform
from fedsz.codecs.uniform import DTYPE_IDS
from fedsz.core.broadcast import HISTORY, Broadcast
from fedsz.core.grid import nearest, step_below
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings

CONFIG = Settings(threshold=0, downlink="step:1")
BOUNDS = ("step:0.6", "step:1.5", "std:1", "1e-3", "abs:1e-4")
DTYPES = (np.float32, np.float32, np.float16, ml_dtypes.bfloat16, np.float64)


def training(rounds: int, seed: int, scale: float = 1.0) -> Iterator[dict[str, np.ndarray]]:
    """A model of many kinds of tensors, and what training makes of what clients hold."""
    rng = np.random.default_rng(seed)
    model = {
        f"{np.dtype(dtype).name}.{i}": (scale * rng.normal(size=(40, 30))).astype(dtype)
        for i, dtype in enumerate(DTYPES)
    }
    model |= {
        "zeros": np.zeros((20, 8), np.float32),
        "ones": np.ones(16, np.float32),
        "tenths": np.full(16, 0.1, np.float32),
        "subnormal": np.full(12, 1e-42, np.float32),
        "mask": np.array([0.0, -np.inf], np.float32),
        "steps": np.array(7),
    }
    for _ in range(rounds):
        yield model
        size = 0.01 * scale * rng.uniform(0.3, 1.5)
        model = {
            name: (x + size * rng.laplace(size=x.shape)).astype(x.dtype)
            if name not in ("ones", "mask", "steps", "subnormal")
            else x
            for name, x in model.items()
        }


def received(streams: Sequence[bytes], held: Reference | None = None) -> Reference:
    for stream in streams:
        held = Reference(fedsz.decompress(stream, reference=held, as_numpy=True))
    assert held is not None
    return held


def put(downlink: Broadcast, model: dict[str, np.ndarray]) -> Reference:
    """Return what those who follow the broadcast hold."""
    downlink.put(model, reference=True)
    assert downlink.model is not None
    return downlink.model


def resumed(downlink: Broadcast, config: Settings) -> Broadcast:
    """What goes on from the checkpoint of a broadcast."""
    again = Broadcast(config)
    again.restore(downlink.state())
    return again


@settings(max_examples=12)
@given(
    seed=st.integers(0, 1 << 16),
    scale=st.sampled_from([1.0, 1e-6, 3e3]),
    bounds=st.lists(st.sampled_from(BOUNDS), min_size=5, max_size=5),
    crash=st.integers(1, 5),
)
def test_one_array_leads_where_the_chain_leads(
    seed: int, scale: float, bounds: list[str], crash: int
) -> None:
    downlink = Broadcast(CONFIG.replace(downlink=bounds[0]))
    chain: Reference | None = None
    models: list[Reference] = []
    for t, model in enumerate(training(5, seed, scale)):
        config = CONFIG.replace(downlink=bounds[t])
        if t == crash:
            downlink = resumed(downlink, config)
        downlink.steer(config)
        meant = put(downlink, model)
        chain = received(downlink.streams(chain.digest if chain else b""), chain)
        assert chain.digest == meant.digest
        for held in models:
            assert received(downlink.streams(held.digest), held).digest == chain.digest
        assert received(downlink.streams(b"")).digest == chain.digest
        models.append(chain)


def walk(rounds: int, size: float = 0.01) -> Iterator[dict[str, np.ndarray]]:
    """A model of one tensor, as large as what takes part in a stream's overhead is small."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 100)).astype(np.float32)
    for _ in range(rounds):
        yield {"fc.weight": x}
        x = (x + size * rng.laplace(size=x.shape)).astype(np.float32)


@pytest.mark.parametrize(("codec", "rounds", "share"), [("uniform", 9, 0.5), ("szx", 4, 1)])
def test_missed_rounds_cost_one_array_and_no_model_what_its_points_cost(
    codec: str, rounds: int, share: float
) -> None:
    """A codec without steps has no lattice, and keeps to its bound all the same."""
    downlink = Broadcast(CONFIG.replace(codec=codec))
    first, *_, last = [put(downlink, model) for model in walk(rounds)]
    steps = [len(step.stream) for step in downlink.steps[1:]]

    assert len(steps) == rounds - 1
    assert all(2 * nbytes < downlink.raw_bytes for nbytes in steps)
    assert sum(map(len, downlink.streams(first.digest))) <= share * sum(steps)
    if codec == "uniform":
        lossless = fedsz.compress(last.arrays, codec="blosclz")
        assert 2 * sum(map(len, downlink.streams(b""))) < len(lossless)


def test_after_eighty_rounds_nobody_is_sent_more_than_the_whole_model() -> None:
    downlink, held = Broadcast(CONFIG), []
    for model in walk(80):
        held.append(put(downlink, model))
        assert sum(len(step.stream) for step in downlink.steps) <= HISTORY * downlink.raw_bytes

    whole = sum(map(len, downlink.streams(b"")))
    for model in (held[0], held[40], held[78]):
        streams = downlink.streams(model.digest)
        assert sum(map(len, streams)) <= whole
        assert received(streams, model).digest == held[-1].digest
    assert sum(map(len, downlink.streams(held[70].digest))) < whole


@pytest.mark.parametrize("bound", ["abs:1e-3", "0.004"])
def test_a_named_bound_is_kept(bound: str) -> None:
    downlink, owed = Broadcast(CONFIG.replace(downlink=bound)), np.zeros((200, 100))
    for t, model in enumerate(walk(6)):
        meant = model["fc.weight"] + owed
        owed = meant - put(downlink, model).arrays["fc.weight"].astype(np.float64)
        if t:
            most = fedsz.ErrorBound.of(bound).absolute(meant)
            assert most / 4 < np.abs(owed).max() <= most * (1 + 1e-6)


def test_a_tensor_that_outgrows_its_lattice_gets_another_in_a_key_frame() -> None:
    """Points of a lattice have 24 bits; in one large step the last of them are behind."""
    downlink = Broadcast(CONFIG.replace(downlink="step:0.1"))
    rng = np.random.default_rng(0)
    model = {"fc.weight": rng.normal(size=(60, 50)).astype(np.float32)}
    lengths = []
    for size in (1e-3, 1e-3, 1e6, 1e6, 1e6):
        held = put(downlink, model)
        lengths.append(len(downlink.steps))
        assert received(downlink.streams(b"")).digest == held.digest
        assert set(downlink.steps[-1].grid) == {"fc.weight"}
        start = held.arrays["fc.weight"]
        model = {"fc.weight": start + size * rng.normal(size=start.shape).astype(np.float32)}

    assert lengths == [1, 2, 3, 1, 2]


def test_a_shared_model_that_grows_fiftyfold_goes_as_differences() -> None:
    x = 0.02 * np.random.default_rng(0).normal(size=(60, 50)).astype(np.float32)
    downlink = Broadcast(CONFIG.replace(downlink="step:0.5"), shared_initial=True)
    first = put(downlink, {"fc.weight": x})
    for _ in range(9):
        x = x * np.float32(1.55)
        put(downlink, {"fc.weight": x})
    assert np.abs(x).max() > 50 * np.abs(first.arrays["fc.weight"]).max()
    assert downlink.steps[1].digest == first.digest


def test_a_small_tensor_that_outgrows_its_lattice_leaves_it_alone() -> None:
    rng = np.random.default_rng(0)
    downlink = Broadcast(CONFIG.replace(downlink="step:2"), shared_initial=True)
    model = {"fc.weight": rng.normal(size=(60, 50)), "fc.bias": 0.01 * rng.random(10)}
    model = {name: x.astype(np.float32) for name, x in model.items()}
    chain: Reference | None = None
    for number in range(20):
        held = put(downlink, model)
        if number % 3 != 1:  # a client that misses some rounds
            chain = received(downlink.streams(chain.digest if chain else b""), chain)
            assert chain.digest == held.digest
        model = {
            "fc.weight": model["fc.weight"] + 0.01 * rng.normal(size=(60, 50)).astype(np.float32),
            "fc.bias": model["fc.bias"] * np.float32(1.5),
        }
    assert len(downlink.steps) == 21
    assert set(downlink.steps[1].grid) == {"fc.weight", "fc.bias"}
    assert set(downlink.steps[-1].grid) == {"fc.weight"}


@settings(max_examples=60)
@given(
    most=st.floats(1e-30, 1e30),
    like=st.just(0.0) | st.floats(1e-30, 1e30).map(lambda x: step_below(x)),
)
def test_a_step_is_within_the_bound_and_of_few_bits(most: float, like: float) -> None:
    step = step_below(most, like)

    assert step <= most < (2 if like else 9 / 8) * step * (1 + 1e-9)
    mantissa = math.frexp(step)[0] * 16
    assert mantissa == int(mantissa)
    if like:
        assert math.frexp(step / like)[0] == 0.5


@given(
    numbers=st.lists(st.integers(-(1 << 20), 1 << 20), min_size=1, max_size=600),
    spoilt=st.lists(st.floats(width=32), max_size=3),
    step=st.sampled_from([2.0**-20, 0.375, 1.0, 9 * 2.0**-60]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_multiples_of_a_step_come_back_to_the_bit(
    numbers: list[int], spoilt: list[float], step: float, dtype: type
) -> None:
    """What is no multiple comes back too."""
    x = np.array([*(n * step for n in numbers), *spoilt], dtype)
    payload = Uniform().encode_multiples(x, None, step)
    y = Uniform().decode(payload, x.shape, x.dtype)

    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("step", [-1.0, math.nan])
def test_a_step_that_is_none_is_refused(step: float) -> None:
    from fedsz.codecs import _uniform

    x = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="step must be 0 or more"):
        _uniform.encode(x.view(np.uint8), DTYPE_IDS[x.dtype], 1, 4, 1, 1, 0.0, 5, 1, "", None, step)


@pytest.mark.parametrize(
    ("x", "step"),
    [*((value, 0.5) for value in (math.inf, -math.inf, math.nan)), (1.01, 9 * 2.0**-30)],
)
def test_what_float32_does_not_hold_is_on_no_lattice(x: float, step: float) -> None:
    base = np.array([1.0, 2.0], np.float32)

    assert nearest(np.array([x, 2.01], np.float32), step, base) is None


@pytest.mark.parametrize("exponent", [20, 50, 53, 60])
def test_a_base_of_many_steps_keeps_the_bound_or_is_on_no_lattice(exponent: int) -> None:
    base = np.full(3, 2.0**exponent, np.float32)
    x = np.array([1.5, 2.0**exponent, -0.75], np.float32)

    point = nearest(x, 1.0, base)

    assert (point is None) == (exponent >= 53)
    if point is not None:
        assert np.abs(point.astype(np.float64) - x).max() <= 0.5


def test_quotients_that_are_rounded_over_a_half_break_no_bound() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        step = float(rng.integers(8, 16))
        base = np.full(50, step * 2.0 ** rng.integers(40, 52), np.float32)
        x = rng.uniform(-20, 20, base.shape).astype(np.float32)
        point = nearest(x, step, base)

        assert point is not None
        assert np.abs(point.astype(np.float64) - x).max() <= step / 2
