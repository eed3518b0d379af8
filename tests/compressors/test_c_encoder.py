"""libfedsz's encoder alone, here and on emulated machines: equal payloads, and its size."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import fedsz
from benchmarks.c_library_size import CODE, MACHINES, map_of, size_of
from compressors.variants import VARIANTS, missing
from fedsz.arrays import DTYPE_IDS
from fedsz.core.coders import CodecCoder
from fedsz.core.encode import compress_measured
from fedsz.core.feedback import UpdateCoder
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.stream import Reader
from tests.compressors.builds import built, native
from tests.compressors.c_library import KINDS
from tests.compressors.portable import FLOATS, special
from tests.conftest import ROOT
from tests.strategies import LAYER, finite

LARGEST = 100_000  # bytes of code of an encoder of float32

pytestmark = native


class Case(NamedTuple):
    """A tensor, the model and residual beside it if there are any, and how to code it."""

    x: np.ndarray
    bound: str
    effort: int = 5
    base: np.ndarray | None = None
    residual: np.ndarray | None = None

    def written(self) -> bytes:
        """As compressors/library/program.c reads it."""
        kind, _, value = self.bound.partition(":")
        head = struct.pack(
            "<6Id", self.effort, KINDS.index(kind), DTYPE_IDS[self.x.dtype], self.x.ndim,
            self.residual is not None, self.base is not None, float(value),
        )  # fmt: skip
        arrays = (a for a in (self.x, self.residual, self.base) if a is not None)
        return (
            head
            + np.array(self.x.shape, np.uint64).tobytes()
            + b"".join(a.tobytes() for a in arrays)
        )

    def by_python(self) -> tuple[bytes, bytes]:
        """The stream, and what it leaves out."""
        settings = Settings.of(
            self.bound, codec=f"uniform:effort={self.effort}", lossless="raw", threshold=0
        )
        state = {"weight": self.x}
        reference = None if self.base is None else Reference({"weight": self.base})
        if self.residual is None:
            return compress_measured(state, settings, reference)[0], b""
        sent = reference or Reference(state)
        coder = UpdateCoder(CodecCoder(settings), sent, {"weight": self.residual})
        stream = compress_measured(state, settings, reference, coder=coder)[0]
        return stream, coder.residuals.get("weight", np.zeros_like(self.x)).tobytes()


def cases(dtypes: list[type]) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for dtype in dtypes:
        matrix, kernels = (
            finite(0.01 * LAYER[kind](rng, shape), dtype)
            for kind, shape in (("scaled rows", (60, 50)), ("correlated", (24, 12, 3, 3)))
        )
        for effort in (0, 1, 5, 9):
            yield Case(matrix, "rel:0.01", effort)
        yield Case(kernels, "std:0.3")
        yield Case(special(matrix), "abs:0.001")
        yield Case(finite(np.where(rng.random(4000) < 0.01, 1.0, 0.0), dtype), "rel:0.1")
        base = finite(matrix + 0.003 * rng.normal(size=matrix.shape), dtype)
        yield Case(matrix, "std:1.0", base=base)
        yield Case(matrix, "rel:0.0001", base=base)
        if np.dtype(dtype).itemsize > 2:
            residual = finite(0.001 * rng.normal(size=matrix.shape), dtype)
            yield Case(matrix, "std:1.0", base=base, residual=residual)
            yield Case(special(matrix), "rel:0.01", residual=residual)


def check_streams(out: bytes, some: list[Case]) -> None:
    """Assert that what compressors/library/program.c has written is what Python writes."""
    at = 0
    for case in some:
        size = int.from_bytes(out[at : at + 8], "little")
        stream, at = out[at + 8 : at + 8 + size], at + 8 + size
        nbytes = 0 if case.residual is None else case.x.nbytes
        left, at = out[at : at + nbytes], at + nbytes
        expected, expected_left = case.by_python()
        # All but the header's zlib stream.
        ours, pythons = Reader(stream), Reader(expected)
        assert ours.header == pythons.header
        assert [bytes(data) for _, data, _ in ours.payloads()] == [
            bytes(data) for _, data, _ in pythons.payloads()
        ]
        assert left == expected_left
        assert fedsz.inspect(stream).tensors
    assert at == len(out)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("encoder")])
def test_an_encoder_alone_writes_what_python_writes(name: str, tmp_path: Path) -> None:
    some = list(cases(FLOATS if name == "encoder" else FLOATS[:1]))
    program = built(name) / "compressors" / "library" / "program"
    (tmp_path / "in").write_bytes(b"".join(case.written() for case in some))

    done = subprocess.run(
        VARIANTS[name].machine.command(program, "in", "out"),
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    check_streams((tmp_path / "out").read_bytes(), some)


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
