"""Run a server and four clients from images that docker/build.sh has built, in containers of runc.

    python docker/try_images.py FOLDER
    python docker/try_images.py FOLDER --slim

FOLDER is build.sh's WORK. The clients train digits with torch. With --slim they learn
docker/numpy_task.py, in the image without torch. Each container has a read-only root, user 1000, no
capabilities, and the host's network. The server has TLS with keys made at its first start. One
client is killed in round 1 and started again with its state. Needs root.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from containers import FEDSZ, Container, events, folder, free_port, wait_for

from fedsz.transport.frames import unpack

CLIENTS = 4
TASK = Path(__file__).with_name("numpy_task.py")


def run(images: Path, client_image: str, rounds: int) -> None:
    """Run the fleet, and print what happens."""
    work = Path(tempfile.mkdtemp(prefix="fedsz-containers-"))
    keys, own, trust, runs = (folder(work, name) for name in ("keys", "own", "trust", "runs"))
    server_root = images / "server-amd64"
    first_start = ("python3", "/usr/lib/fedsz/first_start.py")
    script = (*first_start, "/keys", "/server", "/trust", "localhost")
    for _ in ("first", "second"):  # the second start finds all
        mounts = {"/keys": keys, "/server": own, "/trust": trust}
        status = Container(server_root, "keys", script, mounts, work / "keys.log").wait()
        print(f"keys: exit status {status}")
    print(f"clients have of it: {sorted(path.name for path in trust.iterdir())}")
    task = ("--task", f"{TASK.stem}:LeastSquares") if "slim" in client_image else ()
    tasks = folder(work, "tasks")
    for where in (tasks, runs):  # the folders that commands run in
        shutil.copy(TASK, where)
    port = free_port()
    metrics = 9090
    command = (
        *(*FEDSZ, "server", "--json", "--port", str(port), "--metrics-port", str(metrics)),
        *("--rounds", str(rounds), "--min-clients", str(CLIENTS), "--codec", "raw"),
        *("--tls-cert", "/keys/server.pem", "--tls-key", "/keys/server.key"),
        # A round waits for the client that is killed, however fast the others are.
        *("--reconnect-grace", "120", "--deadline-factor", "0", *task),
    )
    log = work / "server.log"
    server = Container(server_root, "server", command, {"/keys": own, "/runs": runs}, log)
    states = [folder(work, f"state{i}") for i in range(CLIENTS)]

    def client(i: int, *more: str) -> Container:
        asks = ("--partition", "auto", "--state-dir", "/state")
        link = ("--server", f"localhost:{port}", "--tls-ca", "/trust/ca.pem")
        mounts = {"/trust": trust, "/state": states[i], "/runs": tasks}
        command = (*FEDSZ, "client", *asks, *link, *task, *more)
        told = work / f"client{i}.log"
        return Container(images / client_image, f"client{i}", command, mounts, told)

    fleet = [client(i) for i in range(CLIENTS)]
    wait_for(log, "listening")
    print(f"server: listening {time.monotonic() - server.begun:.1f} s after its start")
    wait_for(log, "client", what="joined")
    print(f"server: first client served {time.monotonic() - server.begun:.1f} s after its start")
    wait_for(log, "round", round=0)
    before = unpack((states[0] / "hello").read_bytes())
    print(
        f"health: server {server.ask('python3', '/usr/lib/fedsz/health.py', 'server')}, client "
        f"{fleet[1].ask('python3', '/usr/lib/fedsz/health.py', 'client')} (0 is healthy)"
    )
    print(f"client0, {before.client_id}: killed in round 1, {before.node_config}")
    print(f"client0: exit status {fleet[0].send('KILL')}")
    fleet[0] = client(0)
    wait_for(log, "round", round=1)
    again = unpack((states[0] / "hello").read_bytes())
    print(f"client0, {again.client_id}: started again, {again.node_config}")
    statuses = [one.wait(600) for one in fleet]
    print(f"exit statuses: server {server.wait(600)}, clients {statuses}")
    for event in events(log):
        if event["event"] == "round":
            print("round {round}: {replies} replies, loss {loss:.4f}".format(**event))
    print(f"run folder: {sorted(path.name for path in next(runs.glob('runs/*')).iterdir())}")
    shutil.rmtree(work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slim", action="store_true")
    given = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run(given.folder, "client-slim-amd64" if given.slim else "client-amd64", given.rounds)
