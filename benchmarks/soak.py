"""A fleet over hundreds of rounds with every fault at once: no update is lost or counted twice.

    python -m benchmarks.soak [--rounds 200] [--clients 20] [--seed 0]

A `fedsz server` and `fedsz client` processes with ``--state-dir`` talk over TLS, each client by its
own certificate, through a TCP proxy. Hostile ones (benchmarks/hostile_clients.py) are among them.
In about every second round a fault is drawn from the seed:

- SIGKILL of the server, which is then resumed, or of clients, which are started again;
- SIGSTOP of the server or of clients for some seconds;
- delays, dropped connections and an upload that is cut in its middle, by the proxy;
- a jump of the server's or some clients' clocks by up to a day, forward and back (wall_clock.c);
- a full disk under the run folder, which has room again later (a tmpfs of our own, as root).

At the end the run must hold every round once; each reply that the server has received and not
dropped must be counted or refused in its round; no update may count twice, a spoilt one only if it
was clipped; and the model must be what the updates make, to the bit. Prints JSON, in which
``not_tried`` says what this machine lacks. Linux only.
"""

from __future__ import annotations

import argparse
import collections
import heapq
import itertools
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.faulty_proxy import FaultyProxy
from benchmarks.measuring import machine
from benchmarks.replay import Difference, compare, rounds_of
from fedsz.child_process import Child
from fedsz.control.record import RoundRecord
from fedsz.training.events import Client, Event, Listening, from_json
from fedsz.training.run_folder import CHECKPOINT, ROUNDS, UPDATES
from fedsz.transport.authority import Authority
from fedsz.transport.node import node_id
from tests.links import free_port

TASK = "tests.resume_task:Regression"
HOSTILE = 4  # clients; the last of them sends good replies, each several times
REPEATER = f"hostile{HOSTILE - 1}"
DISK = "64m"
PATIENCE = 240.0  # seconds without a round, after which the run counts as hung
FAULTS = {  # and how often each is drawn
    "kill client": 20,
    "cut upload": 20,
    "drop connections": 12,
    "delay": 12,
    "stop client": 12,
    "stop server": 6,
    "jump clock": 8,
    "kill server": 6,
    "full disk": 4,
}
WALL_CLOCK = Path(__file__).with_name("wall_clock.c")
DAY = 86_400


class Soak:
    """A fleet, and what happens to it."""

    def __init__(self, stack: ExitStack, rounds: int, clients: int, seed: int) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        self.run = self.folder / "run"
        self.rounds, self._count, self._seed = rounds, clients, seed
        self.faults: collections.Counter[str] = collections.Counter()
        self.not_tried: dict[str, str] = {}
        self.received: dict[int, set[int]] = {}  # nodes whose replies came, by round
        self._stack = stack
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._news: queue.SimpleQueue[tuple[Child, Event | None]] = queue.SimpleQueue()
        self._clocks = {who: self.folder / f"clock-{who}" for who in ("server", "clients")}
        self._preload = self._make_clocks()
        self._make_disk()
        self._authority = Authority.create(self.folder / "keys")
        self._authority.certify_server(["127.0.0.1"], 30)
        ids = [f"client{i}" for i in range(clients)] + [f"hostile{i}" for i in range(HOSTILE)]
        self._certs = {name: self._authority.certify_client(name, 30) for name in ids}
        self._port = free_port()
        self._proxy = stack.enter_context(FaultyProxy(self._port))
        self._server = self._start_server()
        self.clients: dict[str, Child] = {}
        stack.callback(self._end_clients)
        self._start_hostile()
        self.clients = {f"client{i}": self._start_client(i) for i in range(clients)}

    def play(self) -> None:
        """Go through all rounds.

        Raises:
            Difference: a process has ended that nobody has harmed, or no round ends any more.
        """
        replied: set[int] = set()
        last = time.monotonic()
        while True:
            self._do_what_is_due()
            self._check_clients()
            try:
                server, event = self._news.get(timeout=0.1)
            except queue.Empty:
                if time.monotonic() - last > PATIENCE:
                    raise Difference(f"no round for {PATIENCE:g} s") from None
                continue
            match event:
                case Listening():
                    replied = set()
                case Client(client_id, "received", ""):
                    replied.add(node_id(client_id))
                case RoundRecord(round=number):
                    last = time.monotonic()
                    self.received[number], replied = replied, set()
                    if number and number < self.rounds - 1:
                        self._harm(number)
                case None if self._has_ended(server):
                    return

    def statuses(self) -> list[int | None]:
        """Return how the honest clients have ended.

        None is one that had no link when the run ended: it waits for the server to come back.
        """
        self._due = [(0.0, order, action) for _, order, action in self._due]
        self._do_what_is_due()
        end = time.monotonic() + 30
        return [child.wait(max(0.0, end - time.monotonic())) for child in self.clients.values()]

    def _start_server(self) -> Child:
        server = self.folder / "keys" / "server.pem"
        flags = ["--json", f"--port={self._port}", f"--task={TASK}", "--reconnect-grace=3"]
        flags += [f"--tls-cert={server}", f"--tls-key={server.with_suffix('.key')}"]
        flags += [
            f"--tls-ca={self._authority.ca}",
            f"--min-clients={3 * self._count // 4 + HOSTILE}",
        ]
        if (self.run / "config.toml").exists():
            flags += [f"--resume={self.run}"]
        else:
            flags += [f"--run-dir={self.run}", "--keep-updates", "--error-bound=1e-2"]
            flags += ["--threshold=0", f"--rounds={self.rounds}"]
            flags += [f"--min-replies={self._count // 2}", f"--seed={self._seed}"]
        child = self._child("server", *flags, clock="server")
        threading.Thread(target=self._read, args=(child,), daemon=True).start()
        return child

    def _start_client(self, index: int) -> Child:
        name = f"client{index}"
        cert = self._certs[name]
        flags = [f"--server=127.0.0.1:{self._proxy.port}", f"--task={TASK}", "--json"]
        flags += [f"--partition={index}/{self._count}", f"--state-dir={self.folder / name}"]
        flags += [f"--tls-cert={cert}", f"--tls-key={cert.with_suffix('.key')}"]
        flags += [f"--tls-ca={self._authority.ca}", f"--max-wait={PATIENCE:g}"]
        return self._child("client", *flags, clock="clients" if index % 3 == 0 else "")

    def _start_hostile(self) -> None:
        place = (f"127.0.0.1:{self._proxy.port}", str(self._authority.ca), str(self._seed))
        members = [f"{name}={self._certs[name]}" for name in self._certs if "hostile" in name]
        module, log = "benchmarks.hostile_clients", self.folder / "hostile.log"
        self._hostile = Child(module, *place, *members, log=log, threads=1)
        self._stack.callback(self._hostile.end, 0.0)

    def _child(self, command: str, *flags: str, clock: str) -> Child:
        environment = {}
        if clock and self._preload:
            environment = {"LD_PRELOAD": self._preload, "WALL_CLOCK": str(self._clocks[clock])}
        log = self.folder / f"{command}.log"
        return Child("fedsz", command, *flags, log=log, threads=1, environment=environment)

    def _read(self, child: Child) -> None:
        for line in child.lines():
            self._news.put((child, from_json(line)))
        self._news.put((child, None))

    def _make_clocks(self) -> str:
        """Return the library by which clocks jump; "" if it cannot be made."""
        for path in self._clocks.values():
            path.write_bytes(bytes(8))
        compiler, made = shutil.which("cc"), self.folder / "wall_clock.so"
        if compiler is None:
            self.not_tried["jump clock"] = "there is no C compiler"
            return ""
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(WALL_CLOCK)]
        subprocess.run(command, check=True)
        return str(made)

    def _make_disk(self) -> None:
        self.run.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "soak", str(self.run)]
        done = subprocess.run(mount, capture_output=True, check=False)
        if done.returncode:
            self.not_tried["full disk"] = "no tmpfs can be mounted"
        else:
            self._stack.callback(subprocess.run, ["umount", "-l", str(self.run)], check=False)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), action))

    def _do_what_is_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def _has_ended(self, server: Child) -> bool:
        """Say whether the run is over with this server's end; else start another."""
        status = server.wait(PATIENCE)
        full = self._filler.exists()
        if status == 0 or (status == -signal.SIGKILL and self._is_over()):
            return True
        if status != -signal.SIGKILL and not (full and status == 2):
            log = (self.folder / "server.log").read_text("utf-8", "replace")
            raise Difference(f"the server ended with {status}: {log[-2000:]}")
        self._filler.unlink(missing_ok=True)
        self._server = self._start_server()
        return False

    def _is_over(self) -> bool:
        """Say whether the last round is on disk, so that there is nothing to resume."""
        if (self.run / CHECKPOINT).exists() or not (self.run / ROUNDS).exists():
            return False
        rounds = rounds_of(self.run)
        return bool(rounds) and rounds[-1].round == self.rounds

    def _check_clients(self) -> None:
        if not self._hostile.is_running and self._hostile.wait():
            raise Difference(f"the hostile clients gave up: {self._hostile.last_words()}")
        for name, child in self.clients.items():
            status = None if child.is_running else child.wait()
            if status == -signal.SIGKILL:
                child.end(0.0)
                self.clients[name] = self._start_client(int(name.removeprefix("client")))
            elif status:
                log = (self.folder / "client.log").read_text("utf-8", "replace")
                raise Difference(f"{name} ended with {status}: {log[-2000:]}")

    @property
    def _filler(self) -> Path:
        return self.run / "filler"

    def _harm(self, number: int) -> None:
        """Do what the seed has for a round."""
        rng = random.Random(f"{self._seed} {number}")
        kinds = [kind for kind in FAULTS if kind not in self.not_tried]
        (kind,) = rng.choices(kinds, [FAULTS[kind] for kind in kinds])
        if rng.random() < 0.5:
            return
        self.faults[kind] += 1
        name = rng.choice(sorted(self.clients))
        soon, a_while = rng.uniform(0, 1), rng.uniform(0.5, 4)
        match kind:
            case "kill client":
                self._later(soon, lambda: self.clients[name].kill())
            case "kill server":
                self._later(soon, lambda: self._server.kill())
            case "stop client":
                self._pause(self.clients[name], soon, 2 * a_while)
            case "stop server":
                self._pause(self._server, soon, a_while)
            case "cut upload":
                self._proxy.cut(rng.randrange(60_000))
            case "drop connections":
                share = rng.uniform(0.05, 0.5)
                self._later(soon, lambda: self._proxy.drop(share))
            case "delay":
                self._proxy.delay(rng.uniform(0.05, 0.3))
                self._later(a_while, lambda: self._proxy.delay(0.0))
            case "jump clock":
                path = self._clocks[rng.choice(sorted(self._clocks))]
                with path.open("r+b") as file:  # it is mapped, and must not become shorter
                    file.write(rng.choice((0, 60, 3600, DAY)).to_bytes(8, sys.byteorder))
            case "full disk":
                self._fill()
                self._later(2 * a_while, lambda: self._filler.unlink(missing_ok=True))

    def _pause(self, child: Child, soon: float, seconds: float) -> None:
        self._later(soon, lambda: _signal(child, signal.SIGSTOP))
        self._later(soon + seconds, lambda: _signal(child, signal.SIGCONT))

    def _fill(self) -> None:
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))

    def _end_clients(self) -> None:
        for child in (*self.clients.values(), self._server):
            child.kill()
            child.end(0.0)


def _signal(child: Child, which: signal.Signals) -> None:
    if child.is_running:
        os.kill(child.pid, which)


def account(run: Path, rounds: int, received: Mapping[int, set[int]]) -> dict[str, Any]:
    """Return the numbers of a run that is over.

    Args:
        run: its folder.
        rounds: how many it was to have.
        received: the node ids of those whose replies have come, by round.

    Raises:
        Difference: a round is missing, a client counts twice in one, or one that spoils does.
    """
    rows = rounds_of(run)
    if [row.round for row in rows] != list(range(rounds + 1)):
        raise Difference(f"the run holds rounds {[row.round for row in rows]}")
    spoilers = {str(node_id(f"hostile{i}")) for i in range(HOSTILE)} - {str(node_id(REPEATER))}
    digests: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    lost = 0
    for row in rows:
        nodes = [client.node for client in row.clients]
        whole = {client.node for client in row.clients if client.scale == 1}
        if len(set(nodes)) < len(nodes) or spoilers & whole:
            raise Difference(f"round {row.round} counts {nodes}")
        if not row.uncounted:
            digests.update(client.digest for client in row.clients)
        refused.update(failure.kind for failure in row.failures)
        known = {int(node) for node in nodes} | {node_id(f.client) for f in row.failures}
        lost += len(received.get(row.round, set()) - known)
    return {
        "rounds": rounds,
        "uncounted_rounds": sum(bool(row.uncounted) for row in rows),
        "updates": digests.total(),
        "lost": lost,
        "clipped": sum(client.scale < 1 for row in rows for client in row.clients),
        "counted_twice": digests.total() - len(digests),
        "replayed": compare(run),
        "kept_but_not_counted": sum(path.name not in digests for path in (run / UPDATES).iterdir()),
        "without_a_reply": dict(refused),
        "refused_replies": refused.total() - refused["failed"],
    }


def main() -> None:
    """Soak, and print the numbers; exit with 1 if any update is not accounted for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    start = time.monotonic()
    with ExitStack() as stack:
        soak = Soak(stack, asked.rounds, asked.clients, asked.seed)
        try:
            soak.play()
            statuses = soak.statuses()
            found = account(soak.run, soak.rounds, soak.received)
        except Difference as err:
            kept = Path(tempfile.gettempdir(), f"soak-failed-{os.getpid()}")
            shutil.copytree(soak.folder, kept)
            raise SystemExit(f"soak: {err}; its files are in {kept}") from err
    found |= {
        "clients": asked.clients,
        "clients_that_heard_the_end": statuses.count(0),
        "seed": asked.seed,
        "faults": dict(soak.faults),
        "not_tried": soak.not_tried,
        "seconds": round(time.monotonic() - start),
        "machine": machine("grpcio", "flwr"),
    }
    print(json.dumps(found))
    raise SystemExit(bool(found["lost"] or found["counted_twice"]))


if __name__ == "__main__":
    main()
