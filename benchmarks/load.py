"""A thousand clients at once: a real `fedsz server`, and every reply accounted for.

    python -m benchmarks.load [--clients 1000] [--rounds 3] [--processes 2] [--real 100]
        [--task images --data='--dataset cifar10 --data-dir DIR' --options='--samples 5000']

The server is a process of its own. Clients are coroutines in a few processes, each with a
connection of its own, the wire code of `fedsz client` and its app; or with ``--real`` so many
`fedsz client` processes. All train the same small task on data of their own, or that of ``--task``
with options of `fedsz server`, over plaintext on loopback. The server keeps every update.
Afterwards the model must be what these updates make, to the bit. Prints JSON: replies of how many,
seconds of rounds, the server's peak memory (VmHWM), and for real clients the median memory of each
after each round, in MB: Pss, the peak, and how much were pages of libraries, which the kernel may
drop (RssFile). Linux only.

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
import shlex
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
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


def start_real(
    stack: ExitStack, server: str, clients: int, log: Path, task: str, data: Sequence[str]
) -> list[Child]:
    """Start clients that are processes."""
    place = ("client", "--insecure", "--server", server, "--task", task, "--json", *data)
    return [
        stack.enter_context(
            Child("fedsz", *place, f"--partition={i}/{clients}", log=log, threads=1)
        )
        for i in range(clients)
    ]


def memory_of(clients: Sequence[Child]) -> dict[str, float]:
    """Return the medians over clients that run, in MB; none if there are no such clients."""
    found: dict[str, list[float]] = {}
    for client in clients:
        with suppress(StopIteration, OSError):  # it has ended
            for key, of in (("Pss", "smaps_rollup"), ("VmHWM", "status"), ("RssFile", "status")):
                found.setdefault(key, []).append(memory(key, client.pid, of))
    return {key: round(statistics.median(values), 1) for key, values in found.items()}


def measure(
    clients: int,
    rounds: int,
    processes: int = 2,
    *,
    real: bool,
    task: str = TASK,
    data: Sequence[str] = (),  # options of both ends
    more: Sequence[str] = ("--threshold=0",),  # options of the server
) -> dict[str, Any]:
    """Return what a run has taken, once its model is that of its updates."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="load-")))
        run = folder / "run"
        options = [f"--rounds={rounds}", f"--min-clients={clients}", f"--min-replies={clients}"]
        options += ["--keep-updates", "--error-bound=1e-2", f"--run-dir={run}", *more]
        place = ("server", "--insecure", "--port=0", f"--task={task}", "--json", *data)
        log = folder / "server.log"
        server = stack.enter_context(Child("fedsz", *place, *options, log=log))
        started: list[Any] = []
        peak, each, seconds = 0.0, [], []
        for line in server.lines():
            event = from_json(line)
            if isinstance(event, Failed):
                raise SystemExit(event.error)
            if isinstance(event, Listening):
                address = f"127.0.0.1:{event.port}"
                if real:
                    log = folder / "clients.log"
                    started = start_real(stack, address, clients, log, task, data)
                else:
                    started = start_clients(address, clients, processes)
            if isinstance(event, RoundRecord):
                peak = memory("VmHWM", server.pid)
                seconds.append(event.seconds)
                each.append(memory_of(started if real else ()))
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
            "round_seconds": round(statistics.median(seconds[1:]), 2),
            "longest_seconds": round(max(seconds[1:]), 2),
            "server_peak_MB": round(peak, 1),
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "machine": machine("grpcio", "flwr"),
        }
        if real:
            found["client_MB"] = [of for of in each if of]
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
    parser.add_argument("--task", default=TASK, help="of real clients")
    parser.add_argument("--data", default="", help="options of both ends")
    parser.add_argument("--options", default="--threshold=0", help="of the server")
    asked = parser.parse_args()
    found = measure(
        asked.real or asked.clients, asked.rounds, asked.processes, real=asked.real is not None,
        task=asked.task, data=shlex.split(asked.data), more=shlex.split(asked.options),
    )  # fmt: skip
    print(json.dumps(found))
    raise SystemExit(found["replies"] != found["expected"] or found["clients_that_failed"] > 0)


if __name__ == "__main__":
    main()
