"""Payloads that uniform's encoder did not write are refused, or harm nobody."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.codecs.uniform import DTYPE_IDS, Uniform
from fedsz.errors import CorruptStream
from tests.strategies import LAYER
from tests.uniform_cases import DTYPES, rng


def small(seed: int = 0) -> np.ndarray:
    return rng(seed).normal(size=(24, 36)).astype(np.float32)


def small_convolution() -> np.ndarray:
    return LAYER["correlated"](rng(), (20, 12, 3, 3)).astype(np.float32)


def low_rank(rows: int, columns: int) -> np.ndarray:
    left, right = rng(1).normal(size=(rows, 1)), rng(2).normal(size=(1, columns))
    return (left @ right + 0.02 * rng(3).normal(size=(rows, columns))).astype(np.float32)


def with_specials(x: np.ndarray) -> np.ndarray:
    x.reshape(-1)[[0, 300, 301, x.size - 1]] = np.nan, np.inf, 1e4, -np.inf
    return x


def sparse(n: int) -> np.ndarray:
    x = np.zeros(n, np.float32)
    x[::97] = rng().laplace(size=len(x[::97]))
    x[n // 2] = np.nan
    return x


def payload_of(x: np.ndarray, bound: float, effort: int) -> tuple[np.ndarray, bytes]:
    return x, Uniform(effort).encode(x, bound)


# Something of every way to code.
PAYLOADS = {
    "empty": payload_of(small()[:0], 0.1, 5),
    "stored": payload_of(small(), 0.0, 5),
    "constant": payload_of(np.where(np.arange(1200) % 400, 1.5, np.nan).astype("f4"), 0.1, 5),
    "blocks": payload_of(with_specials(small()), 0.1, 0),
    "blocks, low bits": payload_of(small(), 1e-4, 0),
    "coded": payload_of(with_specials(small()), 0.1, 1),
    "coded, low bits": payload_of(small(), 1e-4, 1),
    "scales": payload_of(LAYER["scaled rows"](rng(), (60, 60)).astype(np.float32), 0.1, 3),
    "neighbours": payload_of(small_convolution(), 0.1, 4),
    "everything": payload_of(with_specials(small_convolution()), 1e-3, 9),
    "low rank": payload_of(low_rank(256, 256), 0.2, 9),
    "sparse": payload_of(sparse(3000), 0.1, 5),
    "float64": payload_of(small().astype(np.float64), 0.1, 5),
    "float16": payload_of(small().astype(np.float16), 0.1, 5),
    "bfloat16": payload_of(small().astype(ml_dtypes.bfloat16), 0.1, 5),
}
every_payload = pytest.mark.parametrize("name", PAYLOADS)


def refused(payload: bytes, x: np.ndarray) -> bool:
    """Whether both ways to decode refuse a payload; if not, neither does."""
    sums = np.zeros(x.shape, np.float64 if x.dtype == np.float64 else np.float32)
    outcomes = set()
    for decode in (
        lambda: Uniform(threads=1).decode(payload, x.shape, x.dtype),
        lambda: Uniform(threads=1).accumulate(payload, sums, 1.0, x.dtype),
    ):
        try:
            decode()
        except CorruptStream:
            outcomes.add(True)
        else:
            outcomes.add(False)
    (outcome,) = outcomes
    return outcome


def test_there_is_a_payload_of_every_kind() -> None:
    assert {payload[0] & 15 for _, payload in PAYLOADS.values()} == {0, 1, 2, 3, 4}
    x, payload = PAYLOADS["low rank"]
    assert len(payload) < len(Uniform(6).encode(x, 0.2)) / 2
    x, payload = PAYLOADS["neighbours"]
    assert len(payload) < len(Uniform(3).encode(x, 0.1))


@every_payload
def test_every_truncation_is_refused(name: str) -> None:
    x, payload = PAYLOADS[name]

    assert all(refused(payload[:end], x) for end in range(len(payload)))


@every_payload
def test_bytes_after_the_end_are_refused(name: str) -> None:
    x, payload = PAYLOADS[name]

    for more in (1, 2, 3, 4, 5, 37, 1000):
        assert refused(payload + bytes(more), x)
        assert refused(payload + b"\xff" * more, x)


@pytest.mark.sampled(6)
@every_payload
def test_flipped_bits_are_refused_or_decode(name: str) -> None:
    x, payload = PAYLOADS[name]

    for bit in range(0, 8 * len(payload), 1 if x.size < 5000 else 11):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with np.errstate(all="ignore"):
            refused(bytes(damaged), x)


# A constant's payload is that of any other count, too.
@pytest.mark.parametrize("name", [name for name in PAYLOADS if name != "constant"])
def test_every_other_count_is_refused(name: str) -> None:
    x, payload = PAYLOADS[name]
    same = range(x.size, x.size + 1)
    if name.startswith("blocks"):  # the last may have room for more
        same = range((x.size - 1) // 128 * 128 + 1, -(-x.size // 128) * 128 + 1)

    if name == "sparse":  # the last byte may have room for more
        same = range(x.size, 2 * x.size + 2)

    step = 1 if x.size < 5000 else 61
    for n in {*range(2 * x.size + 2)[::step], x.size // 2, 2 * x.size} - {*same}:
        assert refused(payload, np.empty(n, x.dtype))


@every_payload
def test_every_other_dtype_is_refused(name: str) -> None:
    x, payload = PAYLOADS[name]

    for dtype in DTYPES:
        if dtype != x.dtype:
            assert refused(payload, np.empty(x.shape, dtype))


HUGE = [2**31, 2**33 + 1, 2**60, 2**64 - 1]


def varint(value: int) -> bytes:
    groups = []
    while value >= 128:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


@contextmanager
def little_memory() -> Iterator[None]:
    """Let this process grow by 256 MB at the most: what asks for more gets a MemoryError."""
    if sys.platform != "linux":
        yield
        return
    status = Path("/proc/self/status").read_text()
    size = 1024 * int(status.partition("VmSize:")[2].split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.sampled(6)
@every_payload
def test_huge_numbers_take_no_memory(name: str) -> None:
    """Wherever a number may stand: one that the bytes have not paid for is not allocated."""
    x, payload = PAYLOADS[name]

    with little_memory(), np.errstate(all="ignore"):
        for at in range(len(payload)):
            for huge in HUGE:
                written = varint(huge)
                for end in (at + 1, at + len(written)):
                    refused(payload[:at] + written + payload[end:], x)


@given(data=st.binary(max_size=300), dtype=st.sampled_from(DTYPES), mode=st.integers(0, 15))
def test_noise_behind_a_mode_is_refused_or_decodes(data: bytes, dtype: np.dtype, mode: int) -> None:
    with np.errstate(all="ignore"):
        refused(bytes([DTYPE_IDS[dtype] << 4 | mode]) + data, np.empty((30, 40), dtype))


def test_an_array_that_changes_meanwhile_harms_nobody() -> None:
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
            try:
                payload = Uniform(i % 10, threads=2).encode(x, 1e-3)
                Uniform(threads=2).decode(payload, x.shape)
            except (RuntimeError, CorruptStream):  # it noticed
                continue
    finally:
        done.set()
        thread.join()
