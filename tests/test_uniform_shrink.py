"""uniform's shrinking: what is within the bound becomes 0 as ever, and the rest is finer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.codecs import parse
from fedsz.codecs.uniform import Uniform
from fedsz.errors import ConfigError
from fedsz.methods import parse as parsed
from fedsz.methods import texts_sent
from tests.strategies import bits_of, weights
from tests.uniform_cases import DTYPES, SHAPES, coarse, layer, rng

shares = st.floats(0, 0.5)


@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    effort=st.integers(0, 9),
    shrink=shares,
    bound=st.sampled_from([1e-30, 1e-4, 0.01, 1.0, 1e6]),
)
def test_any_share_keeps_the_bound(
    data: st.DataObject, dtype: np.dtype, effort: int, shrink: float, bound: float
) -> None:
    x = data.draw(weights(dtype))
    codec = Uniform(effort, shrink)
    payload, error = codec.encode_measured(x, bound)
    y = codec.decode(payload, x.shape, dtype)

    finite = np.isfinite(x)
    off = np.abs(x[finite].astype(np.float64) - y[finite].astype(np.float64))
    assert off.max(initial=0.0) <= error <= bound
    assert np.array_equal(bits_of(x[~finite]), bits_of(y[~finite]))
    sizes, were = (np.abs(z[finite].astype(np.float64)) for z in (y, x))
    rounding = 2.0**-7 * sizes  # to bfloat16, or a sum to float32
    assert np.all(sizes - were <= (1 - 2 * shrink) * bound + rounding + 1e-40)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_a_share_of_nothing_changes_no_payload(name: str, dtype: np.dtype) -> None:
    x = layer(name, dtype)
    assert Uniform().encode(x, coarse(x)) == Uniform(shrink=0.0).encode(x, coarse(x))


def test_the_same_elements_become_0_and_the_others_are_nearer_and_not_too_large() -> None:
    x = rng(0).normal(size=(300, 700)).astype(np.float32)
    bound = 1.5
    coarsely, finely = (
        codec.decode(codec.encode(x, bound), x.shape) for codec in (Uniform(), Uniform(shrink=0.25))
    )

    assert np.mean((coarsely == 0) != (finely == 0)) < 1e-5
    assert np.mean((x - finely) ** 2) < 0.8 * np.mean((x - coarsely) ** 2)
    assert np.mean(np.abs(finely)) < np.mean(np.abs(coarsely))
    assert np.isclose(np.abs(finely[finely != 0]).min(), 2 * 0.75 * bound, rtol=1e-5)


def test_streams_do_not_say_by_how_much() -> None:
    """Whoever decodes needs no such setting, and older releases have none."""
    chain = parsed("feedback>eigen>uniform:effort=9,shrink=0.25@step:2")

    assert texts_sent(chain) == {"eigen>uniform:effort=9@step:2"}
    assert parse("uniform:shrink=0.25").told == "uniform"
    assert "shrink=0.25" in str(chain)


@pytest.mark.parametrize("share", [-0.1, 0.51, float("nan")])
def test_a_share_lies_between_0_and_a_half(share: float) -> None:
    with pytest.raises(ConfigError, match=r"shrink must lie in 0\.\.0\.5"):
        parse(f"uniform:shrink={share}")
