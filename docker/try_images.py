"""Run a server and four clients from images that docker/build.sh has built, in containers of runc.

    python docker/try_images.py FOLDER [--clients client-slim-amd64 ...]

FOLDER is build.sh's WORK. Each container has a read-only root, user 1000, no capabilities, and the
host's network. The server has TLS with keys made at its first start. One client is killed in
mid-upload and started again with its state. Needs root.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from containers import FEDSZ, Container, events, folder, free_port, wait_for


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
