"""What watching a run costs: ``python benchmarks/watching_cost.py [--rounds 1000 --clients 1000]``.

Prints the CPU time that the live page and the metrics take for a round, and how long the page's
requests take. The run's folder is written first; it takes 200 bytes for each update.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedsz.monitoring.live_page import Dashboard, served
from fedsz.monitoring.metrics import Metrics
from fedsz.monitoring.run_summary import Follower
from tests.watched_runs import record, write_run

REQUESTS = 50


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the processor time that some work takes."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_run(Path(scratch), given.rounds, given.clients)
        page = cpu_seconds(Follower(folder).poll) / (given.rounds + 1)
        print(f"page: {1e3 * page:.2f} ms of CPU for a round of {given.clients} clients")
        metrics, one = Metrics(), record(1, given.clients)
        counted = cpu_seconds(lambda: [metrics.show(one) for _ in range(100)]) / 100
        print(f"metrics: {1e3 * counted:.2f} ms")
        ask(folder)


def ask(folder: Path) -> None:
    """Print how long the page's requests take, once its rounds have been read."""
    dashboard = Dashboard(folder)
    dashboard.run()
    with served(dashboard, "0") as url:
        link = http.client.HTTPConnection(url.split("/")[2])
        for path in ("/", "/api/run", "/api/clients"):
            took = []
            for _ in range(REQUESTS):
                begin = time.perf_counter()
                link.request("GET", path)
                nbytes = len(link.getresponse().read())
                took.append(1e3 * (time.perf_counter() - begin))
            middle, worst = statistics.median(took), max(took)
            print(f"{path}: {middle:.1f} ms, at most {worst:.1f} ms, {nbytes / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
