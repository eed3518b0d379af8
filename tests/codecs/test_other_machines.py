"""The native codecs on other machines: the bytes and elements of this one, under emulators.

Where none runs what a compiler makes, it compiles every source, and that is all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from fedsz.codecs.uniform import DTYPE_IDS
from tests import portable
from tests.portable import CMAKE, ROOT, UNIFORM, Result, cases, differing, here, there

CODED = 3
OBJDUMP = shutil.which("aarch64-linux-gnu-objdump")


@dataclass(frozen=True)
class Machine:
    """One that runs under an emulator: its name, compiler and emulators, as Debian has them."""

    system: str
    processor: str
    compiler: str
    emulators: tuple[str, ...]
    program: str = "portable"

    @property
    def folder(self) -> Path:
        return ROOT / "build" / f"{self.system}-{self.processor}".lower()

    @property
    def emulator(self) -> str | None:
        return next(filter(None, map(shutil.which, self.emulators)), None)

    def definitions(self) -> dict[str, str | None]:
        return {
            "CMAKE_SYSTEM_NAME": self.system,
            "CMAKE_SYSTEM_PROCESSOR": self.processor,
            "CMAKE_CXX_COMPILER": shutil.which(self.compiler),
            "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        }

    def require(self) -> None:
        """Skip the test without what it needs."""
        if not (CMAKE and shutil.which(self.compiler) and self.emulator):
            pytest.skip(f"needs cmake, {self.compiler} and {self.emulators[0]}")


AARCH64 = Machine(
    "Linux", "aarch64", "aarch64-linux-gnu-g++", ("qemu-aarch64", "qemu-aarch64-static")
)
WINDOWS = Machine(
    "Windows", "AMD64", "x86_64-w64-mingw32-g++-posix",
    ("wine64", "wine", "/usr/lib/wine/wine64"), "portable.exe",
)  # fmt: skip

OF_GCC = "-Wno-maybe-uninitialized|-fno-keep-inline-dllexport"  # flags that Clang does not know

# Targets of zig, each with the machine whose sources and flags are its own.
COMPILED = {
    "aarch64-macos": AARCH64,
    "aarch64-linux-musl": AARCH64,
    "x86_64-macos": WINDOWS,
    "x86_64-linux-musl": WINDOWS,
}

pytestmark = [pytest.mark.release, pytest.mark.repository, pytest.mark.timeout(900)]  # to compile


@pytest.fixture(scope="module", params=[AARCH64, WINDOWS], ids=["aarch64", "windows"])
def machine(request: pytest.FixtureRequest) -> Machine:
    """A machine that the codecs have been compiled for, with the flags of CMakeLists.txt."""
    chosen: Machine = request.param
    chosen.require()
    portable.build(chosen.folder, "portable", **chosen.definitions())
    return chosen


@pytest.fixture(scope="module")
def aarch64() -> Path:
    """The folder of what was compiled for it."""
    AARCH64.require()
    portable.build(AARCH64.folder, "portable", **AARCH64.definitions())
    return AARCH64.folder


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
    machine: Machine,
    expected: dict[str, Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "wine"))
    monkeypatch.setenv("WINEDEBUG", "-all")
    payloads = [result.payload for result in expected.values()]
    program = [str(machine.emulator), machine.folder / machine.program]

    emulated = there(program, list(cases().values()), payloads, tmp_path)

    assert not differing(list(expected), emulated, list(expected.values()))


@pytest.mark.skipif(not OBJDUMP, reason="needs aarch64-linux-gnu-objdump")
@pytest.mark.parametrize("dtype", ["Float32", "Float64", "Float16", "BFloat16"])
@pytest.mark.parametrize("loop", ["quantise", "dequantise"])
def test_the_loops_are_vectorised(aarch64: Path, loop: str, dtype: str) -> None:
    (kernels,) = aarch64.rglob("kernels_baseline.cpp.o")
    listing = subprocess.run(
        [str(OBJDUMP), "-dC", "--no-show-raw-insn", kernels],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    functions = re.split(r"^[0-9a-f]+ <", listing, flags=re.MULTILINE)[1:]
    ours = [f for f in functions if re.search(rf"::{loop}(_as)?<fedsz::uniform::{dtype}\b", f)]

    lanes = "2d" if dtype == "Float64" else "4s"
    for instruction in ("fmul", "scvtf"):
        assert any(re.search(rf"\t{instruction}\tv\d+\.{lanes}", f) for f in ours), instruction


@pytest.mark.skipif(not find_spec("ziglang"), reason="needs ziglang")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", COMPILED)
def test_the_sources_compile(target: str, tmp_path: Path) -> None:
    like = COMPILED[target]
    like.require()
    portable.configure(tmp_path, **like.definitions())
    commands: list[Mapping[str, str]] = json.loads((tmp_path / "compile_commands.json").read_text())
    assert len(commands) > 30
    compiler = f"{sys.executable} -m ziglang c++ -target {target} -O0"
    lines = [re.sub(rf"^\S+|-O3|{OF_GCC}", " ", command["command"]) for command in commands]
    script = tmp_path / "compile.sh"
    script.write_text("mkdir -p $(dirname $(grep -o 'o CMakeFiles[^ ]*' $0 | cut -c3-))\nset -e\n")
    with script.open("a") as file:
        file.writelines(f"{compiler} {line}\n" for line in lines)

    done = subprocess.run(
        [str(shutil.which("sh")), script], capture_output=True, text=True, check=False,
        cwd=tmp_path, env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
