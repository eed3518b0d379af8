"""Disks of real processes that fill up in the middle of a run, and are emptied again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from fedsz.transport.state_folder import STATE
from tests.fleets import LIMIT, WIDE, Fleet, Server, complaints, rounds_in
from tests.links import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow
ROUNDS = 40


class Disk:
    """A file system of its own, in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(1 << 12))
                except OSError:
                    return

    def empty(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, unmount = (shutil.which(name) for name in ("mount", "umount"))
    if sys.platform != "linux" or not (mount and unmount):
        pytest.skip("needs Linux's tmpfs")
    command = [mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a disk")
    yield Disk(folder)
    subprocess.run([unmount, "--lazy", str(folder)], check=True)


# Of a run in which nobody is given up for being slow.
RUN = ("--rounds", ROUNDS, "--min-clients", 2, "--deadline-factor", 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """The model of a run that had room."""
    fleet = Fleet(tmp_path_factory.mktemp("whole"))
    server = fleet.server(*RUN, "--run-dir", "out")
    fleet.clients(server.port, 2)
    assert server.process.wait(LIMIT) == 0
    yield (fleet.folder / "out" / "model.safetensors").read_bytes()
    fleet.end()


def ended(server: Server, clients: list[Any], folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run, all of them, that has ended well for all."""
    assert server.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0]
    lines = rounds_in(folder)
    assert [line["round"] for line in lines] == list(range(ROUNDS + 1))
    return lines


def test_a_run_folder_that_fills_up_ends_the_server_and_the_run_goes_on_when_it_is_emptied(
    fleet: Fleet, disk: Disk, whole: bytes
) -> None:
    folder, port = disk.folder / "run", free_port()
    server = fleet.server(*RUN, "--run-dir", folder, port=port)
    clients = fleet.clients(server.port, 2)
    server.wait_for_round(3)
    disk.fill()

    assert server.process.wait(LIMIT) == 2
    (line,) = complaints(server.process)
    assert line.startswith(f"fedsz: cannot write {folder}/")
    assert line.endswith(": No space left on device")
    kept = [line["round"] for line in rounds_in(folder)]
    assert kept == list(range(len(kept)))
    assert 3 < len(kept) < ROUNDS
    disk.empty()
    ended(fleet.server("--resume", folder, port=port), clients, folder)
    assert (folder / "model.safetensors").read_bytes() == whole


def test_a_client_whose_state_has_no_room_goes_on(fleet: Fleet, disk: Disk, whole: bytes) -> None:
    server = fleet.server(*RUN, "--run-dir", "out")
    clients = [
        fleet.client(server.port, 0, 2, "--state-dir", disk.folder),
        fleet.client(server.port, 1, 2),
    ]
    state = disk.folder / STATE
    server.wait_for_round(3)
    disk.fill()
    wait_until(lambda: not state.exists())  # rather than one of an earlier round
    disk.empty()
    wait_until(state.exists)

    ended(server, clients, fleet.folder / "out")
    assert (fleet.folder / "out" / "model.safetensors").read_bytes() == whole


def test_replies_that_have_no_room_end_the_run_which_goes_on_when_there_is_some(
    fleet: Fleet, disk: Disk
) -> None:
    """The server keeps replies in TMPDIR."""
    folder, port, place = fleet.folder / "out", free_port(), ("env", f"TMPDIR={disk.folder}")
    plain = ("--update", "weights", "--codec", "raw", "--error-bound", "1e-9", "--lossless", "raw")
    where: dict[str, Any] = {"port": port, "task": WIDE, "prefix": place}
    server = fleet.server(*RUN, *plain, "--run-dir", folder, **where)
    clients = [fleet.client(server.port, i, 2, task=WIDE) for i in range(2)]
    server.wait_for_round(2)
    disk.fill()

    assert server.process.wait(LIMIT) == 2
    assert complaints(server.process)[-1].startswith("fedsz: ")
    failed = [line for line in rounds_in(folder) if line["replies"] < 2][1:]
    reasons = [failure["reason"] for line in failed for failure in line["failures"]]
    assert reasons
    assert all("could not be stored: No space left on device" in reason for reason in reasons)
    disk.empty()
    lines = ended(fleet.server("--resume", folder, **where), clients, folder)
    assert lines[-1]["replies"] == 2


def wait_until(happened: Any) -> None:
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)
