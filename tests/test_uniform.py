"""uniform beyond what every codec is tested for: equal bytes everywhere, bad ones, memory."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.codecs import _uniform
from fedsz.codecs.uniform import DTYPE_IDS, Uniform, matrix_shape
from fedsz.errors import ConfigError, CorruptStream
from tests.strategies import LAYER, bits_of, finite, layers, relative

DTYPES = list(Uniform.dtypes)
LEVELS = _uniform.levels()
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_effort = pytest.mark.parametrize("effort", range(10))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def bound_of(x: np.ndarray, rel: float) -> float:
    return fedsz.ErrorBound.rel(rel).absolute(x)


def largest_error(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max(initial=0))


def flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(np.uint8)


def encode_at(level: str, x: np.ndarray, bound: float, effort: int, threads: int = 1) -> bytes:
    """The payload that one instruction set makes."""
    id_, shape = DTYPE_IDS[x.dtype], matrix_shape(x.shape)
    return _uniform.encode(flat(x), id_, *shape, bound, effort, threads, level)[0]


def decode_at(level: str, payload: bytes, like: np.ndarray, threads: int = 1) -> np.ndarray:
    y = np.empty_like(like)
    _uniform.decode(payload, DTYPE_IDS[y.dtype], flat(y), threads, level)
    return y


def sums_for(x: np.ndarray) -> np.ndarray:
    return rng(x.size).normal(size=x.shape).astype("f8" if x.dtype == np.float64 else "f4")


# The bound


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


# Equal bytes

# Large enough for several chunks, or shaped for one way of coding.
SHAPES: dict[str, tuple[tuple[int, ...], str]] = {
    "vector": ((150_001,), "plain"),
    "matrix": ((300, 700), "scaled rows"),
    "low rank": ((300, 700), "low rank"),
    "convolution": ((90, 200, 3, 3), "correlated"),
    "filters": ((50, 40, 7, 7), "correlated"),
    "spiky": ((300, 700), "spiky"),
    "small": ((30, 41), "plain"),
    "odd": ((33, 17, 3, 3), "scaled rows"),
}


def layer(name: str, dtype: Any = np.float32) -> np.ndarray:
    shape, kind = SHAPES[name]
    x = LAYER[kind](rng(len(name)), shape) if len(shape) > 1 else rng().normal(size=shape)
    x = finite(x, dtype)
    x.reshape(-1)[[5, 1000]] = np.nan, -np.inf
    return x


@every_dtype
@pytest.mark.parametrize("effort", [0, 1, 3, 5, 7, 9])
@pytest.mark.parametrize("name", SHAPES)
def test_threads_and_instruction_sets_make_no_difference(
    dtype: np.dtype, effort: int, name: str
) -> None:
    x = layer(name, dtype)
    for rel in (0.05, 1e-4):
        bound = bound_of(x, rel)
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


# Sums


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


# Bad payloads


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


@pytest.mark.slow
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


# Memory


def peak(code: str, *arguments: Any) -> list[int]:
    """What a process prints that measures its own peak."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


MEASURE = """
import resource, sys
from pathlib import Path
import numpy as np
import fedsz
from fedsz.codecs.uniform import Uniform

effort, bound, *shape = (float(a) if "." in a or "e" in a else int(a) for a in sys.argv[1:-1])
def peak(): return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def weights():
    x, g = np.empty(shape, np.float32), np.random.default_rng(0)
    right = g.standard_normal(x[0].shape, np.float32)
    for row in x:
        g.standard_normal(dtype=np.float32, out=row)
        row *= 0.1
        row += g.standard_normal(dtype=np.float32) * right
    return x
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="measures Linux's ru_maxrss")
MB = 1 << 20
LARGE = (1 << 14, 1 << 12)


@linux
@pytest.mark.parametrize(
    ("effort", "bound", "shape"),
    [
        (0, 1e-4, LARGE),
        (1, 1e-4, LARGE),
        (5, 0.1, LARGE),
        (5, 0.1, (1 << 11, 1 << 11, 3, 3)),
        (9, 0.1, LARGE),
        (9, 0.1, (1 << 9, 1 << 15)),  # an encoder may look at few rows as a whole
    ],
)
def test_encoding_takes_a_byte_and_a_half_an_element(
    effort: int, bound: float, shape: tuple[int, ...]
) -> None:
    before, after, size = peak(
        "x = weights(); before = peak()\n"
        "payload = Uniform(effort).encode(x, bound)\n"
        "print(before, peak(), len(payload))",
        effort,
        bound,
        *shape,
        "",
    )

    assert after - before <= size + 1.5 * math.prod(shape)


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
def test_accumulating_takes_no_array(effort: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    arguments = effort, 0.1, *shape, tmp_path / "payload"
    peak("Path(sys.argv[-1]).write_bytes(Uniform(effort).encode(weights(), bound))", *arguments)

    before, after = peak(
        "payload = Path(sys.argv[-1]).read_bytes()\n"
        "sums = np.ones(shape, np.float32); before = peak()\n"
        "Uniform().accumulate(payload, sums, 0.5)\n"
        "print(before, peak())",
        *arguments,
    )

    assert after - before <= 32 * MB


def available() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 0
    return 1024 * int(text.partition("MemAvailable:")[2].split()[0])


@pytest.mark.slow
@pytest.mark.skipif(available() < 16 << 30, reason="needs 16 GB of memory")
@pytest.mark.parametrize("effort", [0, 1])
def test_more_elements_than_31_bits_count(effort: int) -> None:
    n = 2**31 + 1
    x = np.zeros(n, np.float32)  # pages that are only read take no memory
    x[2**30 : 2**30 + 1000] = rng(1).normal(size=1000)
    x[-1000:] = rng(2).normal(size=1000)

    payload = Uniform(effort).encode(x, 1e-3)
    assert len(payload) < n // 20
    y = Uniform().decode(payload, x.shape)

    for part in (slice(2**30 - 1000, 2**30 + 2000), slice(n - 2000, n)):
        assert largest_error(x[part], y[part]) <= 1e-3
    assert np.count_nonzero(y) <= 2000


def test_more_elements_than_memory_are_refused() -> None:
    with pytest.raises(CorruptStream, match="memory"):
        Uniform().decode(b"\x03" + bytes(20), (2**60,))


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
