"""Files are compressed without what POSIX or Linux alone have; locks and private files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedsz import system
from fedsz.safetensors_file import read_safetensors
from fedsz.whole_files import lock_folder, write_whole

# Loaded by each Python process that finds it on its path, so by all that fedsz starts.
SITE = """
import os, pathlib, signal, sys

sys.modules.update(fcntl=None, resource=None)
for module, names in {
    os: ("killpg", "getuid", "sched_getaffinity"),  # torch's Linux wheel has forks to tell of
    signal: ("SIGKILL", "pthread_kill"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

read_text = pathlib.Path.read_text

def read(path, *arguments, **named):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(path)
    return read_text(path, *arguments, **named)

pathlib.Path.read_text = read
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that have nothing of POSIX's own."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def fedsz(*arguments: object, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedsz", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["uniform", "sz2", "zfp"])
def test_files_are_compressed_and_decoded(
    codec: str, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    state = {"a.weight": np.random.default_rng(0).normal(size=(60, 70)).astype(np.float32)}
    save_file(state, tmp_path / "model.safetensors")

    stream, back = tmp_path / "model.fsz", tmp_path / "back.safetensors"
    fedsz("compress", tmp_path / "model.safetensors", "--codec", codec, env=elsewhere)
    fedsz("decompress", stream, "--output", back, env=elsewhere)

    error = np.abs(read_safetensors(back, "")["a.weight"] - state["a.weight"]).max()
    assert 0 < error <= 0.01 * np.ptp(state["a.weight"])


def test_a_lock_is_one_process_s(tmp_path: Path) -> None:
    with lock_folder(tmp_path, "run"):
        program = (
            "import sys; from pathlib import Path; from fedsz.whole_files import lock_folder\n"
            "lock_folder(Path(sys.argv[1]), 'run')"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False
        )

    assert "another run works in" in done.stderr


def test_a_private_file_is_its_owner_s(tmp_path: Path) -> None:
    write_whole(tmp_path / "key", b"secret", private=True)
    assert not system.shares(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    assert system.shares(tmp_path / "key")
