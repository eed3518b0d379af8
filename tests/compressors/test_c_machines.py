"""libfedsz where a wrong access ends the program, and on other machines: Python's bytes, elements
and refusals of streams that are whole or damaged, workspaces too small, pointers that lie wrong.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

import fedsz
from compressors.variants import VARIANTS
from fedsz.core.reference import Reference
from fedsz.errors import CodecUnavailable, FedszError, UnsupportedStream
from fedsz.stream import Limits, Reader, Tensor
from tests import fuzz
from tests.codecs.test_golden import name_of
from tests.compressors import c_library
from tests.compressors.builds import built, native
from tests.compressors.c_library import ERRORS, Library
from tests.compressors.portable import FLOATS
from tests.compressors.test_c_encoder import cases, check_streams
from tests.conftest import ROOT
from tests.golden.make import CASES, FOLDER
from tests.hostile_headers import HOSTILE, header_of, sealed_header

FEW = Limits(decoded_bytes=1 << 24, expansion=0)
# Longer than a message, whose end then may lie in a character; and what is no text.
NAMES = [
    *(("a" * n + "ä" * 150 + "\U0001f600" * 60).encode() for n in range(4)),
    *(b"\x80\xff\xc3", b"line\nbreak\x7f", b"\xed\xa0\x80"),
]
UNAVAILABLE = ERRORS.index(CodecUnavailable)

machines = pytest.mark.parametrize("name", ["sanitized", "aarch64", "windows"])
pytestmark = [pytest.mark.release, *native]


def run(
    name: str, program: str, given: bytes, folder: Path, *more: str
) -> tuple[subprocess.CompletedProcess[str], bytes]:
    """What compressors/library/program.c or reads.c makes of its input, in a build."""
    (folder / "in").write_bytes(given)
    machine, made = VARIANTS[name].machine, built(name) / "compressors" / "library" / program
    wine = {"WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all"}
    done = subprocess.run(
        machine.command(made, "in", "out", *more), cwd=folder, capture_output=True, text=True,
        check=False, timeout=900, env={**os.environ, **wine, "ASAN_OPTIONS": "detect_leaks=1"},
    )  # fmt: skip
    return done, (folder / "out").read_bytes()


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


@machines
def test_streams_are_read_as_by_python(name: str, tmp_path: Path) -> None:
    given = b"".join(stream.written() for stream in streams())

    done, out = run(name, "reads", given, tmp_path)

    assert done.returncode == 0, done.stderr
    at = 0
    for stream in streams():
        at = check(stream, out, at)
    assert at == len(out)


@machines
def test_streams_are_written_as_by_python(name: str, tmp_path: Path) -> None:
    some = list(cases(FLOATS))

    done, out = run(name, "program", b"".join(case.written() for case in some), tmp_path)

    assert done.returncode == 0, done.stderr
    check_streams(out, some)


def test_a_sanitizer_sees_a_stream_that_is_freed_early(tmp_path: Path) -> None:
    given = Stream(fedsz.compress(c_library.layers(), 0.05, lossless="zlib")).written()

    done, _ = run("sanitized", "reads", given, tmp_path, "freed")

    assert done.returncode != 0
    assert "heap-use-after-free" in done.stderr


def test_no_more_memory_is_no_damage(tmp_path: Path) -> None:
    shared = c_library.shared()
    if "zstd" not in Library(shared).features:
        pytest.skip("needs zstd's header")
    (tmp_path / "stream").write_bytes(
        fedsz.compress({"counts": np.arange(100_000) % 97}, lossless="zstd")
    )

    done = subprocess.run(
        [sys.executable, "-m", "tests.compressors.c_exhausted", shared, tmp_path / "stream"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout == "NoRoom\n", done.stderr
