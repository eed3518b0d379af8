"""How soon a server serves: ``python benchmarks/server_start.py [--python PATH ...] [--repeat 5]``.

A server and a client start at once, each on a core of its own. Prints the medians of three times
from the server's start: processor time until it listens, and wall-clock time until it listens and
until the client has joined. With several interpreters, such as those of two releases, runs
alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")  # a second


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS  # utime and stime, of proc(5)


def free_port() -> str:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


def start(python: str, core: int, folder: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a command of fedsz on a core."""
    return subprocess.Popen(
        [python, "-m", "fedsz", *arguments, "--insecure"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )


def measure(python: str) -> tuple[float, float, float]:
    """Return the three times of one start."""
    port, cores = free_port(), sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        server = start(python, cores[0], folder, "server", "--json", "--port", port)
        joins = ("client", "--server", f"127.0.0.1:{port}", "--partition", "0/2")
        client = start(python, cores[-1], folder, *joins)
        assert server.stdout is not None
        busy = listening = joined = 0.0
        for line in server.stdout:
            event = json.loads(line)
            if event["event"] == "listening":
                busy, listening = cpu_seconds(server.pid), time.monotonic() - begin
            elif event["event"] == "client" and event["what"] == "joined":
                joined = time.monotonic() - begin
                break
        for process in (client, server):
            process.kill()
            process.communicate()
    assert joined, f"{python}: no client has joined"
    return busy, listening, joined


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    runs = [(python, measure(python)) for _ in range(given.repeat) for python in given.python]
    for python in given.python:
        times = zip(*(told for ran, told in runs if ran == python), strict=True)
        busy, listening, joined = map(statistics.median, times)
        print(f"{python}: {busy:.2f} s of CPU, listening {listening:.2f} s, joined {joined:.2f} s")


if __name__ == "__main__":
    main()
