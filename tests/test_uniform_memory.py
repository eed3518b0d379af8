"""The memory that uniform takes, and arrays that are as large as it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import fedsz
from fedsz.codecs import Codec
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CorruptStream
from tests.peak_memory import LARGE, MB, linux, peak
from tests.uniform_cases import largest_error, rng


@linux
@pytest.mark.parametrize(
    ("effort", "bound", "shape"),
    [
        (0, 1e-4, LARGE),
        (1, 1e-4, LARGE),
        (5, 0.1, LARGE),
        (5, 0.1, (1 << 11, 1 << 11, 3, 3)),
        (5, 1.0, LARGE),
        (9, 0.1, LARGE),
        (9, 0.1, (1 << 9, 1 << 15)),
    ],
)
def test_encoding_takes_a_byte_and_a_half_an_element(
    effort: int, bound: float, shape: tuple[int, ...]
) -> None:
    """Where columns are contexts, counting takes 2 KB of each: a lot if there are few rows."""
    before, after, size = peak(
        "x = weights(); before = peak()\n"
        "payload = Uniform(effort).encode(x, bound)\n"
        "print(before, peak(), len(payload))",
        effort,
        bound,
        *shape,
        "",
    )

    counting = 2304 * shape[1] if effort == 9 else 0
    assert after - before <= size + 1.5 * math.prod(shape) + counting


@linux
def test_compressing_takes_a_byte_and_a_half_an_element() -> None:
    before, after, size = peak(
        "state = {'weight': weights()}; before = peak()\n"
        "stream = fedsz.compress(state, bound, codec=Uniform(effort))\n"
        "print(before, peak(), len(stream))",
        5,
        1e-2,
        *LARGE,
        "",
    )

    assert after - before <= size + 1.5 * math.prod(LARGE)


@linux
@pytest.mark.parametrize(
    ("effort", "shape"), [(0, LARGE), (5, LARGE), (5, (1 << 11, 1 << 11, 3, 3)), (9, LARGE)]
)
def test_accumulating_takes_a_byte_and_a_half_an_element(
    effort: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """All that may fail is decoded first, so that a damaged payload adds nothing to the sums."""
    arguments = effort, 0.1, *shape, tmp_path / "payload"
    peak("Path(sys.argv[-1]).write_bytes(Uniform(effort).encode(weights(), bound))", *arguments)

    before, after = peak(
        "payload = Path(sys.argv[-1]).read_bytes()\n"
        "sums = np.ones(shape, np.float32); before = peak()\n"
        "Uniform().accumulate(payload, sums, 0.5)\n"
        "print(before, peak())",
        *arguments,
    )

    assert after - before <= 1.5 * math.prod(shape) + 8 * MB


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
    "codec", [Uniform(0), Uniform(1), fedsz.codecs.get("szx")], ids=lambda codec: codec.name
)
def test_more_elements_than_31_bits_count(codec: Codec) -> None:
    n = 2**31 + 1
    x = np.zeros(n, np.float32)  # pages that are only read take no memory
    x[2**30 : 2**30 + 1000] = rng(1).normal(size=1000)
    x[-1000:] = rng(2).normal(size=1000)

    payload = codec.encode(x, 1e-3)
    assert len(payload) < n // 20
    y = codec.decode(payload, x.shape)

    for part in (slice(2**30 - 1000, 2**30 + 2000), slice(n - 2000, n)):
        assert largest_error(x[part], y[part]) <= 1e-3
    # szx codes blocks of 128.
    assert np.count_nonzero(y) <= (2000 if isinstance(codec, Uniform) else 3 * 1024)


@pytest.mark.slow
@pytest.mark.skipif(available() < 16 << 30, reason="needs 16 GB of memory")
def test_more_elements_than_32_bits_count() -> None:
    n = 2**32 + 1
    x = np.zeros(n, np.float16)
    x[[2**31, n - 1]] = 1.0

    payload = Uniform(effort=1).encode(x, 1e-3)
    assert len(payload) < n // 20
    y = Uniform().decode(payload, x.shape, x.dtype)

    for part in (slice(1000), slice(2**31 - 1000, 2**31 + 1000), slice(n - 1000, n)):
        assert np.array_equal(np.round(y[part]), x[part])
        assert largest_error(x[part], y[part]) <= 1e-3


def test_more_elements_than_memory_are_refused() -> None:
    with pytest.raises(CorruptStream, match="memory"):
        Uniform().decode(b"\x03" + bytes(20), (2**60,))
