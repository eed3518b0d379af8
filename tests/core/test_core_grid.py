"""Missed broadcasts add up: any number of them is one array, and leads to the same model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsz
from fedsz.codecs import Uniform
from fedsz.codecs.uniform import DTYPE_IDS
from fedsz.core.broadcast import Broadcast, Delta
from fedsz.core.grid import nearest, spacing_below
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings

SETTINGS = Settings(threshold=0, downlink="step:1")
BOUNDS = ("step:0.6", "step:1.5", "std:1", "1e-3", "abs:1e-4")
DTYPES = (np.float32, np.float32, np.float16, ml_dtypes.bfloat16, np.float64)


def follow(broadcast: Broadcast, base: Reference | None = None) -> Reference:
    """Return the model of a client that had another one, or none, after the last broadcast."""
    stream = None if base is None else broadcast.since(base.digest)
    if stream is None:  # its base is forgotten
        return Reference(fedsz.decompress(broadcast.key_frame(), as_numpy=True))
    if not stream:
        assert base is not None
        return base
    return Reference(fedsz.decompress(stream, reference=base, as_numpy=True))


def resumed(broadcast: Broadcast, settings: Settings) -> Broadcast:
    """Return one that goes on from the checkpoint of a broadcast."""
    again, state = Broadcast(), broadcast.state()
    assert state is not None
    again.restore(*state, settings)
    return again


def walk(
    rounds: int, size: float = 0.01, shape: tuple[int, int] = (200, 100)
) -> Iterator[dict[str, np.ndarray]]:
    """A model of one tensor, so large that a stream's overhead is small."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=shape).astype(np.float32)
    for _ in range(rounds):
        yield {"fc.weight": x}
        x = (x + size * rng.laplace(size=x.shape)).astype(np.float32)


def test_missed_rounds_cost_one_array_and_a_key_frame_what_its_points_cost() -> None:
    broadcast = Broadcast()
    first, *_, last = [broadcast.publish(model, SETTINGS) for model in walk(8)]
    deltas = [len(delta.stream) for delta in deltas_of(broadcast)]

    assert len(deltas) == 7
    assert all(2 * nbytes < last.nbytes for nbytes in deltas)
    stream = broadcast.since(first.digest)
    assert stream is not None
    assert len(stream) <= 0.5 * sum(deltas)
    lossless = fedsz.compress(last.arrays, codec="blosclz")
    assert 2 * len(broadcast.key_frame()) < len(lossless)


def deltas_of(broadcast: Broadcast) -> list[Delta]:
    state = broadcast.state()
    assert state is not None
    return state[0].deltas


def test_a_tensor_that_outgrows_its_grid_goes_within_its_bound() -> None:
    """Float32 holds points of 24 bits."""
    broadcast, settings = Broadcast(), SETTINGS.replace(downlink="step:0.1")
    rng = np.random.default_rng(0)
    model = {"fc.weight": rng.normal(size=(60, 50)).astype(np.float32)}
    on_grid: list[bool] = []
    before: Reference | None = None
    last = model
    for size in (1e-3, 1e-3, 1e6, 1e6, 1e6):
        reference = broadcast.publish(model, settings)
        if before is not None:
            (delta,) = deltas_of(broadcast)[-1:]
            on_grid.append("fc.weight" in delta.spacings)
            moved = model["fc.weight"].astype(np.float64) - last["fc.weight"]
            error = reference.arrays["fc.weight"].astype(np.float64) - model["fc.weight"]
            assert np.abs(error).max() <= 0.1 * np.sqrt(np.square(moved).mean()) * (1 + 1e-6)
        assert follow(broadcast, before).digest == follow(broadcast).digest == reference.digest
        before, last, start = reference, model, reference.arrays["fc.weight"]
        model = {"fc.weight": start + size * rng.normal(size=start.shape).astype(np.float32)}

    assert on_grid == [True, True, False, False]


def test_a_shared_model_that_grows_fiftyfold_goes_as_differences() -> None:
    x = 0.02 * np.random.default_rng(0).normal(size=(60, 50)).astype(np.float32)
    broadcast, settings = Broadcast(shared_initial=True), SETTINGS.replace(downlink="step:0.5")
    first = broadcast.publish({"fc.weight": x}, settings)
    for _ in range(9):
        x = x * np.float32(1.55)
        broadcast.publish({"fc.weight": x}, settings)
    assert np.abs(x).max() > 50 * np.abs(first.arrays["fc.weight"]).max()
    assert all("fc.weight" in delta.spacings for delta in deltas_of(broadcast))


def test_a_small_tensor_that_outgrows_its_grid_leaves_it_alone() -> None:
    rng = np.random.default_rng(0)
    broadcast, settings = Broadcast(shared_initial=True), SETTINGS.replace(downlink="step:2")
    model = {"fc.weight": rng.normal(size=(60, 50)), "fc.bias": 0.01 * rng.random(10)}
    model = {name: x.astype(np.float32) for name, x in model.items()}
    chain: Reference | None = None
    for number in range(20):
        reference = broadcast.publish(model, settings)
        if number == 0:
            assert deltas_of(broadcast)[0].spacings.keys() == {"fc.weight", "fc.bias"}
        if number % 3 != 1:  # a client that misses some rounds
            chain = follow(broadcast, chain)
            assert chain.digest == reference.digest
        model = {
            "fc.weight": model["fc.weight"] + 0.01 * rng.normal(size=(60, 50)).astype(np.float32),
            "fc.bias": model["fc.bias"] * np.float32(2.5),
        }
    assert set(deltas_of(broadcast)[-1].spacings) == {"fc.weight"}


@settings(max_examples=60)
@given(
    most=st.floats(1e-30, 1e30),
    like=st.just(0.0) | st.floats(1e-30, 1e30).map(lambda x: spacing_below(x)),
)
def test_a_step_is_within_the_bound_and_of_few_bits(most: float, like: float) -> None:
    step = spacing_below(most, like)

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
def test_what_float32_does_not_hold_is_on_no_grid(x: float, step: float) -> None:
    base = np.array([1.0, 2.0], np.float32)

    assert nearest(np.array([x, 2.01], np.float32), step, base) is None


@pytest.mark.parametrize("exponent", [20, 50, 53, 60])
def test_a_base_of_many_steps_keeps_the_bound_or_is_on_no_grid(exponent: int) -> None:
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


@pytest.mark.parametrize("bound", ["abs:1e-6", "1e-5"])
def test_a_bound_finer_than_key_frames_is_kept_in_the_first_broadcast(bound: str) -> None:
    (model,) = walk(1)
    reference = Broadcast().publish(model, SETTINGS.replace(downlink=bound))
    x = model["fc.weight"]
    error = np.abs(reference.arrays["fc.weight"].astype(np.float64) - x).max()
    assert error <= fedsz.ErrorBound.of(bound).absolute(x)


def test_deltas_that_a_known_client_needs_are_kept_for_longer() -> None:
    known, alone = Broadcast(), Broadcast()
    models = list(walk(12, shape=(40, 50)))
    first = known.publish(models[0], SETTINGS)
    alone.publish(models[0], SETTINGS)
    for model in models[1:]:
        known.publish(model, SETTINGS, {first.digest})
        alone.publish(model, SETTINGS)

    assert known.since(first.digest) is not None
    assert alone.since(first.digest) is None
