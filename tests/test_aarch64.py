"""The native codecs on aarch64, under an emulator: the bytes and elements of this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from fedsz.codecs.uniform import DTYPE_IDS
from tests import portable
from tests.portable import CMAKE, ROOT, UNIFORM, Result, cases, differing, here, there

BUILD = ROOT / "build" / "aarch64"
CODED = 3

COMPILER = shutil.which("aarch64-linux-gnu-g++")
OBJDUMP = shutil.which("aarch64-linux-gnu-objdump")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

pytestmark = [
    pytest.mark.skipif(
        not (COMPILER and OBJDUMP and EMULATOR and CMAKE),
        reason="needs aarch64-linux-gnu-g++, qemu-aarch64 and cmake",
    ),
    pytest.mark.repository,
    pytest.mark.timeout(900),  # to compile
]


@pytest.fixture(scope="module")
def build() -> Path:
    """The folder of the codecs compiled for aarch64, with the flags of CMakeLists.txt."""
    portable.build(
        BUILD,
        "portable",
        CMAKE_SYSTEM_NAME="Linux",
        CMAKE_SYSTEM_PROCESSOR="aarch64",
        CMAKE_CXX_COMPILER=COMPILER,
    )
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

    assert seen == set(product(DTYPE_IDS.values(), range(6)))
    assert sides >= {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}, (
        sides
    )  # none, neighbours, low rank; classes
    assert shifted


def test_payloads_and_elements_are_those_of_this_machine(
    build: Path, expected: dict[str, Result], tmp_path: Path
) -> None:
    payloads = [result.payload for result in expected.values()]

    emulated = there(
        [str(EMULATOR), build / "portable"], list(cases().values()), payloads, tmp_path
    )

    assert not differing(list(expected), emulated, list(expected.values()))


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
