"""Disks of real processes that fill up in the middle of a run, and are emptied again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from fedsz.transport.state_folder import STATE
from tests.fleets import LIMIT, PLACE, TASK, WIDE, Fleet, Server, complaints, rounds_in
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


def serve(fleet: Fleet, *arguments: Any, **options: Any) -> Server:
    return Server(fleet.start("server", "--insecure", "--json", *arguments, **options))


def run(task: str = TASK) -> tuple[Any, ...]:
    """Return the options of a run in which nobody is given up for being slow."""
    length = ("--rounds", ROUNDS, "--min-clients", 2, "--deadline-factor", 0)
    return "--task", task, *length


@pytest.fixture
def whole(fleet: Fleet) -> bytes:
    """The model of a run that had room."""
    server = serve(fleet, *run(), "--port", 0, "--run-dir", "whole")
    fleet.clients(server.port, 2)
    assert server.process.wait(LIMIT) == 0
    return (fleet.folder / "whole" / "model.safetensors").read_bytes()


def test_a_run_folder_that_fills_up_ends_the_server_and_the_run_goes_on_when_it_is_emptied(
    fleet: Fleet, disk: Disk, whole: bytes
) -> None:
    folder, port = disk.folder / "run", ("--port", free_port())
    server = serve(fleet, *run(), *port, "--run-dir", folder)
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
    server = serve(fleet, *PLACE, *port, "--resume", folder)

    assert server.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0]
    assert [line["round"] for line in rounds_in(folder)] == list(range(ROUNDS + 1))
    assert (folder / "model.safetensors").read_bytes() == whole


def test_a_client_whose_state_has_no_room_goes_on(fleet: Fleet, disk: Disk, whole: bytes) -> None:
    server = serve(fleet, *run(), "--port", 0, "--run-dir", "out")
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

    assert server.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0]
    assert (fleet.folder / "out" / "model.safetensors").read_bytes() == whole


def test_replies_that_have_no_room_end_the_run_which_goes_on_when_there_is_some(
    fleet: Fleet, disk: Disk
) -> None:
    """The server keeps replies in TMPDIR."""
    port, place = ("--port", free_port()), ("env", f"TMPDIR={disk.folder}")
    plain = ("--update", "weights", "--codec", "raw", "--error-bound", "1e-9", "--lossless", "raw")
    server = serve(fleet, *run(WIDE), *plain, *port, "--run-dir", "out", prefix=place)
    clients = [fleet.client(server.port, i, 2, task=WIDE) for i in range(2)]
    server.wait_for_round(2)
    disk.fill()

    assert server.process.wait(LIMIT) == 2
    assert complaints(server.process)[-1].startswith("fedsz: ")
    failed = [line for line in rounds_in(fleet.folder / "out") if line["replies"] < 2][1:]
    reasons = [failure["reason"] for line in failed for failure in line["failures"]]
    assert reasons
    assert all("could not be stored: No space left on device" in reason for reason in reasons)
    disk.empty()
    server = serve(fleet, "--task", WIDE, *port, "--resume", "out", prefix=place)

    assert server.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0]
    lines = rounds_in(fleet.folder / "out")
    assert [line["round"] for line in lines] == list(range(ROUNDS + 1))
    assert lines[-1]["replies"] == 2


def wait_until(happened: Any) -> None:
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)
