"""A client's update in three passes: the stream and the residual that decoding it would give."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fedsz.codecs import CODECS
from fedsz.stream import Reader
from fedsz.update.bound_encoder import UpdateEncoder
from fedsz.update.compress import compress_measured
from fedsz.update.config import CompressionConfig
from fedsz.update.decompress import decode
from fedsz.update.error_feedback import ErrorFeedback
from fedsz.update.reference import Reference
from fedsz.update.step import Arrival, energies
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


def decoded_anew(
    meant: ErrorFeedback, state: dict[str, Any], config: CompressionConfig, sent: Reference
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
    config: CompressionConfig,
    *,
    same_bytes: bool = True,
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
    for name in ("step", "meant", "left"):
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

    config = CompressionConfig(error_bound=bound, update=sends, decay=0.9)

    check(state, sent, residual, config)
    check(state, sent, {}, config)


@pytest.mark.sampled(1, each=("codec",))
@every_dtype
@pytest.mark.parametrize("codec", CODERS)
def test_every_codec(dtype: np.dtype, codec: str) -> None:
    state, sent, residual = update(dtype)

    # sz2 leaves bytes of its payload unset now and then, which mean nothing.
    config = CompressionConfig(error_bound="1e-2", codec=codec)
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
        encoder = check(state, sent, residual, CompressionConfig(error_bound=bound))
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
    meant = ErrorFeedback(state, residual)

    for bound in ("std:2", "1e-2"):
        config = CompressionConfig(error_bound=bound)
        own = Reference(base)
        encoder = UpdateEncoder(meant, config, own)
        stream, _ = compress_measured(state, config, own, encoder=encoder)
        expected, left, _ = decoded_anew(meant, state, config, own)
        assert stream == expected
        assert encoder.left.keys() == left.keys()
        assert all(np.array_equal(bits_of(encoder.left[n]), bits_of(x)) for n, x in left.items())


def test_what_did_not_move_leaves_its_residual_within_the_bound() -> None:
    state, _, residual = update(DTYPES[0])

    for bound in BOUNDS:
        check(state, Reference(state), residual, CompressionConfig(error_bound=bound))
        check(state, Reference(state), {}, CompressionConfig(error_bound=bound))


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_a_bound_by_the_deviation_is_of_the_step_whatever_the_residual(dtype: np.dtype) -> None:
    """To the bit: a step has one deviation, however many rounds a client has taken part in."""
    state, sent, residual = update(dtype)
    config = CompressionConfig(error_bound="std:2")

    def stated(residual: dict[str, Any]) -> dict[tuple[int, ...], float | None]:
        encoder = UpdateEncoder(ErrorFeedback(state, residual), config, sent)
        stream, _ = compress_measured(state, config, sent, encoder=encoder)
        return {payload.members: payload.bound for payload in Reader(stream).header.payloads}

    assert stated(residual) == stated({})
