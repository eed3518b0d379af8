"""Real processes of a fleet, for tests: servers with their events, and clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsz.formatting import WARNING
from tests.conftest import ROOT

LIMIT = 60.0  # seconds; what is awaited comes much sooner, or the test has failed
# Of numpy alone, for torch's import takes each process two seconds.
TASK = "tests.resume_task:Regression"
HELD = "tests.resume_task:HeldRegression"
WIDE = "tests.resume_task:WideRegression"


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

    def server(self, *more: Any, port: int = 0, task: str = TASK, **options: Any) -> Server:
        place = ("--insecure", "--port", port, "--json", "--task", task)
        return Server(self.start("server", *place, *more, **options))

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


class Server:
    """A server process and the events it told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with self._news:
            seen = self._news.wait_for(lambda: next(filter(wanted, self.events), None), LIMIT)
        assert seen, self.events
        return seen

    @property
    def port(self) -> int:
        return int(self.wait_for(lambda event: event["event"] == "listening")["port"])

    def rounds(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "round"]


def complaints(process: subprocess.Popen[str]) -> list[str]:
    """Return what an ended process said on stderr, but for warnings."""
    lines = process.communicate()[1].splitlines()
    return [line for line in lines if not line.startswith(WARNING)]
