"""libfedsz beside Python: the same bytes, the same elements, the same refusals, on all machines."""

from __future__ import annotations

import os
import re
import resource
import shutil
import struct
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsz
from benchmarks.c_library_size import CODE, MACHINES, map_of, size_of
from compressors.variants import VARIANTS, missing
from fedsz.arrays import DTYPE_IDS
from fedsz.errors import (
    ChecksumMismatch,
    CodecUnavailable,
    ConfigError,
    CorruptStream,
    FedszError,
    LimitExceeded,
    ReferenceMismatch,
    TruncatedStream,
    UnsupportedStream,
)
from fedsz.stream import Limits, Reader, Tensor
from fedsz.stream.format import MAGIC, PREFIX
from tests.compressors import c_cases
from tests.compressors.builds import built, native
from tests.compressors.c_cases import BOUNDS, Case, Stream
from tests.compressors.portable import FLOATS
from tests.conftest import ROOT
from tests.strategies import weights

# By status, what Python raises. The first four have no bytes as their cause.
ERRORS: Sequence[type[Exception]] = (
    AssertionError, ConfigError, MemoryError, BufferError, CorruptStream, TruncatedStream,
    ChecksumMismatch, UnsupportedStream, LimitExceeded, ReferenceMismatch, CodecUnavailable,
)  # fmt: skip
MEMORY, UNAVAILABLE = ERRORS.index(MemoryError), ERRORS.index(CodecUnavailable)
LARGEST = 100_000  # bytes of code of an encoder of float32

pytestmark = native
elsewhere = [
    pytest.param(name, marks=pytest.mark.release) for name in ("sanitized", "aarch64", "windows")
]
libraries = pytest.mark.parametrize("name", ["library", *elsewhere])
encoders = [name for name in VARIANTS if name.startswith("encoder")]


def run(
    name: str, program: str, given_: bytes, folder: Path, *more: str, memory: int = 0
) -> tuple[subprocess.CompletedProcess[str], bytes]:
    """What a program of compressors/library makes of its input, in a build, within some memory."""
    (folder / "in").write_bytes(given_)
    (folder / "out").unlink(missing_ok=True)
    machine, made = VARIANTS[name].machine, built(name) / "compressors" / "library" / program
    wine = {"WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all"}
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (memory, memory)) if memory else None
    done = subprocess.run(
        machine.command(made, "in", "out", *more), cwd=folder, capture_output=True, text=True,
        check=False, timeout=900, env={**os.environ, **wine, "ASAN_OPTIONS": "detect_leaks=1"},
        preexec_fn=limit,
    )  # fmt: skip
    out = folder / "out"
    return done, out.read_bytes() if out.exists() else b""


def check_written(name: str, cases: list[Case], folder: Path) -> None:
    """Assert that a build writes what Python writes; of an encoder, all but the header's bytes."""
    done, out = run(name, "program", b"".join(case.written() for case in cases), folder)
    assert done.returncode == 0, done.stderr
    at = 0
    for case in cases:
        size = int.from_bytes(out[at : at + 8], "little")
        stream, at = out[at + 8 : at + 8 + size], at + 8 + size
        expected, left = case.by_python()
        if name in encoders:
            ours, pythons = Reader(stream), Reader(expected)
            assert ours.header == pythons.header
            assert [bytes(data) for _, data, _ in ours.payloads()] == [
                bytes(data) for _, data, _ in pythons.payloads()
            ]
        else:
            assert stream == expected, (case.bound, case.effort, case.lossless, case.rule)
        assert out[at : at + len(left)] == left
        at += len(left)
    assert at == len(out)


@pytest.mark.parametrize("name", ["library", *elsewhere])
def test_streams_are_written_as_by_python(name: str, tmp_path: Path) -> None:
    cases = c_cases.library_cases() if name == "library" else c_cases.encoder_cases(FLOATS)

    check_written(name, list(cases), tmp_path)


@pytest.mark.parametrize("name", encoders)
def test_an_encoder_alone_writes_what_python_writes(name: str, tmp_path: Path) -> None:
    dtypes = FLOATS if name == "encoder" else FLOATS[:1]

    check_written(name, list(c_cases.encoder_cases(dtypes)), tmp_path)


@given(st.data(), st.sampled_from(FLOATS))
@settings(deadline=None, max_examples=40)
def test_any_tensor_is_written_as_by_python(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: type
) -> None:
    cases = [
        Case({"x": data.draw(weights(dtype))}, bound, data.draw(st.integers(0, 9)))
        for bound in data.draw(st.lists(st.sampled_from(BOUNDS), min_size=1, max_size=4))
    ]

    check_written("library", cases, tmp_path_factory.mktemp("any"))


def status_of(err: FedszError) -> int:
    return ERRORS.index(next(kind for kind in type(err).__mro__ if kind in ERRORS))


def opened(blob: bytes, limits: Limits) -> tuple[int, Sequence[Tensor]]:
    """What libfedsz is to say of a header: what Python does, but that it has no chains."""
    if blob[:8] == MAGIC and len(blob) >= PREFIX and blob[8:10] == b"\3\0":
        return ERRORS.index(UnsupportedStream), ()
    try:
        return 0, Reader(blob, limits).header.tensors
    except FedszError as err:
        return status_of(err), ()


class Output:
    """What compressors/library/reads.c has written."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", self.take(4 * count))

    def text(self) -> str:
        return self.take(*self.numbers(1)).decode()

    def check(self, stream: Stream, without: int = -1) -> int:
        """Compare with what Python says of a stream; return the first status that is no success.

        ``without`` is a status that may take the place of any result: there is no memory.
        """
        limits = Limits(decoded_bytes=stream.decoded_bytes, expansion=0)
        status, tensors = opened(stream.blob, limits)
        result, offset, count = self.numbers(3)
        if result == without:
            return result
        assert (result, count) == (status, len(tensors)), stream.blob
        if status:
            assert offset == 8 or stream.blob[8:10] != b"\3\0" or len(stream.blob) < PREFIX
            return status
        infos = fedsz.inspect(stream.blob).tensors if tensors else ()
        decoded, refused = None, None
        try:
            decoded = fedsz.decompress(
                stream.blob, reference=stream.model, as_numpy=True, limits=limits
            )
        except FedszError as err:
            refused = err
        found: dict[int, int] = {}
        for tensor, info in zip(tensors, infos, strict=True):
            assert (self.text(), self.text()) == (tensor.name, info.codec)
            dtype_id, transform = self.numbers(2)
            bound = struct.unpack("<d", self.take(8))[0]
            assert (dtype_id, bound or None) == (DTYPE_IDS[tensor.dtype], info.bound or None)
            assert transform == ("values", "delta", "bits").index(info.transform)
            result, offset = self.numbers(2)
            if result:
                found.setdefault(result, offset)
                continue
            elements = self.take(tensor.nbytes)
            assert decoded is None or elements == decoded[tensor.name].tobytes()
        if refused is None:
            assert found.keys() <= {UNAVAILABLE, without}, stream.blob
        elif UNAVAILABLE not in found:
            self._check_refusal(stream, refused, found)
        return next(iter(found), 0)

    def _check_refusal(self, stream: Stream, refused: FedszError, found: dict[int, int]) -> None:
        """The first tensor that is refused is refused as by Python, and at the same place."""
        assert found, stream.blob
        status, offset = next(iter(found.items()))
        payloads = {t.codec for t in fedsz.inspect(stream.blob).tensors}
        if payloads <= {"raw", "zlib", "gzip", "uniform"}:
            assert status == status_of(refused), stream.blob
        if isinstance(refused, ChecksumMismatch) and status == status_of(refused):
            assert offset == refused.offset


@libraries
def test_streams_are_read_as_by_python(name: str, tmp_path: Path) -> None:
    streams = list(c_cases.streams())

    done, out = run(name, "reads", b"".join(one.written() for one in streams), tmp_path)

    assert done.returncode == 0, done.stderr
    output = Output(out)
    statuses = {output.check(stream) for stream in streams}
    assert output.at == len(out)
    assert {ERRORS[i] for i in statuses} >= {AssertionError, *ERRORS[4:10]}


@pytest.mark.release
def test_a_sanitizer_sees_a_stream_that_is_freed_early(tmp_path: Path) -> None:
    stream = Stream(fedsz.compress(c_cases.layers(), 0.05, lossless="zlib"))

    done, _ = run("sanitized", "reads", stream.written(), tmp_path, "freed")

    assert done.returncode != 0
    assert "heap-use-after-free" in done.stderr


def test_no_more_memory_is_no_damage(tmp_path: Path) -> None:
    """However little there is, a stream is decoded, or the library says that there is no memory."""
    rng = np.random.default_rng(0)
    blob = fedsz.compress({"x": rng.normal(size=1_000_000).astype(np.float32)}, 0.01)
    too_little, enough, results = 1 << 20, 64 << 20, set()
    while enough - too_little > 1 << 14:
        memory = (too_little + enough) // 2
        done, out = run("library", "reads", Stream(blob).written(), tmp_path, memory=memory)
        result = Output(out).check(Stream(blob), without=MEMORY) if done.returncode == 0 else None
        too_little, enough = (memory, enough) if result != 0 else (too_little, memory)
        results.add(result)
    assert results >= {0, MEMORY}


def test_mistakes_of_callers_are_said(tmp_path: Path) -> None:
    program = built("library") / "compressors" / "library" / "program"

    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout

    version, *lines = said.splitlines()
    assert version == fedsz.__version__.partition("+")[0]
    expected = (
        "data must be aligned to 4 bytes, and is 1 off", "data must not be NULL", "is not text",
        "below 1 of a range", "finite and above 0", r"effort must lie in 0\.\.9",
        r"threads must lie in 1\.\.1024", "settings must not be NULL", "reference has no 'x'",
    )  # fmt: skip
    for line, why in zip(lines, expected, strict=True):
        assert re.search(f"^{ERRORS.index(ConfigError)} .*{why}", line), (line, why)


def test_the_library_shows_its_functions_alone() -> None:
    if not (nm := shutil.which("nm")):
        pytest.skip("needs nm")
    folder = built("library") / "compressors" / "library"
    listed = subprocess.run(
        [nm, "--dynamic", "--defined-only", folder / "libfedsz.so"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    header = (ROOT / "compressors" / "library" / "include" / "fedsz.h").read_text()
    functions = {line.split()[-1] for line in listed}

    assert functions
    assert all(name.startswith("fedsz_") and f"{name}(" in header for name in functions)


@pytest.mark.parametrize("machine", MACHINES)
def test_an_encoder_of_float32_is_as_small_as_documented(machine: str) -> None:
    if why := missing(MACHINES[machine]):
        pytest.skip(f"needs {why}")
    page = (ROOT / "docs" / "guides" / "c-library.md").read_text()
    row = re.search(rf"\| {machine} \| ([\d,]+) \|", page)
    assert row is not None

    size = size_of(map_of(MACHINES[machine]), CODE)

    assert size < LARGEST
    assert size == pytest.approx(int(row[1].replace(",", "")), rel=0.05)  # of another compiler
