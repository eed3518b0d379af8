"""The native codecs on other machines and under sanitizers: the bytes and elements of this one.

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
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from compressors.variants import VARIANTS, missing
from fedsz.codecs.uniform import DTYPE_IDS
from tests.compressors.builds import built, native
from tests.compressors.portable import UNIFORM, Result, cases, differing, here, there
from tests.conftest import ROOT

CODED = 3
CMAKE = shutil.which("cmake")
OBJDUMP = shutil.which("aarch64-linux-gnu-objdump")
OF_GCC = "-Wno-maybe-uninitialized|-fno-keep-inline-dllexport"  # flags that Clang does not know
# Of compressors/checks.cpp.
CHECKS = ["misaligned", "threads", "widths", "mode", "kernels", "quotients", "packed8"]
CHECKS += ["packed16", "packed32", "digests"]

# Targets of zig, each with the build whose sources and flags are its own.
COMPILED = {
    "aarch64-macos": "aarch64",
    "aarch64-linux-musl": "aarch64",
    "x86_64-macos": "windows",
    "x86_64-linux-musl": "windows",
}

pytestmark = [pytest.mark.release, *native]


@pytest.fixture(scope="module")
def expected() -> dict[str, Result]:
    return {name: here(case) for name, case in cases().items()}


def test_the_cases_have_every_mode(expected: dict[str, Result]) -> None:
    modes, sides, shifted = set(), set(), 0
    for name, result in expected.items():
        dtype, mode = result.payload[0] >> 4, result.payload[0] & 15
        if cases()[name].codec == UNIFORM:
            modes.add((dtype, mode))
        if (dtype, mode) == (0, CODED):  # docs/format.md: step, base, shift, log, flags
            base = next(i for i in range(5, 10) if result.payload[i] < 128)
            shift, _, flags = result.payload[base + 1 : base + 4]
            shifted += shift > 0
            if shift == 0:
                sides.add((flags >> 2, flags >> 1 & 1))

    assert modes == set(product(DTYPE_IDS.values(), range(6)))
    # none, neighbours, low rank; classes
    assert sides >= {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}, sides
    assert shifted


@pytest.mark.parametrize("name", ["sanitized", "aarch64", "windows"])
def test_payloads_and_elements_are_those_of_this_machine(
    name: str, expected: dict[str, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "wine"))
    monkeypatch.setenv("WINEDEBUG", "-all")
    payloads = [result.payload for result in expected.values()]
    program = VARIANTS[name].machine.command(built(name) / "portable", "in", "out")

    found = there(program, list(cases().values()), payloads, tmp_path)

    assert not differing(list(expected), found, list(expected.values()))


@pytest.mark.parametrize("check", CHECKS)
def test_checks(check: str) -> None:
    done = subprocess.run(
        [built("sanitized") / "checks", check],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr


def test_fuzzers_are_of_what_has_one(tmp_path: Path) -> None:
    """CMake has a target for each fuzz.cpp, and needs none; `make fuzz` builds them with Clang."""
    subprocess.run(
        [str(CMAKE), "-S", ROOT, "-B", tmp_path, "-DFEDSZ_FUZZ=ON"], capture_output=True, check=True
    )

    help_ = subprocess.run(
        [str(CMAKE), "--build", tmp_path, "--target", "help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for source in (ROOT / "compressors").glob("*/fuzz.cpp"):
        assert f"fuzz_{source.parent.name}" in help_


@pytest.mark.skipif(not OBJDUMP, reason="needs aarch64-linux-gnu-objdump")
@pytest.mark.parametrize("dtype", ["Float32", "Float64", "Float16", "BFloat16"])
@pytest.mark.parametrize("loop", ["quantise", "dequantise"])
def test_the_loops_are_vectorised(loop: str, dtype: str) -> None:
    (kernels,) = built("aarch64").rglob("kernels_baseline.cpp.o")
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
    if why := missing(COMPILED[target]):
        pytest.skip(f"needs {why}")
    defined = VARIANTS[COMPILED[target]].machine.definitions | {"FEDSZ_PORTABLE": "ON"}
    options = [f"-D{key}={value}" for key, value in defined.items()]
    subprocess.run(
        [str(CMAKE), "-S", ROOT, "-B", tmp_path, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options],
        capture_output=True, check=True,
    )  # fmt: skip
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
