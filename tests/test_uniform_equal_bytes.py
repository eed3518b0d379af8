"""uniform's payloads and elements are the same, whatever machine or thread makes them."""

from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.codecs.uniform import Uniform
from tests.strategies import bits_of, layers, relative
from tests.uniform_cases import (
    DTYPES,
    LEVELS,
    SHAPES,
    bound_of,
    coarse,
    decode_at,
    encode_at,
    every_dtype,
    layer,
    rng,
)


@every_dtype
@pytest.mark.parametrize("effort", [0, 1, 3, 5, 7, 9])
@pytest.mark.parametrize("name", SHAPES)
def test_threads_and_instruction_sets_make_no_difference(
    dtype: np.dtype, effort: int, name: str
) -> None:
    x = layer(name, dtype)
    for bound in (coarse(x), bound_of(x, 0.05), bound_of(x, 1e-4)):
        payload = encode_at(LEVELS[0], x, bound, effort)
        y = decode_at(LEVELS[0], payload, x)
        for level, threads in [*((level, 1) for level in LEVELS[1:]), ("", 2), ("", 7)]:
            assert encode_at(level, x, bound, effort, threads) == payload
            decoded = decode_at(level, payload, x, threads)
            assert np.array_equal(bits_of(decoded), bits_of(y))


@given(data=st.data(), dtype=st.sampled_from(DTYPES), effort=st.integers(0, 9), rel=relative)
def test_instruction_sets_agree(
    data: st.DataObject, dtype: np.dtype, effort: int, rel: float
) -> None:
    x = data.draw(layers(dtype))
    bound = bound_of(x, rel)
    payload = encode_at(LEVELS[0], x, bound, effort)
    y = decode_at(LEVELS[0], payload, x)

    for level in LEVELS[1:]:
        assert encode_at(level, x, bound, effort) == payload
        assert np.array_equal(bits_of(decode_at(level, payload, x)), bits_of(y))


def test_calls_at_the_same_time_do_not_meet() -> None:
    jobs = [(layer(name), effort) for name in SHAPES for effort in (0, 1, 5, 9)]

    def coded(job: tuple[np.ndarray, int]) -> bytes:
        x, effort = job
        payload = Uniform(effort, threads=2).encode(x, 0.05)
        assert Uniform(threads=2).decode(payload, x.shape).shape == x.shape
        return payload

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(coded, jobs)) == [coded(job) for job in jobs]


def test_payloads_and_arrays_may_lie_anywhere() -> None:
    x = layer("odd")
    payload = Uniform().encode(x, 0.05)
    y = Uniform().decode(payload, x.shape)

    for shift in range(1, 8):
        moved = memoryview(bytes(shift) + payload)[shift:]
        assert np.array_equal(Uniform().decode(moved, x.shape), y, equal_nan=True)
    assert Uniform().encode(np.asfortranarray(x), 0.05) == payload
    assert Uniform().encode(np.repeat(x, 2, axis=0)[::2], 0.05) == payload


FLUSHED = """
import sys
import numpy as np
import torch
from fedsz.codecs.uniform import Uniform

dtypes = [np.dtype(name) for name in ("f4", "f8", "f2")]
normal = np.random.default_rng(1).normal(size=(300, 400))
arrays = {
    (dtype, scale): (normal * scale).astype(dtype)
    for dtype in dtypes
    for scale in (1e-44, 1e-41, 1e-38, 1e-7, 1.0)
}

def coded():
    out = []
    for (dtype, scale), x in arrays.items():
        for effort in (0, 1, 5, 9):
            for threads in (1, 2):
                codec = Uniform(effort, threads=threads)
                encoded = codec.encode_measured(x, 0.01 * scale)
                sums = np.zeros(x.shape, "f8" if dtype == "f8" else "f4")
                codec.accumulate(encoded.payload, sums, 0.5, dtype)
                y = codec.decode(encoded.payload, x.shape, dtype)
                out += [encoded, y.tobytes(), sums.tobytes()]
    return out

plain = coded()
if not torch.set_flush_denormal(True):
    sys.exit("this machine does not flush subnormals")
assert np.float32(1e-30) * np.float32(1e-10) == 0  # it does
assert coded() == plain
assert np.float32(1e-30) * np.float32(1e-10) == 0  # and it still does
"""


def test_a_host_that_flushes_subnormals_changes_nothing() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", FLUSHED], capture_output=True, text=True, timeout=300, check=False
    )
    if "does not flush" in done.stderr:
        pytest.skip(done.stderr.strip())

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shape", [(1 << 19,), (512, 1024), (256, 256, 3, 3), (64, 64, 11, 11)])
@pytest.mark.parametrize("effort", [0, 1, 5, 9])
def test_many_chunks_on_many_threads(shape: tuple[int, ...], effort: int) -> None:
    rows, columns = shape[0], math.prod(shape[1:])
    x = rng(0).normal(size=(rows, columns)) + rng(1).normal(size=(rows, 1)) @ rng(2).normal(
        size=(1, columns)
    )
    x = x.astype(np.float32).reshape(shape)
    x.reshape(-1)[::70_001] = np.nan
    payload = encode_at("", x, 0.1, effort)
    for threads in (2, 7):
        assert encode_at("", x, 0.1, effort, threads) == payload
        y = decode_at("", payload, x, threads)
        assert np.array_equal(bits_of(y), bits_of(decode_at("", payload, x)))
