"""Containers of runc from root file systems that docker/build.sh has left, for try_images.py."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

USER = 1000
FEDSZ = ("python3", "-m", "fedsz")
# As the Dockerfile sets them; an exported root file system does not carry them.
ENVIRONMENT = {
    "PATH": "/usr/bin",
    "PYTHONPATH": "/opt/fedsz",
    "PYTHONUNBUFFERED": "1",
    "HOME": "/tmp",  # noqa: S108 - the container's own
    "OMP_NUM_THREADS": "1",
}
RUNC = "/usr/sbin/runc"
NAMESPACES = ("pid", "ipc", "uts", "mount")


class Container:
    """A process in a root file system that it cannot write to."""

    def __init__(
        self, root: Path, name: str, command: tuple[str, ...], mounts: dict[str, Path], log: Path
    ) -> None:
        self.name = name
        self.bundle = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        config = {
            "ociVersion": "1.0.2",
            "root": {"path": str(root.resolve()), "readonly": True},
            "process": {
                "user": {"uid": USER, "gid": USER},
                "args": [*command],
                "env": [f"{key}={value}" for key, value in ENVIRONMENT.items()],
                "cwd": "/runs",
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},  # noqa: S108
                *(
                    {"destination": at, "type": "bind", "source": str(of), "options": ["bind"]}
                    for at, of in mounts.items()
                ),
            ],
            "linux": {"namespaces": [{"type": each} for each in NAMESPACES]},
        }
        (self.bundle / "config.json").write_text(json.dumps(config))
        self.log = log
        self._sink: TextIO = log.open("a")
        self.begun = time.monotonic()
        run = [RUNC, "run", "--bundle", str(self.bundle), name]
        self.process = subprocess.Popen(run, stdout=self._sink, stderr=subprocess.STDOUT)

    def ask(self, *command: str) -> int:
        """Return the exit status of another process in the container."""
        return subprocess.run([RUNC, "exec", self.name, *command], check=False).returncode

    def send(self, signal: str) -> int:
        """Send the first process a signal; return the container's exit status."""
        subprocess.run([RUNC, "kill", self.name, signal], check=True)
        return self.wait()

    def wait(self, seconds: float | None = None) -> int:
        """Return the exit status of the container."""
        status = self.process.wait(seconds)
        self._sink.close()
        shutil.rmtree(self.bundle)
        return status


def folder(parent: Path, name: str) -> Path:
    """Make a folder that containers may write to, as a volume is."""
    made = parent / name
    made.mkdir()
    os.chown(made, USER, USER)
    return made


def events(log: Path) -> list[dict[str, Any]]:
    """Return what the server has told so far."""
    lines = log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def wait_for(log: Path, kind: str, seconds: float = 300.0, **fields: Any) -> dict[str, Any]:
    """Return the first event of a kind with these fields."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for event in events(log):
            if event["event"] == kind and fields.items() <= event.items():
                return event
        time.sleep(0.02)
    raise TimeoutError(f"no {kind} {fields} in {log}:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
