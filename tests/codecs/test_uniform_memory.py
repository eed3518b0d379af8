"""The memory that our codecs take, and arrays that are as large as it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import fedsz
from fedsz.codecs import Codec
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CorruptStream
from tests.codecs.uniform_cases import largest_error, rng
from tests.peak_memory import MB, growth, linux

LARGE = ((1 << 13) + 1, 1 << 12)  # more elements than are kept to be used again


@lru_cache(1)
def weights(shape: tuple[int, ...]) -> np.ndarray:
    """A layer of low rank, and noise."""
    right = rng(1).standard_normal(shape[1:], np.float32)
    x = 0.1 * rng(2).standard_normal(shape, np.float32)
    for row, left in zip(x, rng(0).standard_normal(shape[0], np.float32), strict=True):
        row += left * right
    return x


@linux
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("effort", "bound", "shape"),
    [
        (0, 1e-4, LARGE),
        (1, 1e-4, LARGE),
        (5, 0.1, LARGE),
        (5, 0.1, (1 << 11, (1 << 11) + 1, 3, 3)),
        (5, 1.0, LARGE),
        (9, 0.1, LARGE),
        (9, 0.1, ((1 << 10) + 1, 1 << 15)),
    ],
)
def test_coding_takes_a_byte_and_a_half_an_element(
    effort: int, bound: float, shape: tuple[int, ...]
) -> None:
    """Where columns are contexts, counting takes 2 KB of each: a lot if there are few rows."""
    x, codec, n = weights(shape), Uniform(effort), math.prod(shape)
    base, sums = x * np.float32(0.9), np.ones(shape, np.float32)
    counting = 2304 * shape[1] if effort == 9 else 0

    encoding, payload = growth(lambda: codec.encode(x, bound))
    comparing, (step, _) = growth(lambda: codec.encode_measured(x, bound, base))
    # All that may fail is decoded first, so that a damaged payload adds nothing to the sums.
    adding, _ = growth(lambda: codec.open(payload, shape).add(sums, 0.5))
    decoding, _ = growth(lambda: codec.decode(step, x.shape, x.dtype, base))

    assert encoding <= len(payload) + 1.5 * n + counting
    assert comparing <= len(step) + 1.5 * n + counting
    assert adding <= 1.5 * n + 8 * MB
    assert decoding <= x.nbytes + 36 * MB  # of which 32 wait for the next array


@linux
@pytest.mark.parametrize(
    "compress",
    [
        lambda x: fedsz.compress({"weight": x}, 1e-2),
        lambda x: fedsz.codecs.get("szx").encode(x, 1e-3),
    ],
    ids=["a stream", "szx"],
)
def test_compressing_takes_a_byte_and_a_half_an_element(compress: Callable[..., bytes]) -> None:
    x = weights(LARGE)

    taken, written = growth(lambda: compress(x))

    assert taken <= len(written) + 1.5 * x.size


def available() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 0
    return 1024 * int(text.partition("MemAvailable:")[2].split()[0])


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.skipif(available() < 16 << 30, reason="needs 16 GB of memory")
@pytest.mark.parametrize(
    ("codec", "n", "dtype"),
    [
        (Uniform(0), 2**31 + 1, np.float32),
        (Uniform(1), 2**31 + 1, np.float32),
        (Uniform(1), 2**32 + 1, np.float16),
        (fedsz.codecs.get("szx"), 2**31 + 1, np.float32),
    ],
)
def test_more_elements_than_31_or_32_bits_count(codec: Codec, n: int, dtype: type) -> None:
    x = np.zeros(n, dtype)  # pages that are only read take no memory
    x[n // 2 : n // 2 + 1000] = rng(1).normal(size=1000)
    x[-1000:] = rng(2).normal(size=1000)

    payload = codec.encode(x, 1e-3)
    assert len(payload) < n // 20
    y = codec.decode(payload, x.shape, x.dtype)

    for part in (slice(n // 2 - 1000, n // 2 + 2000), slice(n - 2000, n)):
        assert largest_error(x[part], y[part]) <= 1e-3
    # szx codes blocks of 128.
    assert np.count_nonzero(y) <= (2000 if isinstance(codec, Uniform) else 3 * 1024)


def test_more_elements_than_memory_are_refused() -> None:
    with pytest.raises(CorruptStream, match="memory"):
        Uniform().decode(b"\x03" + bytes(20), (2**60,))
