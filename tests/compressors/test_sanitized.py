"""The native codecs under sanitizers: no undefined behaviour, and what they must stand."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import portable
from tests.portable import CMAKE, ROOT, cases, differing, here, there

BUILD = ROOT / "build" / "sanitized"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
# Without those that take compilers twice as long; make fuzz has them.
SLOW = "null,object-size,pointer-overflow,vptr"
SANITIZED = f"-fsanitize=alignment,undefined -fno-sanitize={SLOW} -fno-sanitize-recover=all"
# Of compressors/checks.cpp.
CHECKS = ["misaligned", "threads", "widths", "mode", "kernels", "quotients", "packed8"]
CHECKS += ["packed16", "packed32", "digests"]

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(not (COMPILER and CMAKE), reason="needs a C++ compiler and cmake"),
    pytest.mark.repository,
    pytest.mark.timeout(900),  # to compile
]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs compiled so that undefined behaviour ends them."""
    empty = tmp_path_factory.mktemp("empty")
    (empty / "empty.cpp").write_text("int main() {}")
    tried = subprocess.run(
        [str(COMPILER), *SANITIZED.split(), "empty.cpp", "-static", "-o", "empty"],
        cwd=empty, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode != 0:
        pytest.skip(f"{COMPILER} has no sanitizers: {tried.stderr.strip()[:200]}")
    portable.build(
        BUILD,
        "portable",
        "checks",
        CMAKE_CXX_COMPILER=COMPILER,
        CMAKE_BUILD_TYPE="None",
        CMAKE_CXX_FLAGS=f"-O1 {SANITIZED} -D_GLIBCXX_ASSERTIONS",
    )
    return BUILD


def test_no_case_is_undefined(build: Path, tmp_path: Path) -> None:
    expected = [here(case) for case in cases().values()]
    payloads = [result.payload for result in expected]

    got = there([build / "portable"], list(cases().values()), payloads, tmp_path)

    assert not differing(list(cases()), got, expected)


@pytest.mark.parametrize("check", CHECKS)
def test_checks(build: Path, check: str) -> None:
    done = subprocess.run(
        [build / "checks", check], capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stderr


def test_fuzzers_are_of_what_has_one(tmp_path: Path) -> None:
    """CMake has a target for each fuzz.cpp, and needs none; `make fuzz` builds them with Clang."""
    assert CMAKE is not None
    arguments = ["-S", ROOT, "-B", tmp_path, "-DFEDSZ_FUZZ=ON", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    subprocess.run([CMAKE, *arguments], capture_output=True, check=True)

    help_ = subprocess.run(
        [CMAKE, "--build", tmp_path, "--target", "help"], capture_output=True, text=True, check=True
    ).stdout
    for source in (ROOT / "compressors").glob("*/fuzz.cpp"):
        assert f"fuzz_{source.parent.name}" in help_
