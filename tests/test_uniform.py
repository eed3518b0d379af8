"""uniform beyond what every codec is tested for: its bound, and sizes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.codecs.uniform import Uniform
from fedsz.errors import ConfigError
from tests.strategies import LAYER, finite, layers, relative
from tests.uniform_cases import DTYPES, bound_of, every_dtype, every_effort, largest_error, rng


@given(data=st.data(), dtype=st.sampled_from(DTYPES), effort=st.integers(0, 9), rel=relative)
def test_every_effort_keeps_the_bound(
    data: st.DataObject, dtype: np.dtype, effort: int, rel: float
) -> None:
    codec = Uniform(effort, threads=data.draw(st.sampled_from([1, 2, 7])))
    x = data.draw(layers(dtype))
    bound = bound_of(x, rel)

    encoded = codec.encode_measured(x, bound)
    y = codec.decode(encoded.payload, x.shape, dtype)

    assert largest_error(x, y) == encoded.max_error <= bound


RANGES = [(0, 1), (0, 1e-40), (0, 1e38), (1, 1e-4), (-1e5, 1e-2), (1e-3, 1e-30)]  # middle, width


@every_effort
@every_dtype
def test_extreme_ranges(effort: int, dtype: np.dtype) -> None:
    for middle, width in RANGES:
        x = finite(middle + width * rng().uniform(-1, 1, (40, 60)), dtype)
        for rel in (1e-7, 1e-3, 0.5):
            bound = bound_of(x, rel)
            y = Uniform(effort).decode(Uniform(effort).encode(x, bound), x.shape, dtype)
            assert largest_error(x, y) <= bound


@every_effort
@every_dtype
def test_extreme_bounds(effort: int, dtype: np.dtype) -> None:
    x = rng().normal(size=(40, 60)).astype(dtype)

    for bound in (0.0, 5e-324, 1e-45, 1e300, np.inf):
        y = Uniform(effort).decode(Uniform(effort).encode(x, bound), x.shape, dtype)
        assert largest_error(x, y) <= bound


@every_effort
@pytest.mark.parametrize("outlier", [1e4, 1e30, np.inf, np.nan])
@pytest.mark.parametrize("shape", [(24, 36), (100, 200)])
def test_one_huge_element_costs_itself_alone(
    effort: int, outlier: float, shape: tuple[int, int]
) -> None:
    x = rng().normal(size=shape).astype(np.float32)
    plain = Uniform(effort).encode(x, 0.05)
    x[17, 19] = outlier

    payload = Uniform(effort).encode(x, 0.05)
    y = Uniform(effort).decode(payload, x.shape)

    ordinary = np.abs(x) < 1e6
    assert np.array_equal(y[~ordinary], x[~ordinary], equal_nan=True)
    assert largest_error(x[ordinary], y[ordinary]) <= 0.05
    assert len(payload) < 1.02 * len(plain) + 64


@every_effort
@every_dtype
def test_nothing_grows_by_more_than_64_bytes(effort: int, dtype: np.dtype) -> None:
    for n in (0, 1, 2, 100, 511, 512, 513, 5000, 70_000):
        noise = np.frombuffer(rng(n).bytes(n * dtype.itemsize), dtype)
        normal = rng(n).normal(size=n).astype(dtype)
        for x in (noise, normal):
            for bound in (0.0, 1e-30, 1e-5, 1.0):
                payload = Uniform(effort).encode(x, bound)
                assert len(payload) <= x.nbytes + 64


def test_more_effort_makes_less() -> None:
    x = LAYER["correlated"](rng(), (64, 64, 3, 3)).astype(np.float32)
    sizes = [len(Uniform(effort).encode(x, bound_of(x, 1e-2))) for effort in range(10)]

    assert all(after <= 1.002 * before for before, after in pairwise(sizes))
    assert sizes[9] < 0.9 * sizes[0]


@pytest.mark.parametrize("setting", ["effort=-1", "effort=10", "threads=-1", "threads=1025"])
def test_settings_out_of_range(setting: str) -> None:
    with pytest.raises(ConfigError, match="must lie in 0"):
        fedsz.codecs.get(f"uniform:{setting}")
