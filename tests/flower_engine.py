"""Flower's own processes, for tests of whole apps: a SuperLink that simulates, and ``flwr run``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedsz import flower_environment
from tests.links import free_port

PROGRAMS = Path(sys.executable).parent
READY = 60.0  # seconds that a SuperLink may take to start, and
LONG = 240.0  # an app to run, on a machine that does much else
ROOT = Path(__file__).parents[1]

CONFIG = """[superlink]
default = "here"
[superlink.here]
address = "{address}"
insecure = true
"""


def environment(home: Path) -> dict[str, str]:
    """What Flower's programs find in this process's own environment, and what they store where."""
    return {
        **os.environ,
        **flower_environment.VARIABLES,
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
        "CONTRACT_RESULT": str(home / "result.json"),
        "CONTRACT_STATE_DIR": str(home / "state"),
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


class Program:
    """One of Flower's programs, with all that it starts; its output goes to a file.

    Args:
        home: of its files, and of its output.
        name: of the program.
        arguments: of the program.
    """

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        self._home, self._command = home, [str(PROGRAMS / name), "--insecure", *arguments]
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        with (self._home / f"{Path(self._command[0]).name}.log").open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                env=environment(self._home),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, *, alone: bool = False) -> None:
        """End it and what it has started, as a power cut does; or the program ``alone``."""
        end = os.kill if alone else os.killpg
        end(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def stop(self) -> None:
        """Ask it to end, and end what it has started and left behind."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with suppress(ProcessLookupError):
            self.kill()


@contextmanager
def superlink(home: Path, *options: str, simulation: bool = True) -> Iterator[str]:
    """A SuperLink that `flwr_run` finds by ``home``; yields its address."""
    with started(superlink_program(home, *options, simulation=simulation)) as program:
        yield program.address


class SuperLink(Program):
    """A SuperLink, and the address that its nodes have it by."""

    def __init__(self, home: Path, address: str, *arguments: str) -> None:
        self.address = address
        super().__init__(home, "flower-superlink", *arguments)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        super().start()
        _wait_for(f"http://{self.address}/health")


def superlink_program(home: Path, *options: str, simulation: bool = True) -> SuperLink:
    """Return a SuperLink that has started, and that `flwr_run` finds by ``home``."""
    address = f"127.0.0.1:{free_port()}"
    (home / "config.toml").write_text(CONFIG.format(address=address))
    arguments = ["--isolation", "subprocess", "--control-api-address", f"127.0.0.1:{free_port()}"]
    arguments += ["--host", "127.0.0.1", "--port", address.split(":")[1], *options]
    arguments += ["--simulation"] if simulation else []
    return SuperLink(home, address, *arguments)


@contextmanager
def started(*programs: Program) -> Iterator[Any]:
    """End programs after this, whether it fails or not; yields the first."""
    try:
        yield programs[0]
    finally:
        for program in programs:
            program.stop()


@contextmanager
def supernodes(home: Path, address: str, *, count: int) -> Iterator[list[Program]]:
    """As many SuperNodes of a SuperLink, each with its place as its node_config."""
    nodes: list[Program] = []
    try:
        for i in range(count):
            place = f"partition-id={i} num-partitions={count}"
            arguments = ["--superlink", address, "--port", str(free_port())]
            nodes.append(Program(home, "flower-supernode", *arguments, "--node-config", place))
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + READY
    while True:
        try:
            urllib.request.urlopen(address, timeout=1).close()  # noqa: S310 - our own SuperLink
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


class Running:
    """An app that runs, as its README says, and what it has printed so far.

    Args:
        app: its folder.
        home: of the SuperLink.
        nodes: that are simulated.
        config: its run config.
    """

    def __init__(self, app: Path, home: Path, *, nodes: int = 0, **config: object) -> None:
        words = [f"{key.replace('_', '-')}={_toml(value)}" for key, value in config.items()]
        command = [str(PROGRAMS / "flwr"), "run", str(app), "--stream", "--federation-config"]
        command += [f"num-supernodes={nodes}"]
        command += ["--run-config", " ".join(words)] if words else []
        self.output, self._came = "", threading.Condition()
        self._process = subprocess.Popen(
            command,
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._came:
                self.output += line
                self._came.notify_all()

    def until(self, text: str) -> None:
        """Wait until it has printed a text."""
        with self._came:
            assert self._came.wait_for(lambda: text in self.output, LONG), self.output[-3000:]

    def end(self) -> str:
        """Return all that it prints, once it has ended well."""
        try:
            code = self._process.wait(LONG)
        finally:
            self._process.kill()
        self._reader.join(LONG)
        assert code == 0, self.output[-3000:]
        return self.output


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def flwr_run(app: Path, home: Path, *, nodes: int = 0, **config: object) -> str:
    """Run an app as its README says, on ``nodes`` if simulated, and return what it prints."""
    return Running(app, home, nodes=nodes, **config).end()
