"""libfedsz where a wrong access ends the program, and on other machines: Python's bytes, elements
and refusals of streams that are whole or damaged, workspaces too small, pointers that lie wrong.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

import fedsz
from fedsz.core.reference import Reference
from fedsz.errors import CodecUnavailable, FedszError, UnsupportedStream
from fedsz.stream import Limits, Reader, Tensor
from tests import c_library, fuzz
from tests.c_library import ERRORS, Library
from tests.codecs.test_golden import name_of
from tests.codecs.test_other_machines import AARCH64, WINDOWS, Machine
from tests.compressors.test_c_encoder import cases, check_streams
from tests.golden.make import CASES, FOLDER
from tests.hostile_headers import HOSTILE, header_of, sealed_header
from tests.portable import CMAKE, FLOATS, ROOT

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all"
# Without those that take compilers twice as long; make fuzz has them.
SANITIZED = f"{SANITIZERS} -fno-sanitize=null,object-size,pointer-overflow,vptr -O1 -g"
FEW = Limits(decoded_bytes=1 << 24, expansion=0)
# Longer than a message, whose end then may lie in a character; and what is no text.
NAMES = [
    *(("a" * n + "ä" * 150 + "\U0001f600" * 60).encode() for n in range(4)),
    *(b"\x80\xff\xc3", b"line\nbreak\x7f", b"\xed\xa0\x80"),
]
UNAVAILABLE = ERRORS.index(CodecUnavailable)

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(
        not (CMAKE and shutil.which("c++") and shutil.which("cc")),
        reason="needs compilers of C and C++, and cmake",
    ),
    pytest.mark.repository,
    pytest.mark.timeout(1800),  # to compile
]


@dataclass(frozen=True)
class Programs:
    """compressors/library/program.c and reads.c, compiled; and how they are run."""

    folder: Path
    before: tuple[str, ...] = ()
    suffix: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(
        self, name: str, given: bytes, folder: Path, *more: str
    ) -> tuple[subprocess.CompletedProcess[str], bytes]:
        """What a program makes of its input."""
        (folder / "in").write_bytes(given)
        program = str(self.folder / "compressors" / "library" / f"{name}{self.suffix}")
        done = subprocess.run(
            [*self.before, program, "in", "out", *more], cwd=folder, capture_output=True,
            text=True, check=False, timeout=900, env={**os.environ, **self.environment},
        )  # fmt: skip
        return done, (folder / "out").read_bytes()


def zlib_of(machine: Machine) -> dict[str, str | None]:
    """Where a cross-compiler has zlib; skip without."""
    compiler = shutil.which(machine.compiler)
    found = subprocess.run(
        [str(compiler), "-print-file-name=libz.a"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"needs zlib for {machine.compiler}: see .ci/run")
    own = Path(found).resolve().parent.parent / "include"
    include = own if (own / "zlib.h").exists() else Path("/usr/include")
    return {"ZLIB_LIBRARY": found, "ZLIB_INCLUDE_DIR": str(include)}


@pytest.fixture(scope="module", params=["sanitized", "aarch64", "windows"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    if request.param == "sanitized":
        return sanitized(tmp_path_factory.mktemp("empty"))
    machine = {"aarch64": AARCH64, "windows": WINDOWS}[request.param]
    machine.require()
    folder = machine.folder.with_name(f"{machine.folder.name}-library")
    c_compiler = machine.compiler.replace("g++", "gcc")
    c_library.configure(
        folder, "--target", "program", "reads", **machine.definitions(), **zlib_of(machine),
        CMAKE_C_COMPILER=shutil.which(c_compiler), FEDSZ_ZSTD_LIBRARY="NOTFOUND",
    )  # fmt: skip
    wine = {"WINEPREFIX": str(tmp_path_factory.mktemp("wine")), "WINEDEBUG": "-all"}
    suffix = ".exe" if machine is WINDOWS else ""
    return Programs(folder, (str(machine.emulator),), suffix, wine)


def sanitized(empty: Path) -> Programs:
    (empty / "empty.cpp").write_text("int main() {}")
    tried = subprocess.run(
        [str(shutil.which("c++")), *SANITIZERS.split(), "empty.cpp", "-o", "empty"],
        cwd=empty, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode != 0:
        pytest.skip(f"the compiler has no sanitizers: {tried.stderr.strip()[:200]}")
    folder = ROOT / "build" / "sanitized-library"
    c_library.configure(
        folder, "--target", "program", "reads", CMAKE_BUILD_TYPE="None",
        CMAKE_C_FLAGS=SANITIZED, CMAKE_CXX_FLAGS=f"{SANITIZED} -D_GLIBCXX_ASSERTIONS",
    )  # fmt: skip
    return Programs(folder, environment={"ASAN_OPTIONS": "detect_leaks=1"})


class Stream(NamedTuple):
    """Bytes that may be a stream, and the model that it may refer to."""

    blob: bytes
    model: Reference | None = None

    def written(self) -> bytes:
        """As compressors/library/reads.c reads it."""
        pieces = [self.blob, _whole(self.model)]
        return struct.pack("<3Q", *map(len, pieces), FEW.decoded_bytes) + b"".join(pieces)


def _whole(model: Reference | None) -> bytes:
    return fedsz.compress(model.arrays, lossless="raw", threshold=1 << 40) if model else b""


@cache
def streams() -> list[Stream]:
    return [*whole(), *damaged()]


def whole() -> Iterator[Stream]:
    for path in sorted(FOLDER.glob("*.fsz")):
        yield Stream(path.read_bytes(), Reference.of(CASES[name_of(path)].reference()))
    yield Stream(fedsz.compress(c_library.layers(), 0.05, lossless="zlib"))


def damaged() -> Iterator[Stream]:
    rng = random.Random(11)  # noqa: S311 - a mutation is no secret
    for make in HOSTILE.values():
        yield Stream(make())
    for name in NAMES:  # of a dtype that there is not
        kinds = [["@" * len(name), 77, [1]]]
        header = msgspec.msgpack.encode(header_of(kinds, []))
        yield Stream(sealed_header(header.replace(b"@" * len(name), name)))
    headers, blobs = fuzz.corpus("header"), fuzz.corpus("stream")
    for _ in range(500):
        changed = fuzz.mutated(rng.choice(headers), headers, rng)
        yield Stream(sealed_header(changed, version=rng.randint(1, 3)))
    for n in range(300):
        blob = fuzz.mutated(rng.choice(blobs), blobs, rng)
        yield Stream(fuzz.resealed(blob) if n % 3 else blob)


def read(blob: bytes) -> tuple[int, Sequence[Tensor]]:
    """What Python says of a header: the status that it comes to, and its tensors."""
    if c_library.verdict_of(blob, FEW) == UnsupportedStream.__name__:
        return ERRORS.index(UnsupportedStream), ()
    try:
        return 0, Reader(blob, FEW).header.tensors
    except FedszError as err:
        return ERRORS.index(next(kind for kind in type(err).__mro__ if kind in ERRORS)), ()


def check(stream: Stream, out: bytes, at: int) -> int:
    """Compare what a program says of a stream at ``at`` with what Python does; return the end."""

    def number() -> int:
        nonlocal at
        at += 4
        return int.from_bytes(out[at - 4 : at], "little")

    opened, tensors = read(stream.blob)
    assert (number(), number()) == (opened, len(tensors)), stream.blob
    try:
        decoded = fedsz.decompress(stream.blob, reference=stream.model, as_numpy=True, limits=FEW)
    except FedszError:
        decoded = None
    statuses = set()
    for tensor in tensors:
        statuses.add(status := number())
        if status == 0:
            size = int(np.prod(tensor.shape)) * tensor.dtype.itemsize
            elements, at = out[at : at + size], at + size
            assert decoded is None or elements == decoded[tensor.name].tobytes()
    if decoded is None:
        assert not tensors or statuses != {0}, stream.blob
    else:
        assert statuses <= {0, UNAVAILABLE}, stream.blob
    return at


def test_streams_are_read_as_by_python(programs: Programs, tmp_path: Path) -> None:
    given = b"".join(stream.written() for stream in streams())

    done, out = programs.run("reads", given, tmp_path)

    assert done.returncode == 0, done.stderr
    at = 0
    for stream in streams():
        at = check(stream, out, at)
    assert at == len(out)


def test_streams_are_written_as_by_python(programs: Programs, tmp_path: Path) -> None:
    some = list(cases(FLOATS))

    done, out = programs.run("program", b"".join(case.written() for case in some), tmp_path)

    assert done.returncode == 0, done.stderr
    check_streams(out, some)


def test_a_sanitizer_sees_a_stream_that_is_freed_early(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = sanitized(tmp_path_factory.mktemp("empty"))
    given = Stream(fedsz.compress(c_library.layers(), 0.05, lossless="zlib")).written()

    done, _ = programs.run("reads", given, tmp_path, "freed")

    assert done.returncode != 0
    assert "heap-use-after-free" in done.stderr


def test_no_more_memory_is_no_damage(tmp_path: Path) -> None:
    shared = c_library.built()
    if "zstd" not in Library(shared).features:
        pytest.skip("needs zstd's header")
    (tmp_path / "stream").write_bytes(
        fedsz.compress({"counts": np.arange(100_000) % 97}, lossless="zstd")
    )

    done = subprocess.run(
        [sys.executable, "-m", "tests.c_exhausted", shared, tmp_path / "stream"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout == "NoRoom\n", done.stderr
