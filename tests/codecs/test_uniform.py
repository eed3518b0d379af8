"""uniform beyond what every codec is tested for: its bound, sizes, and equal bytes everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.codecs import Codec, _uniform
from fedsz.codecs.uniform import DTYPE_IDS, Uniform
from fedsz.errors import CodecError, CorruptStream
from fedsz.threads import allow
from tests.codecs.uniform_cases import (
    DTYPES,
    LEVELS,
    SHAPES,
    bound_of,
    coarse,
    decode_at,
    encode_at,
    every_dtype,
    flat,
    largest_error,
    layer,
    rng,
    sums_for,
)
from tests.strategies import LAYER, bits_of, finite, layers, relative

every_effort = pytest.mark.parametrize("effort", [0, 1, 3, 5, 7, 9])


extremes = st.sampled_from([0.0, 5e-324, 1e-45, 1e300, math.inf])
# Of ranges whose middle is far from 0, or whose width is.
ranges = st.sampled_from([(0, 1e-40), (0, 1e38), (1, 1e-4), (-1e5, 1e-2), (1e-3, 1e-30)]).map(
    lambda r: r[0] + r[1] * rng().uniform(-1, 1, (40, 60))
)


@given(data=st.data(), dtype=st.sampled_from(DTYPES), effort=st.integers(0, 9), rel=relative)
def test_every_layer(data: st.DataObject, dtype: np.dtype, effort: int, rel: float) -> None:
    codec, threads = Uniform(effort), data.draw(st.sampled_from([1, 2, 7]))
    x = data.draw(layers(dtype) | layers(dtype) | ranges.map(lambda x: finite(x, dtype)))
    bound = data.draw(st.just(bound_of(x, rel)) | extremes)

    encoded = codec.encode_measured(x, bound)
    y = codec.decode(encoded.payload, x.shape, dtype)

    assert largest_error(x, y) == encoded.max_error <= bound
    for level in LEVELS:
        assert encode_at(level, x, bound, effort, threads) == encoded.payload
        decoded = decode_at(level, encoded.payload, x, threads)
        assert np.array_equal(bits_of(decoded), bits_of(y))


@every_effort
@pytest.mark.parametrize("outlier", [1e4, 1e30, np.inf, np.nan])
def test_one_huge_element_costs_itself_alone(effort: int, outlier: float) -> None:
    for shape in ((24, 36), (100, 200)):
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


# Payloads and elements are the same, whatever machine or thread makes them


def test_calls_at_the_same_time_do_not_meet() -> None:
    jobs = [(layer(name), effort) for name in SHAPES for effort in (0, 1, 5, 9)]

    def coded(job: tuple[np.ndarray, int]) -> bytes:
        x, effort = job
        payload = encode_at("", x, 0.05, effort, threads=2)
        assert decode_at("", payload, x, threads=2).shape == x.shape
        return payload

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(coded, jobs)) == [coded(job) for job in jobs]


@contextmanager
def flushing() -> Iterator[None]:
    """A host that takes subnormals for zero, before and after."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine does not flush subnormals")
    try:
        assert np.float32(1e-30) * np.float32(1e-10) == 0
        yield
        assert np.float32(1e-30) * np.float32(1e-10) == 0
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        (fedsz.codecs.get("szx"), "f4"),
        *((Uniform(effort), dtype)
          for effort in (0, 1, 5, 9)
          for dtype in ("f4", "f8", "f2")),
    ],
)  # fmt: skip
def test_a_host_that_flushes_subnormals_changes_nothing(codec: Codec, dtype: str) -> None:
    normal = rng(1).normal(size=(300, 400))
    arrays = {scale: (normal * scale).astype(dtype) for scale in (1e-44, 1e-41, 1e-38, 1e-7, 1.0)}

    def coded() -> Iterator[tuple[object, bytes, bytes]]:
        for scale, x in arrays.items():
            encoded = codec.encode_measured(x, 0.01 * scale)
            sums = np.zeros(x.shape, "f8" if dtype == "f8" else "f4")
            if isinstance(codec, Uniform):  # numpy adds up for others
                codec.open(encoded.payload, x.shape, x.dtype).add(sums, 0.5)
            y = codec.decode(encoded.payload, x.shape, x.dtype)
            yield encoded, y.tobytes(), sums.tobytes()

    plain = list(coded())
    with flushing():
        assert list(coded()) == plain


# Adding up what payloads hold, without an array for it


@every_dtype
@pytest.mark.parametrize("name", SHAPES)
def test_the_energy_is_that_of_the_array(dtype: np.dtype, name: str) -> None:
    x = layer(name, dtype)
    x[~np.isfinite(x)] = 0
    base = (x / 3).astype(dtype)
    for bound in (bound_of(x, 1e-2), coarse(x)):
        payload = Uniform().encode(x, bound)
        y = Uniform().decode(payload, x.shape, dtype).astype(np.float64)
        for start, apart in ((None, y), (flat(base), y - base.astype(np.float64))):
            for level in LEVELS:
                energies = {
                    _uniform.Opened(payload, DTYPE_IDS[dtype], x.size, threads, level, start).energy
                    for threads in (1, 3)
                }
                (energy,) = energies
                assert energy == pytest.approx(float(np.square(apart).sum()), 1e-5)


def chunks_of(payload: bytes, count: int) -> tuple[int, list[int]]:
    """Where the chunks of a payload without exceptions begin, and how long each is."""
    for at in range(1000):
        lengths = np.frombuffer(payload, "<u4", count, at).tolist()
        begin = at + 4 * count
        if begin + sum(lengths) == len(payload) - 1:
            return begin, lengths
    raise AssertionError(f"no {count} chunks")


def test_a_chunk_that_ends_wrongly_stops_no_other_from_being_taken_back() -> None:
    x = rng().normal(size=2**21).astype(np.float32)
    payload = bytearray(Uniform(effort=1).encode(x, 0.05))
    begin, lengths = chunks_of(payload, 32)
    payload[begin + sum(lengths[:9]) - 1] ^= 16  # seen when all of that chunk has been added

    before = sums_for(x)
    for _ in range(50):  # in some of them threads add other chunks meanwhile
        sums = before.copy()
        with pytest.raises(CorruptStream, match="does not end where it should"), allow(4):
            Uniform().open(payload, sums.shape).add(sums, 100.0)
        assert np.array_equal(bits_of(sums), bits_of(before))


def test_sums_that_cannot_be_added_to_are_refused() -> None:
    x = rng().normal(size=(24, 36)).astype(np.float32)
    payload = Uniform().encode(x, 0.1)
    aligned, fixed = np.zeros(x.shape, np.float32), np.zeros(x.shape, np.float32)
    apart = np.zeros((24, 72), np.float32)[:, ::2]
    misaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    fixed.flags.writeable = False

    for sums in (misaligned, fixed, np.asfortranarray(aligned), apart):
        with pytest.raises(CodecError, match="C-contiguous, aligned and writeable"):
            Uniform().open(payload, x.shape).add(sums, 1.0)
        assert not sums.any()
    with pytest.raises(CodecError, match="adds up in float32, not float64"):
        Uniform().open(payload, x.shape).add(np.zeros(x.shape), 1.0)
