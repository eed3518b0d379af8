"""Error feedback: what is left out is what is missing, to the bit, and arrives in the end.

A client codes its update in three passes. Stream and residual are what decoding it would give.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.codecs import CODECS
from fedsz.codecs.spread import energy_between
from fedsz.core.coders import CodecCoder
from fedsz.core.decode import arrays_of
from fedsz.core.encode import compress_measured
from fedsz.core.feedback import UpdateCoder, UpdateEnergy
from fedsz.core.reference import Reference, bounds_of_step, energies
from fedsz.core.settings import Settings
from fedsz.core.tensors import compared
from fedsz.stream import Reader
from tests.strategies import bits_of, finite

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


def feedback_of(residual: dict[str, Any], weight: float = 1.0) -> UpdateCoder:
    """Return residuals at work on tensors that something else codes."""
    return UpdateCoder(CodecCoder(Settings()), Reference({}), residual, weight)


def decoded_anew(
    state: dict[str, Any],
    reference: Reference,
    residual: dict[str, Any],
    settings: Settings,
    bounds: dict[str, float],
) -> tuple[bytes, dict[str, Any], UpdateEnergy]:
    """What `UpdateCoder` finds, by arrays of everything, and by decoding the stream."""
    base = reference if settings.sends_differences else None
    feedback = feedback_of(residual, settings.decay**2)
    target = {name: feedback.target(name, x) for name, x in state.items()}
    own = dict(bounds)
    if settings.bound.kind == "std" and base:
        for name in residual:  # the bound is of the step alone
            seen = compared(state[name], base.arrays[name], deviation=True)
            if math.isfinite(seen.deviation) and seen.deviation:
                own[name] = settings.bound.absolute_of(seen.deviation)
    stream, _ = compress_measured(target, settings, base, bounds=own)
    decoded = arrays_of(Reader(stream), base)
    found = []
    for name, x in state.items():
        feedback.keep_rest(name, x, decoded[name])
    for name in energies(state, reference, settings):
        start, sent = reference.arrays[name], target[name]
        moved = energy_between(state[name], start), energy_between(sent, start)
        found.append(UpdateEnergy(*moved, energy_between(sent, decoded[name]), 1))
    return stream, feedback.residuals, UpdateEnergy.total(found)


class Coded(NamedTuple):
    """What `check` has found: the coder, and the stream."""

    coder: UpdateCoder
    stream: bytes


def coded(
    state: dict[str, Any], reference: Reference, residual: dict[str, Any], settings: Settings
) -> tuple[Coded, float]:
    """Code an update that has a residual of two rounds before; return the largest error, too."""
    base = reference if settings.sends_differences else None
    bounds = bounds_of(state, reference, residual, settings)
    coder = UpdateCoder(CodecCoder(settings, bounds), reference, residual, settings.decay**2)
    stream, report = compress_measured(state, settings, base, coder=coder)
    return Coded(coder, stream), report.max_error


def check(
    state: dict[str, Any],
    reference: Reference,
    residual: dict[str, Any],
    settings: Settings,
    *,
    same_bytes: bool = True,
    measured: bool = True,
) -> Coded:
    """Compare both ways to code an update."""
    found, max_error = coded(state, reference, residual, settings)

    bounds = bounds_of(state, reference, residual, settings)
    expected, left, energy = decoded_anew(state, reference, residual, settings, bounds)
    assert found.stream == expected or not same_bytes
    assert found.coder.residuals.keys() == left.keys()
    for name, x in left.items():
        assert (found.coder.residuals[name].dtype, found.coder.residuals[name].shape) == (
            x.dtype,
            x.shape,
        )
        assert np.array_equal(bits_of(found.coder.residuals[name]), bits_of(x))
    assert max_error <= 1
    assert UpdateEnergy.total(found.coder.energies).tensors == energy.tensors
    for name in ("step", "target", "residual") if measured else ():
        got, wanted = getattr(UpdateEnergy.total(found.coder.energies), name), getattr(energy, name)
        assert got == pytest.approx(wanted, rel=1e-5, nan_ok=True)
    return found


@every_dtype
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("sends", ["weights", "delta+ef"])
def test_the_residual_is_that_of_the_decoded_stream(
    dtype: np.dtype, bound: str, sends: str
) -> None:
    if sends == "weights" and bound.startswith("step"):
        pytest.skip("weights have no step")
    state, sent, residual = update(dtype)

    settings = Settings(error_bound=bound, update=sends, decay=0.9)

    check(state, sent, residual, settings)
    check(state, sent, {}, settings)


@pytest.mark.sampled(1, each=("codec",))
@every_dtype
@pytest.mark.parametrize("codec", CODERS)
def test_every_codec(dtype: np.dtype, codec: str) -> None:
    state, sent, residual = update(dtype)

    # sz2 leaves bytes of its payload unset now and then, which mean nothing.
    settings = Settings(error_bound="1e-2", codec=codec)
    found = check(state, sent, residual, settings, same_bytes=codec != "sz2")

    assert UpdateEnergy.total(found.coder.energies).tensors == 2


@pytest.mark.sampled(12)
@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["state", "sent", "residual"])
def test_what_is_not_finite(dtype: np.dtype, bad: float, side: str) -> None:
    state, sent, residual = update(dtype)
    where = {"state": state, "sent": dict(sent.arrays), "residual": residual}[side]
    where["fc.weight"] = where["fc.weight"].copy()
    where["fc.weight"][3, 4] = bad
    sent = Reference(where) if side == "sent" else sent

    for bound in ("std:2", "1e-2", "step:1"):
        found = check(state, sent, residual, Settings(error_bound=bound))
        assert side == "sent" or "fc.weight" not in found.coder.residuals


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e15, 1e36])
def test_huge_and_tiny_ranges(dtype: np.dtype, scale: float) -> None:
    scale = scale if dtype == np.float32 else scale**4
    state, sent, residual = update(dtype)
    state, base, residual = (
        {name: x * x.dtype.type(scale) if x.dtype == dtype else x for name, x in side.items()}
        for side in (state, sent.arrays, residual)
    )

    for bound in ("std:2", "1e-2"):  # whose squares are beyond float32
        settings = Settings(error_bound=bound)
        check(state, Reference(base), residual, settings, measured=False)


def test_what_did_not_move_leaves_its_residual_within_the_bound() -> None:
    state, _, residual = update(DTYPES[0])

    for bound in BOUNDS:
        check(state, Reference(state), residual, Settings(error_bound=bound))
        check(state, Reference(state), {}, Settings(error_bound=bound))


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_a_bound_by_the_deviation_is_of_the_step_whatever_the_residual(dtype: np.dtype) -> None:
    """To the bit: a step has one deviation, however many rounds a client has taken part in."""
    state, sent, residual = update(dtype)

    def stated(residual: dict[str, Any]) -> dict[tuple[int, ...], float | None]:
        found, _ = coded(state, sent, residual, Settings(error_bound="std:2"))
        header = Reader(found.stream).header
        return {payload.members: payload.bound for payload in header.payloads}

    assert stated(residual) == stated({})


@given(st.floats(0, 1))
def test_a_residual_is_weighted(weight: float) -> None:
    feedback = feedback_of({"a.weight": np.ones(5, np.float32)}, weight)

    target = feedback.target("a.weight", np.zeros(5, np.float32))

    np.testing.assert_allclose(target, weight, rtol=1e-6, atol=1e-30)


def test_a_residual_of_a_tensor_that_is_not_sent_waits_with_its_weight() -> None:
    feedback = feedback_of({"gone.weight": np.ones(9, np.float32)}, 0.5)

    assert feedback.residuals["gone.weight"].tolist() == [0.5] * 9


def test_a_residual_that_does_not_fit_is_not_used_and_named() -> None:
    state = {"a.weight": np.ones((2, 3), np.float32), "n": np.array(4), "h": np.ones(2, np.float16)}
    feedback = feedback_of(
        {
            "a.weight": np.ones((3, 2), np.float32),  # another shape
            "n": np.array(1.0),  # an integer has no residual
            "h": np.ones(2, np.float64),  # another dtype
        }
    )

    assert all(feedback.target(name, x) is x for name, x in state.items())
    assert feedback.misfits["h"] == "float64 (2,), and the tensor is float16 (2,)"
    assert feedback.misfits.keys() == state.keys()
