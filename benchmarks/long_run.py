"""What a server keeps of many rounds, and how long it decides: ``python -m benchmarks.long_run``.

Rounds of made-up replies go through a Grid's statistics into a table, the live page's summary and a
policy. Nothing is compressed or sent.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from flwr.app import ArrayRecord

from fedsz.cli.table import RunTable
from fedsz.control.controller import Controller
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.protocol import ReplyNote
from fedsz.core.settings import Settings
from fedsz.flower import LocalGrid, make_client_app
from fedsz.flower.round_statistics import CountedReply, RoundStatistics
from fedsz.flower.update import Update
from fedsz.monitoring.run_summary import RunSummary


def update() -> Update:
    """Return an update of 1 MB that took 50 kB."""
    return Update(ArrayRecord(), {}, None, {}, {}, 10**6, 50_000, os.urandom(32))


class Timed(Controller):
    """A controller that notes how long it decides, in seconds."""

    seconds: list[float]

    def decide(self, done: RoundRecord) -> Decision:
        """Decide, and note how long that took."""
        begun = time.perf_counter()
        decision = super().decide(done)
        self.seconds.append(time.perf_counter() - begun)
        return decision


def resident() -> float:
    """Return this process's resident memory, in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(policy: str, rounds: int, clients: int) -> tuple[float, list[float]]:
    """Return by how many MB a run grows after its first rounds, and its decisions' seconds."""
    controller = Timed(policy, Settings(), tolerance=0.5, rounds=rounds)
    controller.seconds = []
    table, summary = RunTable(), RunSummary()

    def show(record: RoundRecord) -> None:
        table.show(record)
        summary.add(record)

    nodes: list[Any] = [{} for _ in range(clients)]
    grid = LocalGrid(make_client_app(), nodes)
    statistics = RoundStatistics(grid, controller, logs=True, on_round=show)
    note = ReplyNote(
        encode_seconds=0.1, tensors=9, lossy=9, energy_fraction=0.9, residual_ratio=0.5, moved=1.0
    )
    before = 0.0
    for number in range(rounds + 1):
        for node in grid.get_node_ids() if number else ():
            statistics.received(CountedReply(node, note, True, 100.0, {"arrays": update()}))
            statistics.sent(10**6, 60_000)
        statistics.end({"accuracy": number / (number + 10), "loss": 10 / (number + 5)})
        statistics.decide()
        if number == 10:
            before = resident()
    return resident() - before, controller.seconds


def main() -> None:
    """Print a row for each policy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=100)
    given = parser.parse_args()
    logging.disable()
    print(f"{given.rounds} rounds of {given.clients} clients")
    print("| policy | MB that the run grows | ms a decision: mean | of the last hundred | most |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for policy in ("auto", "auto+gate"):
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            grown, seconds = measure(policy, given.rounds, given.clients)
        times = " | ".join(f"{1e3 * x:.2f}" for x in (fmean(seconds), fmean(seconds[-100:])))
        print(f"| {policy} | {grown:.1f} | {times} | {1e3 * max(seconds):.2f} |", flush=True)


if __name__ == "__main__":
    main()
