"""Run a server and four clients from images that docker/build.sh has built, in containers of crun.

    python docker/try_images.py FOLDER [--clients client-slim-amd64 ...]

FOLDER is build.sh's WORK. Each container has a read-only root, user 1000, no capabilities, and the
host's network. The server has TLS with keys made at its first start. One client is killed in
mid-upload and started again with its state. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
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
CRUN = "/usr/bin/crun"
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
        run = [CRUN, "--cgroup-manager=disabled", "run", "--bundle", str(self.bundle), name]
        self.process = subprocess.Popen(run, stdout=self._sink, stderr=subprocess.STDOUT)

    def ask(self, *command: str) -> int:
        """Return the exit status of another process in the container."""
        return subprocess.run([CRUN, "exec", self.name, *command], check=False).returncode

    def send(self, signal: str) -> int:
        """Send the first process a signal; return the container's exit status."""
        subprocess.run([CRUN, "kill", self.name, signal], check=True)
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


def wait_for(log: Path, what: str, seconds: float = 300.0, **fields: Any) -> dict[str, Any]:
    """Return the first event of a kind with these fields."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for event in events(log):
            if event["event"] == what and fields.items() <= event.items():
                return event
        time.sleep(0.02)
    raise TimeoutError(f"no {what} {fields} in {log}:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def run(images: Path, clients: list[str], rounds: int) -> None:
    """Run the fleet, and print what happens."""
    work = Path(tempfile.mkdtemp(prefix="fedsz-containers-"))
    keys, trust, runs = (folder(work, name) for name in ("keys", "trust", "runs"))
    server_root = images / "server-amd64"
    script = ("python3", "/usr/lib/fedsz/first_start.py", "/keys", "/trust", "localhost")
    for _ in ("first", "second"):  # the second start finds all
        mounts = {"/keys": keys, "/trust": trust}
        status = Container(server_root, "keys", script, mounts, work / "keys.log").wait()
        print(f"keys: exit status {status}")
    print(f"clients have of it: {sorted(path.name for path in trust.iterdir())}")
    port = free_port()
    metrics = 9090
    command = (
        *(*FEDSZ, "server", "--json", "--port", str(port), "--metrics-port", str(metrics)),
        *("--rounds", str(rounds), "--min-clients", str(len(clients)), "--codec", "raw"),
        *("--tls-cert", "/keys/server.pem", "--tls-key", "/keys/server.key"),
        *("--reconnect-grace", "120"),
    )
    log = work / "server.log"
    server = Container(server_root, "server", command, {"/keys": keys, "/runs": runs}, log)
    states = [folder(work, f"state{i}") for i in range(len(clients))]

    def client(i: int, *more: str) -> Container:
        asks = ("--partition", "auto", "--state-dir", "/state")
        link = ("--server", f"localhost:{port}", "--tls-ca", "/trust/ca.pem")
        mounts = {"/trust": trust, "/state": states[i]}
        root, told = images / clients[i], work / f"client{i}.log"
        return Container(root, f"client{i}", (*FEDSZ, "client", *asks, *link, *more), mounts, told)

    slow = ("--limit-rate", "1mbps")
    fleet = [client(i, *(slow if i == 0 else ())) for i in range(len(clients))]
    wait_for(log, "listening")
    print(f"server: listening {time.monotonic() - server.begun:.1f} s after its start")
    wait_for(log, "client", what="joined")
    print(f"server: first client served {time.monotonic() - server.begun:.1f} s after its start")
    wait_for(log, "round", round=0)
    slow_id = (states[0] / "client-id").read_text()
    half = wait_for(log, "receiving", client_id=slow_id)
    print(
        f"health: server {server.ask('python3', '/usr/lib/fedsz/health.py', 'server')}, client "
        f"{fleet[1].ask('python3', '/usr/lib/fedsz/health.py', 'client')} (0 is healthy)"
    )
    share = (states[0] / "share").read_text()
    print(f"client0: killed in mid-upload, {half['passed']} of {half['size']} bytes, share {share}")
    print(f"client0: exit status {fleet[0].send('KILL')}")
    fleet[0] = client(0)
    wait_for(log, "round", round=1)
    print(f"client0: started again, share {(states[0] / 'share').read_text()}")
    statuses = [one.wait(600) for one in fleet]
    print(f"exit statuses: server {server.wait(600)}, clients {statuses}")
    for event in events(log):
        if event["event"] == "round":
            has = (event["round"], event["replies"], event["accuracy"])
            print("round {}: {} replies, accuracy {:.4f}".format(*has))
    print(f"run folder: {sorted(path.name for path in next(runs.glob('runs/*')).iterdir())}")
    shutil.rmtree(work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", nargs="+", default=["client-amd64"] * 4)
    given = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run(given.folder, given.clients, given.rounds)
