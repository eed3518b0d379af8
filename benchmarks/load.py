"""A thousand clients at once: a real `fedsz server`, and every reply accounted for.

    python -m benchmarks.load [--clients 1000] [--rounds 3] [--processes 2] [--real 100]

The server is a process of its own. Clients are coroutines in a few processes, each with a
connection of its own, the wire code of `fedsz client` and its app; or with ``--real`` so many
`fedsz client` processes. All train the same small task on data of their own, over plaintext on
loopback. The server keeps every update. Afterwards the model must be what these updates make, to
the bit. Prints JSON: replies of how many, seconds of rounds, the server's peak memory (VmHWM), and
for real clients the memory of each (Pss). Linux only.

Each client takes a file descriptor on either side. If `ulimit -Hn` is too low for that, the server
says so and fewer can join.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import resource
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, memory
from benchmarks.replay import compare, rounds_of
from benchmarks.wire_client import WireClient, run_all
from fedsz.child_process import Child
from fedsz.control.record import RoundRecord
from fedsz.system import raise_descriptor_limit
from fedsz.training.apps import make_client_app
from fedsz.training.events import Failed, Listening, from_json

TASK = "tests.resume_task:Regression"
PATIENCE = 120.0  # seconds that processes get to end once the run is over


def join(server: str, clients: int, process: int, processes: int) -> None:
    """Run every ``processes``-th client, from the ``process``-th on, until the run is over."""
    logging.disable(logging.CRITICAL)
    raise_descriptor_limit()
    app = make_client_app()
    share = {"num-partitions": clients, "task": TASK}
    asyncio.run(
        run_all(
            [
                WireClient(server, f"client{i}", app, {"partition-id": i, **share})
                for i in range(process, clients, processes)
            ]
        )
    )


def start_clients(server: str, clients: int, processes: int) -> list[Any]:
    """Start the processes of clients that are coroutines."""
    context = multiprocessing.get_context("spawn")
    places = [(server, clients, i, processes) for i in range(processes)]
    started = [context.Process(target=join, args=place, daemon=True) for place in places]
    for process in started:
        process.start()
    return started


def start_real(stack: ExitStack, server: str, clients: int, log: Path) -> list[Child]:
    """Start clients that are processes."""
    place = ("client", "--insecure", "--server", server, "--task", TASK, "--json")
    return [
        stack.enter_context(
            Child("fedsz", *place, f"--partition={i}/{clients}", log=log, threads=1)
        )
        for i in range(clients)
    ]


def measure(clients: int, rounds: int, processes: int, *, real: bool) -> dict[str, Any]:
    """Return what a run has taken, once its model is that of its updates."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="load-")))
        run = folder / "run"
        options = [f"--rounds={rounds}", f"--min-clients={clients}", f"--min-replies={clients}"]
        options += ["--keep-updates", "--error-bound=1e-2", "--threshold=0", f"--run-dir={run}"]
        place = ("server", "--insecure", "--port=0", f"--task={TASK}", "--json")
        log = folder / "server.log"
        server = stack.enter_context(Child("fedsz", *place, *options, log=log))
        started: list[Any] = []
        peak, each, seconds = 0.0, [0.0], []
        for line in server.lines():
            event = from_json(line)
            if isinstance(event, Failed):
                raise SystemExit(event.error)
            if isinstance(event, Listening):
                address = f"127.0.0.1:{event.port}"
                if real:
                    started = start_real(stack, address, clients, folder / "clients.log")
                else:
                    started = start_clients(address, clients, processes)
            if isinstance(event, RoundRecord):
                peak = memory("VmHWM", server.pid)
            if isinstance(event, RoundRecord) and event.round:
                seconds.append(event.seconds)
                if real:
                    each = [memory("Pss", child.pid, "smaps_rollup") for child in started]
        if status := server.wait(PATIENCE):
            raise SystemExit(f"the server ended with {status}: {server.last_words()}")
        ended = [_status(process) for process in started]
        found = {
            "clients": clients,
            "real": real,
            "replies": sum(row.replies for row in rounds_of(run)),
            "expected": rounds * clients,
            "clients_that_failed": sum(status != 0 for status in ended),
            "replayed": compare(run),
            "round_seconds": round(statistics.median(seconds), 2),
            "longest_seconds": round(max(seconds), 2),
            "server_peak_MB": round(peak, 1),
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "machine": machine("grpcio", "flwr"),
        }
        if real:
            found["client_MB"] = round(statistics.median(each), 1)
        return found


def _status(process: Any) -> int | None:
    if isinstance(process, Child):
        return process.wait(PATIENCE)
    process.join(PATIENCE)
    return int(process.exitcode) if process.exitcode is not None else None


def main() -> None:
    """Measure and print; exit with 1 if a reply is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--real", type=int, metavar="CLIENTS", help="so many client processes")
    asked = parser.parse_args()
    found = measure(
        asked.real or asked.clients, asked.rounds, asked.processes, real=asked.real is not None
    )
    print(json.dumps(found))
    raise SystemExit(found["replies"] != found["expected"] or found["clients_that_failed"] > 0)


if __name__ == "__main__":
    main()
