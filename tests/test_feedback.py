"""Error feedback: what is left out is what is missing, to the bit, and arrives in the end.

A client codes its update in three passes. Stream and residual are what decoding it would give.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.arrays import Layout
from fedsz.codecs import CODECS
from fedsz.codecs.spread import half_ulp
from fedsz.core.bound_encoder import UpdateEncoder
from fedsz.core.decode import decode
from fedsz.core.encode import compress_measured
from fedsz.core.feedback import ErrorFeedback
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.step import Arrival, energies
from fedsz.stream import Reader
from tests.strategies import bits_of, finite, seeds

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


def decoded_anew(
    meant: ErrorFeedback, state: dict[str, Any], config: Settings, sent: Reference
) -> tuple[bytes, dict[str, Any], Arrival]:
    """What `UpdateEncoder` finds, by arrays of everything, and by decoding the stream."""
    base = sent if config.sends_differences else None
    bounds = meant.bounds(config, base) if base else {}
    stream, _ = compress_measured(meant, config, base, bounds=bounds)
    decoded = dict(decode(Reader(stream), base))
    arrived = Arrival()
    for name in energies(state, sent, config):
        arrived += Arrival.of(state[name], sent.arrays[name], meant[name], decoded[name])
    return stream, meant.left_out(decoded), arrived


def check(
    state: dict[str, Any],
    sent: Reference,
    residual: dict[str, Any],
    config: Settings,
    *,
    same_bytes: bool = True,
    measured: bool = True,
) -> UpdateEncoder:
    """Compare both ways to code an update."""
    meant = ErrorFeedback(state, residual, decay=config.decay, age=2)
    base = sent if config.sends_differences else None
    encoder = UpdateEncoder(meant, config, sent)
    stream, report = compress_measured(state, config, base, encoder=encoder)

    expected, left, arrived = decoded_anew(meant, state, config, sent)
    assert stream == expected or not same_bytes
    assert encoder.left.keys() == left.keys()
    for name, x in left.items():
        assert (encoder.left[name].dtype, encoder.left[name].shape) == (x.dtype, x.shape)
        assert np.array_equal(bits_of(encoder.left[name]), bits_of(x))
    assert report.max_error <= 1
    assert encoder.arrived.tensors == arrived.tensors
    for name in ("step", "meant", "left") if measured else ():
        got, wanted = getattr(encoder.arrived, name), getattr(arrived, name)
        assert got == pytest.approx(wanted, rel=1e-5, nan_ok=True)
    return encoder


@every_dtype
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("sends", ["weights", "delta+ef"])
def test_the_residual_is_that_of_the_decoded_stream(
    dtype: np.dtype, bound: str, sends: str
) -> None:
    if sends == "weights" and bound.startswith("step"):
        pytest.skip("weights have no step")
    state, sent, residual = update(dtype)

    config = Settings(error_bound=bound, update=sends, decay=0.9)

    check(state, sent, residual, config)
    check(state, sent, {}, config)


@pytest.mark.sampled(1, each=("codec",))
@every_dtype
@pytest.mark.parametrize("codec", CODERS)
def test_every_codec(dtype: np.dtype, codec: str) -> None:
    state, sent, residual = update(dtype)

    # sz2 leaves bytes of its payload unset now and then, which mean nothing.
    config = Settings(error_bound="1e-2", codec=codec)
    encoder = check(state, sent, residual, config, same_bytes=codec != "sz2")

    assert encoder.arrived.tensors == 2


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
        encoder = check(state, sent, residual, Settings(error_bound=bound))
        assert side == "sent" or "fc.weight" not in encoder.left
        assert np.isfinite(encoder.steps["fc.weight"]) == (side == "residual")


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
        config = Settings(error_bound=bound)
        check(state, Reference(base), residual, config, measured=False)


def test_what_did_not_move_leaves_its_residual_within_the_bound() -> None:
    state, _, residual = update(DTYPES[0])

    for bound in BOUNDS:
        check(state, Reference(state), residual, Settings(error_bound=bound))
        check(state, Reference(state), {}, Settings(error_bound=bound))


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_a_bound_by_the_deviation_is_of_the_step_whatever_the_residual(dtype: np.dtype) -> None:
    """To the bit: a step has one deviation, however many rounds a client has taken part in."""
    state, sent, residual = update(dtype)
    config = Settings(error_bound="std:2")

    def stated(residual: dict[str, Any]) -> dict[tuple[int, ...], float | None]:
        encoder = UpdateEncoder(ErrorFeedback(state, residual), config, sent)
        stream, _ = compress_measured(state, config, sent, encoder=encoder)
        return {payload.members: payload.bound for payload in Reader(stream).header.payloads}

    assert stated(residual) == stated({})


@given(
    kind=st.sampled_from(DTYPES),
    bound=st.sampled_from(["std:0.5", "std:3", 1e-3]),
    seed=seeds,
)
def test_a_sum_over_rounds_arrives_but_for_its_residual_and_what_rounding_took(
    kind: np.dtype, bound: Any, seed: int
) -> None:
    rng, base = np.random.default_rng(seed), weights(seed, kind, 0.05)["fc.weight"]
    owed, rounded, residual = np.zeros(base.shape), 0.0, dict[str, Any]()
    for _ in range(8):
        x = (base + rng.laplace(0, 1e-3, base.shape)).astype(kind)
        meant = ErrorFeedback({"fc.weight": x}, residual)
        blob = fedsz.compress(meant, bound, reference={"fc.weight": base})
        arrived = fedsz.decompress(blob, reference={"fc.weight": base}, as_numpy=True)
        residual = meant.left_out(arrived)
        owed += x.astype(np.float64) - arrived["fc.weight"].astype(np.float64)
        left = residual.get("fc.weight", np.zeros(base.shape, kind))
        assert left.dtype == kind
        # A sum and a difference in float32, and the residual as it is kept.
        rounded += half_ulp(float(np.abs(left.astype(np.float64)).max()), kind)
        largest = float(np.abs(meant["fc.weight"].astype(np.float64)).max())
        rounded += 2 * half_ulp(2 * largest, np.dtype(np.float32))
        assert np.abs(owed - left.astype(np.float64)).max() <= rounded


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda x: np.dtype(x).name)
def test_a_residual_of_an_earlier_release_is_taken(dtype: Any) -> None:
    state = {"a.weight": np.full(5, 2, dtype)}

    meant = ErrorFeedback(state, {"a.weight": np.full(5, 0.5, np.float32)})

    np.testing.assert_array_equal(meant["a.weight"], np.full(5, 2.5, dtype))


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_residual_decays_with_its_age(decay: float, age: int) -> None:
    state = {"a.weight": np.zeros(5, np.float32)}
    residual = {"a.weight": np.ones(5, np.float32)}

    meant = ErrorFeedback(state, residual, decay=decay, age=age)

    np.testing.assert_allclose(meant["a.weight"], decay**age, rtol=1e-6, atol=1e-30)


def test_what_does_not_fit_is_left_alone() -> None:
    state = {"a.weight": np.ones((2, 3), np.float32), "n": np.array(4), "h": np.ones(2, np.float16)}
    residual = {
        "a.weight": np.ones((3, 2), np.float32),  # another shape
        "n": np.array(1.0),  # an integer has no residual
        "h": np.ones(2, np.float64),  # another dtype
        "gone.weight": np.ones(9, np.float32),
    }

    meant = ErrorFeedback(state, residual)

    assert list(meant) == list(state)
    assert all(meant[name] is state[name] for name in state)


def test_a_reference_is_compared_without_any_array() -> None:
    state = {"a.weight": np.ones((2, 3), np.float32)}
    fits, other = Layout.of(state), Layout.of({"a.weight": np.ones((2, 3), np.float16)})

    assert Reference(state).fits(fits)
    assert not Reference(state).fits(other)
    assert not Reference({}).fits(fits)
