"""Fleets for tests, in this process or of real ones: servers with their events, and clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsz.control.record import RoundRecord
from fedsz.flower import LocalGrid, make_client_app
from fedsz.formatting import WARNING
from fedsz.training.federation import controller_of, federate, prepare
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import RunFolder
from tests.conftest import ROOT
from tests.links import Heard

LIMIT = 60.0  # seconds; what is awaited comes much sooner, or the test has failed
# Of numpy alone, for torch's import takes each process two seconds.
TASK = "tests.resume_task:Regression"
HELD = "tests.resume_task:HeldRegression"
PLACE = ("--insecure", "--task", TASK)


def shares(count: int, **more: Any) -> list[dict[str, Any]]:
    """Return the node_config of clients that hold all of the data."""
    return [{"partition-id": i, "num-partitions": count, **more} for i in range(count)]


def federated(config: RunConfig, nodes: list[dict[str, Any]]) -> list[RoundRecord]:
    """Train in this process and return the rounds; a ``run_dir`` is left as a server leaves it."""
    rounds: list[RoundRecord] = []
    folder = RunFolder.create(config) if config.run_dir else None
    grid = LocalGrid(make_client_app(), nodes)
    federate(grid, config, prepare(config), rounds.append, folder=folder)
    if folder:
        folder.finish()
    return rounds


def decided_again(config: RunConfig, rows: list[RoundRecord]) -> None:
    """A server that is resumed after any round decides the next one as its record has it."""
    assert rows[0].decision is None
    for number, row in enumerate(rows[1:], 1):
        assert controller_of(config, rows[:number]).decision == row.decision


def rounds_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


class Fleet:
    """Processes that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: Any, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        return self.run("-m", "fedsz", *arguments, prefix=prefix)

    def run(self, *arguments: Any, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start Python with arguments."""
        process = subprocess.Popen(
            [*prefix, sys.executable, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        self.started.append(process)
        return process

    def client(
        self, port: int, index: int, count: int, *more: Any, task: str = TASK
    ) -> subprocess.Popen[str]:
        place = ("--server", f"127.0.0.1:{port}", "--partition", f"{index}/{count}")
        return self.start("client", "--insecure", *place, "--task", task, *more)

    def clients(self, port: int, count: int, task: str = TASK) -> list[subprocess.Popen[str]]:
        """Start a client for each share, which keeps its state in a folder."""
        states = (("--state-dir", f"client{i}") for i in range(count))
        return [self.client(port, i, count, *s, task=task) for i, s in enumerate(states)]

    def server(self, *more: Any, port: int = 0, task: str = TASK, **options: Any) -> Server:
        place = ("--insecure", "--port", port, "--json", "--task", task)
        return Server(self.start("server", *place, *more, **options))

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


class Server(Heard[dict[str, Any]]):
    """A server process and the events it told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__()
        self.process, self.events = process, self.seen
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.hear(json.loads(line))

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: dict[str, Any] = self.until(lambda: next(filter(wanted, self.events), None))
        return found

    def wait_for_round(self, number: int) -> dict[str, Any]:
        return self.wait_for(lambda event: event["event"] == "round" and event["round"] == number)

    @property
    def port(self) -> int:
        return int(self.wait_for(lambda event: event["event"] == "listening")["port"])

    def rounds(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "round"]


def complaints(process: subprocess.Popen[str]) -> list[str]:
    """Return what an ended process said on stderr, but for warnings."""
    lines = process.communicate()[1].splitlines()
    return [line for line in lines if not line.startswith(WARNING)]
