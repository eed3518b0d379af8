"""What a server keeps of many rounds, and how long it decides: ``python -m benchmarks.long_run``.

Rounds of made-up replies go through a Grid's book into a table, the live page's summary and a
policy. Nothing is compressed or sent.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from fedsz.cli.table import RunTable
from fedsz.control.policy import Controller
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.reply_report import ReplyReport
from fedsz.core.settings import Settings
from fedsz.flower import LocalGrid, make_client_app
from fedsz.flower.admission import Admitted
from fedsz.flower.round_book import RoundBook
from fedsz.monitoring.run_summary import RunSummary


class Update:
    """An update that counted."""

    def __init__(self) -> None:
        self.refused, self.raw_bytes, self.sent_bytes, self.seconds = None, 10**6, 50_000, 0.01
        self.digest, self.scale, self.staleness = os.urandom(32), 1.0, 0


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
    book = RoundBook(grid, controller, tells=True, on_round=show)
    report = ReplyReport(encode_seconds=0.1, tensors=9, lossy=9, kept=0.9, lag=0.5, moved=1.0)
    before = 0.0
    for number in range(rounds + 1):
        for node in grid.get_node_ids() if number else ():
            updates: Any = {"arrays": Update()}
            book.received(Admitted(node, updates, report, weight=100.0))
            book.sent(10**6, 60_000)
        book.end({"accuracy": number / (number + 10), "loss": 10 / (number + 5)})
        if number == 10:
            before = resident()
    return resident() - before, controller.seconds


def main() -> None:
    """Print a row for each policy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=100)
    given = parser.parse_args()
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
