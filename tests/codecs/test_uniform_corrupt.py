"""Payloads that our codecs did not write are refused, or harm nobody."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.arrays import wide
from fedsz.codecs import Codec
from fedsz.codecs.uniform import DTYPE_IDS, Uniform
from fedsz.errors import CorruptStream
from tests.codecs.uniform_cases import DTYPES, layer, rng
from tests.codecs.uniform_oracle_codes import varint
from tests.peak_memory import status
from tests.strategies import LAYER

SZX = fedsz.codecs.get("szx")


def low_rank(rows: int, columns: int) -> np.ndarray:
    left, right = rng(1).normal(size=(rows, 1)), rng(2).normal(size=(1, columns))
    return (left @ right + 0.02 * rng(3).normal(size=(rows, columns))).astype(np.float32)


def sparse(n: int) -> np.ndarray:
    x = np.zeros(n, np.float32)
    x[::97] = rng().laplace(size=len(x[::97]))
    x[n // 2] = np.nan
    return x


def of_every_block() -> np.ndarray:
    """An array with every kind of block that szx has, and a last block of 3 elements."""
    x = np.concatenate([scale * rng(n).normal(size=n) for n, scale in ((128, 1e-3), (128, 1.0))])
    x = np.concatenate([x, 1e9 * rng(2).normal(size=128), 1e3 * rng(3).normal(size=3)])
    x[129] = np.nan
    return x.astype(np.float32)


def payload_of(x: np.ndarray, bound: float, effort: int) -> tuple[np.ndarray, bytes]:
    return x, Uniform(effort).encode(x, bound)


# Something of every way to code: with NaN and an infinity, but for those named otherwise.
SMALL, KERNELS = layer("small"), layer("odd")
PAYLOADS = {
    "empty": payload_of(SMALL[:0], 0.1, 5),
    "stored": payload_of(SMALL, 0.0, 5),
    "constant": payload_of(np.where(np.arange(1200) % 400, 1.5, np.nan).astype("f4"), 0.1, 5),
    "blocks": payload_of(SMALL, 0.1, 0),
    "blocks, low bits": payload_of(SMALL, 1e-4, 0),
    "coded": payload_of(SMALL, 0.1, 1),
    "coded, low bits": payload_of(SMALL, 1e-4, 1),
    "scales": payload_of(LAYER["scaled rows"](rng(), (60, 60)).astype(np.float32), 0.1, 3),
    "neighbours": payload_of(LAYER["correlated"](rng(), (20, 12, 3, 3)).astype("f4"), 0.1, 4),
    "everything": payload_of(KERNELS, 1e-3, 9),
    "low rank": payload_of(low_rank(256, 256), 0.2, 9),
    "sparse": payload_of(sparse(3000), 0.1, 5),
    **{str(dtype): payload_of(SMALL.astype(dtype), 0.1, 5) for dtype in DTYPES[1:]},
}
SZX_PAYLOAD = of_every_block(), SZX.encode(of_every_block(), 0.05)
every_payload = pytest.mark.parametrize(
    "name", [*PAYLOADS, pytest.param("szx", marks=pytest.mark.always)]
)


def case(name: str) -> tuple[Codec, np.ndarray, bytes]:
    return (SZX, *SZX_PAYLOAD) if name == "szx" else (Uniform(), *PAYLOADS[name])


def refused(codec: Codec, payload: bytes, x: np.ndarray) -> bool:
    """Whether all ways to decode refuse a payload, which adds nothing then; if not, none does."""
    sums, base = np.ones(x.shape, wide(x.dtype)), np.ones_like(x)
    outcomes = set()
    for read in (
        lambda: codec.decode(payload, x.shape, x.dtype),
        lambda: codec.decode(payload, x.shape, x.dtype, base),
        lambda: codec.open(payload, x.shape, x.dtype).add(sums, 1.0),
    ):
        try:
            read()
        except CorruptStream:
            outcomes.add(True)
        else:
            outcomes.add(False)
    (outcome,) = outcomes
    assert not outcome or (sums == 1).all()
    return outcome


def test_there_is_a_payload_of_every_kind() -> None:
    assert {payload[0] & 15 for _, payload in PAYLOADS.values()} == {0, 1, 2, 3, 4}
    x, payload = PAYLOADS["low rank"]
    assert len(payload) < len(Uniform(6).encode(x, 0.2)) / 2
    x, payload = PAYLOADS["neighbours"]
    assert len(payload) < len(Uniform(3).encode(x, 0.1))


@pytest.mark.sampled(6)
@every_payload
def test_truncations_and_bytes_after_the_end_are_refused(name: str) -> None:
    codec, x, payload = case(name)

    assert all(refused(codec, payload[:end], x) for end in range(len(payload)))
    for more in (1, 2, 3, 4, 5, 37, 1000):
        assert refused(codec, payload + bytes(more), x)
        assert refused(codec, payload + b"\xff" * more, x)


@pytest.mark.sampled(6)
@every_payload
def test_flipped_bits_are_refused_or_decode(name: str) -> None:
    codec, x, payload = case(name)
    count = 0

    for bit in range(0, 8 * len(payload), 1 if x.size < 5000 else 11):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with np.errstate(all="ignore"):
            count += refused(codec, bytes(damaged), x)
    assert count >= 8 + 8 + 2 * 8 or codec != SZX  # mode, bitmap, bits at the least


@pytest.mark.sampled(6)
@every_payload
def test_every_other_count_is_refused(name: str) -> None:
    codec, x, payload = case(name)
    same = range(x.size, x.size + 1)
    if name.startswith("blocks"):  # the last may have room for more
        same = range((x.size - 1) // 128 * 128 + 1, -(-x.size // 128) * 128 + 1)
    if name == "sparse":  # the last byte may have room for more
        same = range(x.size, 2 * x.size + 2)
    if name == "constant":  # its payload is that of any other count, too
        same = range(1, 2 * x.size + 2)

    step = 1 if x.size < 5000 else 61
    for n in {*range(2 * x.size + 2)[::step], x.size // 2, 2 * x.size} - {*same}:
        assert refused(codec, payload, np.empty(n, x.dtype))
    for dtype in codec.dtypes:
        if dtype != x.dtype:
            assert refused(codec, payload, np.empty(x.shape, dtype))


HUGE = [2**31, 2**33 + 1, 2**60, 2**64 - 1]


@contextmanager
def little_memory() -> Iterator[None]:
    """Let this process grow by 256 MB at the most: what asks for more gets a MemoryError."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + (256 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.sampled(6)
@every_payload
def test_huge_numbers_take_no_memory(name: str) -> None:
    """Wherever a number may stand: one that the bytes have not paid for is not allocated."""
    codec, x, payload = case(name)

    with little_memory(), np.errstate(all="ignore"):
        for at in range(0, len(payload), 1 if x.size < 5000 else 7):
            for huge in HUGE:
                written = varint(huge)
                for end in (at + 1, at + len(written)):
                    refused(codec, payload[:at] + written + payload[end:], x)


@given(data=st.binary(max_size=300), dtype=st.sampled_from(DTYPES), mode=st.integers(0, 15))
def test_noise_behind_a_mode_is_refused_or_decodes(data: bytes, dtype: np.dtype, mode: int) -> None:
    with np.errstate(all="ignore"):
        refused(
            Uniform(),
            bytes([DTYPE_IDS[dtype] << 4 | mode]) + data,
            np.empty((30, 40), dtype),
        )


@pytest.mark.parametrize(
    "codecs", [[SZX], [Uniform(effort) for effort in range(10)]], ids=["szx", "uniform"]
)
def test_an_array_that_changes_meanwhile_harms_nobody(codecs: list[Codec]) -> None:
    x = np.zeros((400, 500), np.float32)
    noise, done = rng().normal(size=x.shape).astype(np.float32), threading.Event()

    def change() -> None:
        while not done.is_set():
            x[:] = noise
            x[:] = 0

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for i in range(100):
            codec = codecs[i % len(codecs)]
            try:
                codec.decode(codec.encode(x, 1e-3), x.shape)
            except (RuntimeError, CorruptStream):  # it noticed
                continue
    finally:
        done.set()
        thread.join()
