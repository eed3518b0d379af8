"""Flower's own processes, for tests of whole apps: a SuperLink that simulates, and ``flwr run``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


@contextmanager
def running(home: Path, name: str, *arguments: str) -> Iterator[None]:
    """One of Flower's programs, whose output goes to a file in ``home``, for as long as this."""
    command = [str(PROGRAMS / name), "--insecure", *arguments]
    with (home / f"{name}.log").open("a") as log:
        process = subprocess.Popen(command, env=environment(home), stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def superlink(home: Path, *, simulation: bool = True) -> Iterator[str]:
    """A SuperLink that `flwr_run` finds by ``home``; yields its address."""
    address = f"127.0.0.1:{free_port()}"
    (home / "config.toml").write_text(CONFIG.format(address=address))
    arguments = ["--isolation", "subprocess", "--control-api-address", f"127.0.0.1:{free_port()}"]
    arguments += ["--host", "127.0.0.1", "--port", address.split(":")[1]]
    arguments += ["--simulation"] if simulation else []
    with running(home, "flower-superlink", *arguments):
        _wait_for(f"http://{address}/health")
        yield address


@contextmanager
def supernodes(home: Path, address: str, *, count: int) -> Iterator[None]:
    """As many SuperNodes of a SuperLink, each with its place as its node_config."""
    with ExitStack() as stack:
        for i in range(count):
            place = f"partition-id={i} num-partitions={count}"
            arguments = ["--superlink", address, "--port", str(free_port())]
            stack.enter_context(
                running(home, "flower-supernode", *arguments, "--node-config", place)
            )
        yield


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


def flwr_run(app: Path, home: Path, *, nodes: int = 0, **config: object) -> str:
    """Run an app as its README says, on ``nodes`` if simulated, and return what it prints."""
    run_config = " ".join(f"{key.replace('_', '-')}={value!r}" for key, value in config.items())
    command = [
        "flwr",
        "run",
        str(app),
        "--stream",
        "--federation-config",
        f"num-supernodes={nodes}",
    ]
    if run_config:
        command += ["--run-config", run_config]
    done = subprocess.run(
        command, env=environment(home), capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
