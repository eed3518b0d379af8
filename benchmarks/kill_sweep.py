"""Kill a server, a client or both at one system call after the other, and resume the run each time.

    python benchmarks/kill_sweep.py [--victim server client] [--calls files network] [--every 1]
        [--run-options='--update difference>topk:k=10%']

A server and two clients, each a process, train for a few rounds over gRPC on loopback. strace
kills the victim by SIGKILL at the N-th call of each kind, such as write, in one of its threads, for
N = 1, 2, ... until the run is over before that. Whoever was killed is started again, the server by
--resume if it had come as far as config.toml. Each run must end with the model of a run without
kills, to the bit, with every round once in rounds.jsonl, and with 0 from all processes. A client
that is killed before it was asked may miss that round, and no other. Linux, with strace. Two
updates add up to the same sum in either order; three would not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CALLS = {
    "files": ("write", "fsync", "rename", "unlink", "mkdir", "ftruncate"),
    # By sendto and recvfrom the threads of asyncio wake each other up.
    "network": (
        *("socket", "bind", "listen", "connect", "accept4", "shutdown"),
        *("sendmsg", "recvmsg", "sendto", "recvfrom"),
    ),
}
ROUNDS = 3
CLIENTS = 2
VICTIMS = {"server": ("server",), "client": ("client0",), "both": ("server", "client0")}
PATIENCE = 300.0  # seconds that a run may take
TASK = "tests.resume_task:Regression"
OPTIONS = ("--task", TASK, "--insecure")


@dataclasses.dataclass(frozen=True)
class Kill:
    """Where a process is killed: at the ``at``-th of its calls, counted in each thread."""

    victim: str  # one of VICTIMS
    calls: str  # as strace takes them
    at: int

    @property
    def killed(self) -> tuple[str, ...]:
        """Return the names of the processes that are killed."""
        return VICTIMS[self.victim]

    def command(self) -> list[str]:
        """Return what stands before the victim's command."""
        inject = f"inject={self.calls}:signal=KILL:when={self.at}"
        return ["strace", "-f", "-o", os.devnull, "-e", f"trace={self.calls}", "-e", inject]


class Failure(Exception):
    """A run that a kill has changed."""


class Missed(Exception):
    """A run of which one round went on without the client that was killed."""


class Run:
    """One federation of processes in a folder of its own.

    Args:
        folder: of its own.
        kill: who is killed, and where; nobody if None.
        options: of `fedsz server`, beside those of every run.
    """

    def __init__(self, folder: Path, kill: Kill | None, options: Sequence[str]) -> None:
        self.folder, self.kill, self.kills, self._options = folder, kill, 0, options
        self._again: set[str] = set()  # who was killed, and started again
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = int(probe.getsockname()[1])
        names = ["server", *(f"client{i}" for i in range(CLIENTS))]
        victims = kill.killed if kill else ()
        self.processes = {name: self._start(name, killed=name in victims) for name in names}

    def _start(self, name: str, *, killed: bool = False) -> subprocess.Popen[bytes]:
        run = self.folder / "run"
        if name == "server":
            arguments = ["server", "--port", str(self._port), "--min-clients", str(CLIENTS)]
            awaited = self.kill and "client0" in self.kill.killed
            grace = str(PATIENCE) if awaited else "5"
            arguments += ["--rounds", str(ROUNDS), "--reconnect-grace", grace]
            # A client takes longer to start again than others take to train.
            arguments += ["--deadline-factor", "0", *self._options]
            resumed = (run / "config.toml").exists()
            arguments += ["--resume" if resumed else "--run-dir", str(run)]
        else:
            share = f"{name.removeprefix('client')}/{CLIENTS}"
            arguments = ["client", "--server", f"127.0.0.1:{self._port}", "--partition", share]
            arguments += ["--state-dir", str(self.folder / name), "--max-wait", str(PATIENCE)]
        command = [sys.executable, "-m", "fedsz", *arguments, *OPTIONS]
        prefix = self.kill.command() if killed and self.kill else []
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*prefix, *command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # what strace leaves behind has to end with it
            )

    def finish(self) -> None:
        """Wait for all processes, and start again those that were killed."""
        deadline = time.monotonic() + PATIENCE
        while True:
            codes = {name: process.poll() for name, process in self.processes.items()}
            over = codes["server"] == 0
            for name, code in codes.items():
                if code in (-9, 137) and name not in self._again:
                    self.kills += 1
                    self._again.add(name)
                    self.processes[name] = self._start(name)
                    codes[name] = None
                elif over and name in self._again:
                    codes[name] = 0  # killed after its last reply, it waits for a server in vain
                elif code not in (None, 0):
                    raise Failure(f"{name} ended with {code}: {self._last_words(name)}")
            if None not in codes.values():
                return
            if time.monotonic() > deadline:
                raise Failure(f"not over after {PATIENCE:g} s: {codes}")
            time.sleep(0.05)

    def end(self) -> None:
        """Leave no process behind."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def result(self) -> bytes:
        """Return the model, once rounds.jsonl holds every round once."""
        lines = (self.folder / "run" / "rounds.jsonl").read_text().splitlines()
        numbers = [json.loads(line)["round"] for line in lines]
        if numbers != list(range(ROUNDS + 1)):
            raise Failure(f"rounds.jsonl holds rounds {numbers}")
        missing = [line for line in lines[1:] if json.loads(line)["replies"] != CLIENTS]
        asked_all = any(json.loads(line)["failures"] for line in missing)
        if len(missing) == 1 and not asked_all and self.kill and "client0" in self.kill.killed:
            raise Missed("the round went on without the client")
        if missing:
            raise Failure(f"a round misses a reply: {missing[0]}")
        return (self.folder / "run" / "model.safetensors").read_bytes()

    def _last_words(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")[-300:]


def run(kill: Kill | None = None, options: Sequence[str] = ()) -> tuple[bytes, int]:
    """Run once; return the model's bytes, and how often a process was killed."""
    with tempfile.TemporaryDirectory(prefix="kill-sweep-") as folder:
        once = Run(Path(folder), kill, options)
        try:
            once.finish()
            return once.result(), once.kills
        finally:
            once.end()


def sweep(
    victim: str, call: str, every: int, first: int, options: Sequence[str] = ()
) -> tuple[int, list[str]]:
    """Kill at every ``every``-th call; return how many runs were killed, and what went wrong."""
    whole, _ = run(options=options)
    killed: int = 0
    wrong: list[str] = []
    at = first
    while True:
        try:
            model, kills = run(Kill(victim, call, at), options)
            if not kills:
                return killed, wrong
            if model != whole:
                raise Failure("another model")
            print(f"{victim}, {call} {at}: resumed, equal bits", flush=True)
        except Missed as err:
            print(f"{victim}, {call} {at}: {err}", flush=True)
        except Failure as err:
            wrong.append(f"{victim}, {call} {at}: {err}")
            print(wrong[-1], flush=True)
        killed += 1
        at += every


def main() -> None:
    """Sweep, and exit with 1 if any run differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--victim", nargs="+", choices=VICTIMS, default=["server", "client"])
    parser.add_argument(
        "--calls",
        nargs="+",
        default=list(CALLS),
        help="files, network, or calls as strace takes them",
    )
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--run-options", default="", help="of fedsz server, as a shell takes them")
    given = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("strace is not installed")
    failed = 0
    for victim in given.victim:
        for call in [call for kind in given.calls for call in CALLS.get(kind, (kind,))]:
            options = shlex.split(given.run_options)
            killed, wrong = sweep(victim, call, given.every, given.first, options)
            failed += len(wrong)
            print(f"{victim}, {call}: {killed} kills, {len(wrong)} runs differ", flush=True)
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
