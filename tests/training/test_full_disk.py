"""A disk of real processes that fills up in the middle of a run, and is emptied again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fedsz.training.options import RunConfig
from tests.fleets import LIMIT, TASK, Fleet, complaints, federated, rounds_in, shares
from tests.links import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow
ROUNDS = 40


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, unmount = (shutil.which(name) for name in ("mount", "umount"))
    if sys.platform != "linux" or not (mount and unmount):
        pytest.skip("needs Linux's tmpfs")
    command = [mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a disk")
    yield folder
    subprocess.run([unmount, "--lazy", str(folder)], check=True)


def test_a_run_folder_that_fills_up_ends_the_server_and_the_run_goes_on_when_it_is_emptied(
    fleet: Fleet, disk: Path
) -> None:
    """tests/flower/test_state_folder.py has a client's folder and the server's TMPDIR."""
    folder, ballast, port = disk / "run", disk / "ballast", free_port()
    # Nobody is given up for being slow.
    length = ("--rounds", ROUNDS, "--min-clients", 2, "--deadline-factor", 0)
    server = fleet.server(*length, "--run-dir", folder, port=port)
    clients = fleet.clients(server.port, 2)
    server.wait_for_round(3)
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 12))

    assert server.process.wait(LIMIT) == 2
    (line,) = complaints(server.process)
    assert line.startswith(f"fedsz: cannot write {folder}/")
    assert line.endswith(": No space left on device")
    kept = [line["round"] for line in rounds_in(folder)]
    assert kept == list(range(len(kept)))
    assert 3 < len(kept) < ROUNDS
    ballast.unlink()
    again = fleet.server("--resume", folder, port=port)
    assert [process.wait(LIMIT) for process in (again.process, *clients)] == [0, 0, 0]
    assert [line["round"] for line in rounds_in(folder)] == list(range(ROUNDS + 1))
    whole = RunConfig(task=TASK, rounds=ROUNDS, min_clients=2, run_dir=str(fleet.folder / "whole"))
    federated(whole, shares(2, task=TASK))
    models = [(run / "model.safetensors").read_bytes() for run in (folder, fleet.folder / "whole")]
    assert models[0] == models[1]
