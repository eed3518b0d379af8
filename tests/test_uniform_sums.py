"""Adding up what uniform's payloads hold, without an array for it."""

from __future__ import annotations

import numpy as np
import pytest

from fedsz.codecs import _uniform
from fedsz.codecs.uniform import DTYPE_IDS, Uniform
from fedsz.errors import CodecError, CorruptStream
from tests.strategies import bits_of
from tests.uniform_cases import (
    LEVELS,
    SHAPES,
    bound_of,
    coarse,
    every_dtype,
    flat,
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
        bounds = coarse(x), bound_of(x, 1e-2), bound_of(x, 1e-4), 0.0
        for bound, weight in zip(bounds, (0.7, 0.37, -123.0, 1.0), strict=True):
            payload = Uniform(effort).encode(x, bound)
            sums = sums_for(x)
            y = Uniform().decode(payload, x.shape, dtype).astype(sums.dtype)
            y *= sums.dtype.type(weight)
            expected = sums + y

            _uniform.accumulate(payload, DTYPE_IDS[dtype], weight, flat(sums), 2, level)

            assert np.array_equal(bits_of(sums), bits_of(expected))


@every_dtype
@pytest.mark.parametrize("level", LEVELS)
def test_the_energy_is_that_of_the_array(dtype: np.dtype, level: str) -> None:
    for name in SHAPES:
        x = layer(name, dtype)
        x[~np.isfinite(x)] = 0
        base = (x / 3).astype(dtype)
        for bound in (bound_of(x, 1e-2), coarse(x)):
            payload = Uniform().encode(x, bound)
            y = Uniform().decode(payload, x.shape, dtype).astype(np.float64)
            for start, apart in ((None, y), (flat(base), y - base.astype(np.float64))):
                energies = {
                    _uniform.Opened(payload, DTYPE_IDS[dtype], x.size, threads, level, start).energy
                    for threads in (1, 3)
                }

                (energy,) = energies
                assert energy == pytest.approx(float(np.square(apart).sum()), 1e-5)


@every_dtype
@pytest.mark.parametrize("effort", [0, 1, 5, 9])
def test_a_damaged_payload_adds_nothing(dtype: np.dtype, effort: int) -> None:
    refused = 0
    for name in SHAPES:
        x = layer(name, dtype)
        x[~np.isfinite(x)] = 0
        for bound in (bound_of(x, 1e-2), coarse(x)):
            payload = Uniform(effort).encode(x, bound)
            for threads, at in enumerate(rng(effort).integers(40, len(payload), 5), 1):
                damaged = bytearray(payload)
                damaged[at] ^= 1 << at % 8
                sums = sums_for(x)
                before = sums.copy()
                try:
                    Uniform(threads=threads).accumulate(bytes(damaged), sums, 0.5, dtype)
                except CorruptStream:
                    refused += 1
                    assert np.array_equal(bits_of(sums), bits_of(before))
    assert refused > (20 if effort else 0)


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
        with pytest.raises(CorruptStream, match="does not end where it should"):
            Uniform(threads=4).accumulate(payload, sums, 100.0)
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
            Uniform().accumulate(payload, sums, 1.0)
        assert not sums.any()
    with pytest.raises(CodecError, match="adds up in float32, not float64"):
        Uniform().accumulate(payload, np.zeros(x.shape), 1.0)
