"""`fp16` and `int8`: as near as their formulas say, and no bound that steers them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz import codecs
from fedsz.codecs.envelope import CODED
from tests.strategies import finite, seeds, specials, weights

TINY = float(np.finfo(np.float32).smallest_subnormal)


def decoded(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The finite elements of x, and what they come back as, in float64."""
    codec = codecs.get(name)
    y = codec.decode(codec.encode(x, 1.0), x.shape)
    where = np.isfinite(x)
    return x[where].astype(np.float64), y[where].astype(np.float64)


@given(data=st.data())
def test_fp16_loses_the_last_bits_of_each_element(data: st.DataObject) -> None:
    x, y = decoded("fp16", data.draw(st.one_of(weights(), specials())))

    # Half the distance between halves around an element; the least is that below 2^-28 of the top.
    top = np.abs(x).max(initial=0.0)
    halves = np.maximum(np.abs(x) * 2.0**-11, top * 2.0**-39)
    assert (np.abs(x - y) <= np.maximum(halves, TINY / 2)).all()


@given(data=st.data())
def test_int8_has_256_levels(data: st.DataObject) -> None:
    x, y = decoded("int8", data.draw(st.one_of(weights(), specials())))

    half = (np.ptp(x) if x.size else 0.0) / 510
    # The scale is rounded up to a float32, which up to 255 multiply; then y is rounded.
    rounding = half * 2.0**-22 + np.abs(x) * 2.0**-23 + 128 * TINY
    assert (np.abs(x - y) <= half + rounding).all()


@pytest.mark.parametrize(("name", "ratio"), [("fp16", 2), ("int8", 4)])
@given(exponent=st.integers(-45, 38), seed=seeds)
def test_the_scale_of_a_tensor_does_not_matter(
    name: str, ratio: int, exponent: int, seed: int
) -> None:
    x = finite(np.random.default_rng(seed).uniform(-1, 1, 5000) * 10.0**exponent, np.float32)

    payload = codecs.get(name).encode(x, 1.0)

    assert payload[0] == CODED
    assert x.nbytes / len(payload) == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("name", ["fp16", "int8", "zfp:precision=10"])
def test_bounds_do_not_steer_but_state_the_error(name: str) -> None:
    if why := codecs.parse(name).missing():
        pytest.skip(why)
    x = np.random.default_rng(0).normal(size=5000).astype(np.float32)

    streams = [fedsz.compress({"weight": x}, bound, codec=name) for bound in (1e-1, 1e-6)]
    (info,) = fedsz.inspect(streams[0]).tensors
    y = fedsz.decompress(streams[0], as_numpy=True)["weight"]

    assert streams[0] == streams[1]
    assert info.bound == np.abs(x.astype(np.float64) - y).max()


@pytest.mark.parametrize("exponent", [-128, -114, 127])
def test_scales_out_of_range_are_refused(exponent: int) -> None:
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    payload = bytearray(codecs.get("fp16").encode(x, 1.0))
    payload[5] = exponent % 256

    with pytest.raises(fedsz.errors.CorruptStream, match="fp16 payload"):
        codecs.get("fp16").decode(bytes(payload), x.shape)
