"""Adding up what uniform's payloads hold, without an array for it."""

from __future__ import annotations

import numpy as np
import pytest

from fedsz.codecs import _uniform
from fedsz.codecs.uniform import DTYPE_IDS, Uniform
from fedsz.errors import CorruptStream
from tests.strategies import bits_of
from tests.uniform_cases import (
    LEVELS,
    SHAPES,
    bound_of,
    every_dtype,
    flat,
    largest_error,
    layer,
    rng,
    sums_for,
)


@every_dtype
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("effort", [0, 1, 5, 9])
def test_accumulating_is_decoding_and_adding(dtype: np.dtype, level: str, effort: int) -> None:
    for name in SHAPES:
        x = layer(name, dtype)
        for bound, weight in ((bound_of(x, 1e-2), 0.37), (bound_of(x, 1e-4), -123.0), (0.0, 1.0)):
            payload = Uniform(effort).encode(x, bound)
            sums = sums_for(x)
            y = Uniform().decode(payload, x.shape, dtype).astype(sums.dtype)
            y *= sums.dtype.type(weight)
            expected = sums + y

            _uniform.accumulate(payload, DTYPE_IDS[dtype], weight, flat(sums), 2, level)

            assert np.array_equal(bits_of(sums), bits_of(expected))


@every_dtype
@pytest.mark.parametrize("effort", [0, 1, 5, 9])
def test_a_damaged_payload_adds_nothing(dtype: np.dtype, effort: int) -> None:
    refused = 0
    for name in SHAPES:
        x = layer(name, dtype)
        x[~np.isfinite(x)] = 0
        payload = Uniform(effort).encode(x, bound_of(x, 1e-2))
        for threads, at in enumerate(rng(effort).integers(40, len(payload), 5), 1):
            damaged = bytearray(payload)
            damaged[at] ^= 1 << at % 8
            sums = sums_for(x)
            before = sums.copy()
            try:
                Uniform(threads=threads).accumulate(bytes(damaged), sums, 0.5, dtype)
            except CorruptStream:
                refused += 1
                assert np.allclose(sums, before, rtol=1e-5, atol=1e-5 * largest_error(x, 0 * x))
    assert refused > (20 if effort else 0)
