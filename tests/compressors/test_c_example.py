"""libfedsz installed: what pkg-config and CMake say of it builds examples/c, which runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsz
from tests.compressors.builds import built, native
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "c"

pytestmark = native


def run(*command: Any, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False,
        env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix that the library is installed to."""
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", built("library"), "--prefix", prefix)
    return prefix


def by_pkg_config(prefix: Path, folder: Path, *, static: bool) -> Path:
    """The example, compiled with what pkg-config says."""
    asked = ["--static"] if static else []
    flags = run(
        "pkg-config", "--cflags", "--libs", *asked, "fedsz",
        PKG_CONFIG_PATH=str(prefix / "lib" / "pkgconfig"),
    ).split()  # fmt: skip
    if static:
        flags = [f"{prefix}/lib/libfedsz.a" if flag == "-lfedsz" else flag for flag in flags]
    strict = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    run("cc", *strict, EXAMPLE / "client.c", *flags, "-lm", "-o", folder / "client")
    return folder / "client"


def by_cmake(prefix: Path, folder: Path) -> Path:
    run("cmake", "-S", EXAMPLE, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", folder / "build")
    return folder / "build" / "client"


@pytest.mark.parametrize("how", ["pkg-config", "pkg-config --static", "cmake"])
def test_the_example_sends_rounds(installed: Path, how: str, tmp_path: Path) -> None:
    if how.startswith("pkg-config") and not shutil.which("pkg-config"):
        pytest.skip("needs pkg-config")
    if how == "cmake":
        client = by_cmake(installed, tmp_path)
    else:
        client = by_pkg_config(installed, tmp_path, static=how.endswith("static"))
    model = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    (tmp_path / "model.bin").write_bytes(model.tobytes())

    said = run(
        client, tmp_path / "model.bin", 3, tmp_path / "update.fsz",
        LD_LIBRARY_PATH=str(installed / "lib"),
    )  # fmt: skip

    ratios = re.findall(r"round \d: \d+ bytes, ([\d.]+) times smaller", said)
    (tensor,) = fedsz.inspect((tmp_path / "update.fsz").read_bytes()).tensors
    assert len(ratios) == 3
    assert all(float(ratio) > 10 for ratio in ratios)
    assert (tensor.name, tensor.shape, tensor.transform) == ("weights", model.shape, "delta")
    left = re.search(r"left out of the last round: (\S+) an element", said)
    assert left is not None
    assert 1e-5 < float(left[1]) < 1e-2


def test_a_model_that_is_not_there_is_said(installed: Path, tmp_path: Path) -> None:
    client = by_pkg_config(installed, tmp_path, static=True)

    done = subprocess.run(
        [client, tmp_path / "none", "1", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr.strip()) == (2, f"cannot read {tmp_path / 'none'}")
