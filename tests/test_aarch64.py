"""The native codecs on aarch64, under an emulator: the bytes and elements of this machine."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import fedsz
from fedsz.codecs import _szx, _uniform
from fedsz.codecs.uniform import DTYPE_IDS, matrix_shape
from tests.conftest import ROOT
from tests.strategies import KIND, LAYER, bits_of, finite

BUILD = ROOT / "build" / "aarch64"
SZX, UNIFORM = 0, 1  # as compressors/portable.cpp numbers them
CODED = 3
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
WEIGHT = 1 / 3

COMPILER = shutil.which("aarch64-linux-gnu-g++")
OBJDUMP = shutil.which("aarch64-linux-gnu-objdump")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
CMAKE = shutil.which("cmake")

pytestmark = [
    pytest.mark.skipif(
        not (COMPILER and OBJDUMP and EMULATOR and CMAKE),
        reason="needs aarch64-linux-gnu-g++, qemu-aarch64 and cmake",
    ),
    pytest.mark.repository,
]


class Case(NamedTuple):
    """An array to be encoded, and how."""

    x: np.ndarray
    bound: float
    codec: int = UNIFORM
    effort: int = 5
    threads: int = 1
    flush: bool = False  # on a host that takes subnormals for zero


class Result(NamedTuple):
    """What a machine makes of a case."""

    payload: bytes
    max_error: float
    decoded: bytes
    sums: bytes  # of uniform: ones, to which the elements times WEIGHT have been added


def relative(x: np.ndarray, rel: float, **settings: Any) -> Case:
    return Case(x, fedsz.ErrorBound.rel(rel).absolute(x), **settings)


def special(x: np.ndarray) -> np.ndarray:
    """x with NaNs (of payloads of their own), infinities and outliers."""
    x = x.copy()
    bits, sign = bits_of(x.reshape(-1)), 1 << 8 * x.itemsize - 1
    infinity = int(bits_of(np.array(np.inf, x.dtype)))
    bits[3::997] = infinity | infinity >> 1 | 5
    bits[5::1993] = sign | infinity
    x.reshape(-1)[7::499] *= 100
    return x


@cache
def cases() -> dict[str, Case]:
    return dict(uniform_cases()) | dict(szx_cases())


def uniform_cases() -> Iterator[tuple[str, Case]]:
    rng = np.random.default_rng(0)
    for dtype in map(np.dtype, FLOATS):

        def layer(kind: str, *shape: int, dtype: np.dtype = dtype) -> np.ndarray:
            return finite(0.01 * LAYER[kind](rng, shape), dtype)

        matrix, kernels = layer("scaled rows", 150, 130), layer("correlated", 48, 24, 3, 3)
        for effort in (0, 1, 5, 9):
            yield f"{dtype} effort {effort}", relative(matrix, 1e-2, effort=effort)
            yield f"{dtype} kernels {effort}", relative(kernels, 1e-2, effort=effort)
            yield f"{dtype} special {effort}", Case(special(matrix), 1e-3, effort=effort)
        yield f"{dtype} special kernels", Case(special(kernels), 1e-3)
        scales = np.exp2(2 * rng.normal(size=(64, 1, 1, 1)))
        scaled = finite(scales * layer("correlated", 64, 64, 3, 3), dtype)
        yield f"{dtype} scaled kernels", relative(scaled, 1e-2)
        for rel in (1e-1, 1e-4, 1e-6, 1e-9):
            yield f"{dtype} within {rel}", relative(matrix, rel)
        for *kernel, rows in ((5, 5, 8), (1, 7, 16), (4, 40), (3, 3, 3, 6), (16, 16, 3)):
            yield (
                f"{dtype} kernels of {kernel}",
                relative(layer("correlated", rows, 7, *kernel), 1e-2),
            )
        sparse = np.where(rng.random(matrix.shape) < 0.01, matrix, 0).astype(dtype)
        yield f"{dtype} sparse", Case(sparse, 1e-3)
        yield f"{dtype} sparse, gaps", Case(sparse, 0.3)
        yield f"{dtype} sparse in blocks", Case(sparse, 1e-3, effort=0)
        yield f"{dtype} constant", Case(np.full(70_000, 0.3, dtype), 1e-2)
        yield f"{dtype} all but constant", Case(special(np.full(7000, 0.3, dtype)), 1e-2)
        yield f"{dtype} exact", Case(matrix[0], 0.0)
        low_rank = layer("low rank", 260, 300)
        yield f"{dtype} of low rank", relative(low_rank, 1e-2, effort=9)
        yield f"{dtype} special, of low rank", relative(special(low_rank), 1e-5, effort=9)
        yield (
            f"{dtype} nearly of low rank",
            relative(layer("plain", 260, 300) + low_rank, 1e-2, effort=7),
        )
        for n in (0, 1, 3, 127, 128, 129, 511, 512, 513, 4097):
            yield f"{dtype} of {n}", relative(layer("plain", n), 1e-2)
        small = finite(rng.normal(size=(90, 80)) * 2e-6, dtype)  # subnormal in float16
        for effort in (0, 5):
            yield (
                f"{dtype} flushed {effort}",
                Case(small, 2e-7, effort=effort, threads=2, flush=True),
            )
        tiny = finite(rng.normal(size=3000) * 1e-38, dtype)
        yield f"{dtype} subnormal, flushed", Case(tiny, 1e-40, flush=True)
    for kind, make in KIND.items():
        x = finite(make(rng, 3000), np.float32)
        yield f"{kind}", relative(x, 1e-3)
        yield f"{kind} in blocks", relative(x, 1e-3, effort=0)
    large = finite(LAYER["scaled rows"](rng, (400, 500)), np.float32)
    for effort in (0, 1, 5):
        yield f"large {effort}", relative(large, 1e-3, effort=effort, threads=3)
    small = finite(rng.normal(size=1 << 20) * 2e-6, np.float16)  # enough for threads
    yield "large, flushed", Case(small, 2e-7, effort=1, threads=3, flush=True)
    yield "large, kernels", relative(large.reshape(200, -1, 2, 5), 1e-2, threads=3)


def szx_cases() -> Iterator[tuple[str, Case]]:
    rng = np.random.default_rng(1)
    for kind, make in KIND.items():
        x = finite(make(rng, 3001), np.float32)
        for rel in (1e-5, 1e-2):
            yield f"szx {kind} within {rel}", relative(x, rel, codec=SZX)
        yield f"szx {kind} special", Case(special(x), 1e-3, codec=SZX)
    for scale in (1e-44, 1e-41, 1e-38):
        x = finite(rng.normal(size=1000) * scale, np.float32)
        yield f"szx {scale}, flushed", Case(x, 0.01 * scale, codec=SZX, flush=True)
    yield "szx of none", Case(np.empty(0, np.float32), 1.0, codec=SZX)


def here(case: Case, level: str = "", threads: int = 1) -> Result:
    """What this machine's extension makes of a case."""
    x = case.x.reshape(-1)
    if case.codec == SZX:
        payload, error = _szx.encode(x, case.bound)
        return Result(payload, error, _szx.decode(payload, x.size).tobytes(), b"")
    id_, shape = DTYPE_IDS[x.dtype], matrix_shape(case.x.shape)
    payload, error = _uniform.encode(
        x.view(np.uint8), id_, *shape, case.bound, case.effort, threads, level
    )
    y, sums = np.empty_like(x), np.ones(x.size, np.float64 if x.itemsize == 8 else np.float32)
    _uniform.decode(payload, id_, y.view(np.uint8), threads, level)
    _uniform.accumulate(payload, id_, WEIGHT, sums.view(np.uint8), threads, level)
    return Result(payload, error, y.tobytes(), sums.tobytes())


def written(case: Case, payload: bytes) -> bytes:
    """The case as compressors/portable.cpp reads it; the payload is what it shall decode."""
    rows, columns, planes, width = matrix_shape(case.x.shape)
    head = struct.pack(
        "<5B2d2Q2IQ",
        *(case.codec, DTYPE_IDS[case.x.dtype], case.effort, case.threads, case.flush),
        *(case.bound, WEIGHT, rows, columns, planes, width, len(payload)),
    )
    return head + case.x.tobytes() + payload


def there(cases: list[Case], payloads: list[bytes], folder: Path) -> list[Result]:
    """What the emulated machine makes of the cases, and of the payloads from here."""
    asked, answered = folder / "cases", folder / "results"
    asked.write_bytes(b"".join(map(written, cases, payloads)))
    subprocess.run([str(EMULATOR), BUILD / "portable", asked, answered], check=True)
    data, at, results = answered.read_bytes(), 0, []

    def take(n: int) -> bytes:
        nonlocal at
        at += n
        return data[at - n : at]

    for case in cases:
        error, size = struct.unpack("<dQ", take(16))
        wide = case.codec == UNIFORM and max(case.x.itemsize, 4)
        results.append(Result(take(size), error, take(case.x.nbytes), take(wide * case.x.size)))
    assert at == len(data)
    return results


@pytest.fixture(scope="module")
def build() -> Path:
    """The folder of the codecs compiled for aarch64, with the flags of CMakeLists.txt."""
    assert CMAKE is not None
    cross = {
        "FEDSZ_PORTABLE": "ON",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
    }
    definitions = [f"-D{name}={value}" for name, value in cross.items()]
    for step in (
        ["-S", ROOT, "-B", BUILD, *definitions],
        ["--build", BUILD, "-j", str(os.cpu_count() or 1)],
    ):
        done = subprocess.run([CMAKE, *step], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return BUILD


@pytest.fixture(scope="module")
def expected() -> dict[str, Result]:
    return {name: here(case) for name, case in cases().items()}


def test_the_cases_have_every_mode(expected: dict[str, Result]) -> None:
    seen, sides, shifted = set(), set(), 0
    for name, result in expected.items():
        dtype, mode = result.payload[0] >> 4, result.payload[0] & 15
        if cases()[name].codec == UNIFORM:
            seen.add((dtype, mode))
        if (dtype, mode) == (0, CODED):  # docs/format.md: step, base, shift, log, flags
            base = next(i for i in range(5, 10) if result.payload[i] < 128)
            shift, _, flags = result.payload[base + 1 : base + 4]
            shifted += shift > 0
            if shift == 0:
                sides.add((flags >> 2, flags >> 1 & 1))

    assert seen == set(product(DTYPE_IDS.values(), range(5)))
    assert sides >= {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}, (
        sides
    )  # none, neighbours, low rank; classes
    assert shifted


@pytest.mark.parametrize("level", _uniform.levels())
def test_all_levels_of_this_machine_agree(level: str, expected: dict[str, Result]) -> None:
    uniform = {name: case for name, case in cases().items() if case.codec == UNIFORM}

    assert not [name for name, case in uniform.items() if here(case, level, 2) != expected[name]]


def test_payloads_and_elements_are_those_of_this_machine(
    build: Path, expected: dict[str, Result], tmp_path: Path
) -> None:
    names = list(expected)

    emulated = there(
        [cases()[name] for name in names], [r.payload for r in expected.values()], tmp_path
    )

    results = zip(names, emulated, expected.values(), strict=True)
    differ = [
        (name, [field for field in Result._fields if getattr(a, field) != getattr(b, field)])
        for name, a, b in results
        if a != b
    ]
    assert not differ


@pytest.mark.parametrize("dtype", ["Float32", "Float64", "Float16", "BFloat16"])
@pytest.mark.parametrize("loop", ["quantise", "dequantise"])
def test_the_loops_are_vectorised(build: Path, loop: str, dtype: str) -> None:
    (kernels,) = build.rglob("kernels_baseline.cpp.o")
    listing = subprocess.run(
        [str(OBJDUMP), "-dC", "--no-show-raw-insn", kernels],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    functions = re.split(r"^[0-9a-f]+ <", listing, flags=re.MULTILINE)[1:]
    ours = [f for f in functions if re.search(rf"::{loop}(_as)?<fedsz::uniform::{dtype}\b", f)]

    lanes = "2d" if dtype == "Float64" else "4s"
    for instruction in ("fmul", "scvtf"):
        assert any(re.search(rf"\t{instruction}\tv\d+\.{lanes}", f) for f in ours), instruction
