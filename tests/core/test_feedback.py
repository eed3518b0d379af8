"""Error feedback: what is left out is what is missing, to the bit, and arrives in the end."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fedsz.arrays import wide
from fedsz.codecs import CODECS
from fedsz.codecs.spread import energy_between
from fedsz.core.decode import arrays_of
from fedsz.core.encode import Report, compress_measured
from fedsz.core.feedback import RESIDUAL, Update
from fedsz.core.reference import Reference, bounds_of_step, energies
from fedsz.core.settings import Settings
from fedsz.core.tensors import narrow
from fedsz.stream import Reader
from tests.strategies import finite

DTYPES = [np.dtype(x) for x in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
CODERS = [codec.name for codec in CODECS if codec.missing() is None]
CODERS += [f"uniform:effort={effort}" for effort in range(10)]
BOUNDS = ["std:2", "1e-2", "abs:1e-3", "step:1", "abs:1e-12"]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def weights(seed: int, dtype: np.dtype, scale: float = 1.0) -> dict[str, Any]:
    """A model of tensors that are coded with loss, exactly, and not at all."""
    rng = np.random.default_rng(seed)
    return {
        "conv.weight": finite(scale * rng.laplace(size=(40, 20, 3, 3)), dtype),
        "fc.weight": finite(scale * rng.laplace(size=(70, 90)), dtype),
        "fc.bias": finite(scale * rng.normal(size=70), dtype),
        "steps": np.array(3 + seed),
    }


def update(dtype: np.dtype) -> tuple[dict[str, Any], Reference, dict[str, Any]]:
    """A model, the one that it was made of, and what earlier rounds left out."""
    base, step = weights(0, dtype), weights(1, dtype, 0.01)
    state = {name: (x + step[name]).astype(x.dtype) for name, x in base.items()}
    left = weights(2, dtype, 0.01)
    return state, Reference(base), {name: left[name] for name in ("fc.weight", "fc.bias")}


def bounds_of(
    state: dict[str, Any], reference: Reference, residual: dict[str, Any], settings: Settings
) -> dict[str, float]:
    """Return the absolute bounds of kind ``step``; where nothing moved, of the residual."""
    if settings.bound.kind != "step":
        return {}
    zeros = Reference({name: np.zeros_like(x) for name, x in residual.items()})
    steps = energies(state, reference, settings) or {}
    if not any(energy for _, energy in steps.values()):
        steps = energies(residual, zeros, settings)
    return bounds_of_step(steps, settings)


def check(
    state: dict[str, Any],
    reference: Reference,
    residual: dict[str, Any],
    settings: Settings,
    *,
    measured: bool = True,
) -> tuple[Report, bytes]:
    """Code an update that has a residual of two rounds before, and compare with what arrives."""
    base = reference if settings.sends_differences else None
    weight = settings.decay**2
    bounds = bounds_of(state, reference, residual, settings)
    update = Update(reference, {name: {RESIDUAL: r} for name, r in residual.items()}, weight)
    stream, report = compress_measured(state, settings, base, bounds=bounds, update=update)
    decoded = arrays_of(Reader(stream), base)

    assert report.max_error <= 1
    energy = np.zeros(3)
    for name, x in state.items():
        target, y = x, decoded[name]
        if name in residual:
            target = residual[name].astype(wide(x.dtype))
            with np.errstate(all="ignore"):
                target = target * target.dtype.type(weight) + x
        if x.dtype.kind in "iub":
            assert np.array_equal(y, x)
            continue
        with np.errstate(all="ignore"):
            rest = narrow(np.subtract(target, y, dtype=wide(x.dtype)), x.dtype)
        expected = rest if np.isfinite(rest).all() else np.zeros_like(rest)
        rest = report.states.get(name, {}).get(RESIDUAL, np.zeros_like(x))
        assert (rest.dtype, rest.shape) == (x.dtype, x.shape)
        assert np.array_equal(rest, expected)
        if name in energies(state, reference, settings):
            sent, start = narrow(target, x.dtype), reference.arrays[name]
            sides = ((x, start), (sent, start), (sent, y))
            energy += [energy_between(*side) for side in sides]
    if measured:
        counted = [report.energy.step, report.energy.target, report.energy.residual]
        assert counted == pytest.approx(energy.tolist(), nan_ok=True)
    return report, stream


@every_dtype
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("sends", ["weights", "delta+ef"])
def test_the_residual_is_that_of_the_decoded_stream(
    dtype: np.dtype, bound: str, sends: str
) -> None:
    if sends == "weights" and bound.startswith("step"):
        pytest.skip("weights have no step")
    state, start, residual = update(dtype)

    settings = Settings(error_bound=bound, update=sends, decay=0.9)

    check(state, start, residual, settings)
    check(state, start, {}, settings)
    # What did not move leaves its residual within the bound.
    check(state, Reference(state), residual, settings)


@pytest.mark.sampled(1, each=("codec",))
@every_dtype
@pytest.mark.parametrize("codec", CODERS)
def test_every_codec(dtype: np.dtype, codec: str) -> None:
    report, _ = check(*update(dtype), Settings(error_bound="1e-2", codec=codec))

    assert report.energy.tensors == 2


@pytest.mark.sampled(12)
@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["state", "start", "residual"])
def test_what_is_not_finite_leaves_no_residual(dtype: np.dtype, bad: float, side: str) -> None:
    state, start, residual = update(dtype)
    where = {"state": state, "start": dict(start.arrays), "residual": residual}[side]
    where["fc.weight"] = where["fc.weight"].copy()
    where["fc.weight"][3, 4] = bad
    start = Reference(where) if side == "start" else start

    for bound in ("std:2", "1e-2", "step:1"):
        report, _ = check(state, start, residual, Settings(error_bound=bound))
        assert side == "start" or "fc.weight" not in report.states


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e15, 1e36])
def test_huge_and_tiny_ranges(dtype: np.dtype, scale: float) -> None:
    scale = scale if dtype == np.float32 else scale**4
    state, start, residual = update(dtype)
    state, base, residual = (
        {name: x * x.dtype.type(scale) if x.dtype == dtype else x for name, x in side.items()}
        for side in (state, start.arrays, residual)
    )

    for bound in ("std:2", "1e-2"):  # whose squares are beyond float32
        check(state, Reference(base), residual, Settings(error_bound=bound), measured=False)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_a_bound_by_the_deviation_is_of_the_step_whatever_the_residual(dtype: np.dtype) -> None:
    """To the bit: a step has one deviation, however many rounds a client has taken part in."""
    state, start, residual = update(dtype)

    def stated(residual: dict[str, Any]) -> dict[tuple[int, ...], float | None]:
        _, stream = check(state, start, residual, Settings(error_bound="std:2"))
        return {payload.members: payload.bound for payload in Reader(stream).header.payloads}

    assert stated(residual) == stated({})


def test_a_residual_of_a_tensor_that_is_not_sent_waits_with_its_weight() -> None:
    states = {"gone.weight": {RESIDUAL: np.ones(9, np.float32)}}

    _, report = compress_measured({}, Settings(), update=Update(Reference({}), states, 0.5))

    assert report.states["gone.weight"][RESIDUAL].tolist() == [0.5] * 9


def test_a_residual_that_does_not_fit_is_not_used() -> None:
    state = {"a.weight": np.ones((2, 3), np.float32), "n": np.array(4), "h": np.ones(2, np.float16)}
    residual = {
        "a.weight": np.ones((3, 2), np.float32),  # another shape
        "n": np.array(1.0),  # an integer has no residual
        "h": np.ones(2, np.float64),  # another dtype
    }

    update = Update(Reference({}), {}, 1.0)

    assert all(update.target(x, residual[name]) is x for name, x in state.items())
