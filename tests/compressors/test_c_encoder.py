"""libfedsz's encoder alone, here and on emulated machines: equal payloads, and its size."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import fedsz
from benchmarks.c_library_size import CODE, MACHINES, Machine, configure, size_of
from fedsz.arrays import DTYPE_IDS
from fedsz.core.coders import CodecCoder
from fedsz.core.encode import compress_measured
from fedsz.core.feedback import UpdateCoder
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.stream import Reader
from tests.c_library import KINDS
from tests.portable import CMAKE, FLOATS, ROOT, special
from tests.strategies import LAYER, finite

HERE = Machine("this machine", "", "Linux")
EMULATORS = {"": "", "aarch64-linux-gnu-": "qemu-aarch64", "arm-none-eabi-": "qemu-system-arm"}
LARGEST = 100_000  # bytes of code of an encoder of float32

pytestmark = [
    pytest.mark.skipif(
        not (CMAKE and shutil.which("c++")), reason="needs a C++ compiler and cmake"
    ),
    pytest.mark.repository,
    pytest.mark.timeout(1800),  # to compile
]


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


def command(machine: Machine, program: Path) -> list[str]:
    """How to run a program that is given "in" and "out"."""
    if machine.system != "Generic":
        return [*filter(None, [EMULATORS[machine.prefix]]), str(program), "in", "out"]
    semihosting = "enable=on,target=native,arg=program,arg=in,arg=out"
    quiet = ("-display", "none", "-monitor", "none", "-serial", "none")
    board = ("-M", "mps2-an386", *quiet, "-semihosting-config", semihosting)
    return [EMULATORS[machine.prefix], *board, "-kernel", str(program)]


@pytest.mark.parametrize(
    ("machine", "float32_only"),
    [(HERE, True), (HERE, False), *((machine, True) for machine in MACHINES)],
    ids=lambda value: value.name if isinstance(value, Machine) else f"float32={value}",
)
def test_an_encoder_alone_writes_what_python_writes(
    machine: Machine, float32_only: bool, tmp_path: Path
) -> None:
    emulator, compiler = EMULATORS[machine.prefix], f"{machine.prefix}g++"
    if not shutil.which(compiler) or (emulator and not shutil.which(emulator)):
        pytest.skip(f"needs {compiler} and {emulator}")
    some = list(cases(FLOATS[:1] if float32_only else FLOATS))
    program = configure(machine, "program", float32_only=float32_only) / "program"
    (tmp_path / "in").write_bytes(b"".join(case.written() for case in some))

    done = subprocess.run(
        command(machine, program),
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    check_streams((tmp_path / "out").read_bytes(), some)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_an_encoder_of_float32_is_as_small_as_documented(machine: Machine) -> None:
    if not shutil.which(f"{machine.prefix}g++"):
        pytest.skip(f"needs {machine.prefix}g++")
    page = (ROOT / "docs" / "guides" / "c-library.md").read_text()
    row = re.search(rf"\| {machine.name} \| ([\d,]+) \|", page)
    assert row is not None

    size = size_of(configure(machine, "smallest", float32_only=True) / "smallest.map", CODE)

    assert size < LARGEST
    assert size == pytest.approx(int(row[1].replace(",", "")), rel=0.05)  # of another compiler
