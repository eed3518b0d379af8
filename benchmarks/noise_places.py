"""Differential privacy with the noise at each place: what it costs at the same epsilon.

    python -m benchmarks.noise_places docs/results/dp-places.parquet
    python -m benchmarks.noise_places docs/results/dp-places.parquet --table

The first makes the runs that the file lacks; the second prints the table of docs/privacy.md from
them. It is `fedsz run` with all clients in one process, as a sweep has them. Runs of one seed share
the model and the data; the noise is of the system's generator.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pyarrow.parquet as pq
import torch

from benchmarks.measuring import add_missing
from fedsz.control.record import RoundRecord
from fedsz.flower import LocalGrid, make_client_app
from fedsz.report.runs import Spread
from fedsz.training.federation import federate, prepare
from fedsz.training.options import RunConfig

CLIENTS: Final = 100
SEEDS: Final = 3
LAST: Final = 3  # rounds whose mean accuracy counts: noise makes one alone swing
NONE: Final = "none"
SERVER: Final = "server"
BUDGET: Final[dict[str, Any]] = {"dp_epsilon": 8.0, "dp_delta": 1e-5, "dp_clip": "0.5"}
WAYS: Final[dict[str, dict[str, Any]]] = {
    NONE: {},
    SERVER: {**BUDGET, "dp_noise_at": SERVER},
    "sum": {**BUDGET, "dp_noise_at": "sum", "secure_sum": 20},
    "client": {**BUDGET, "dp_noise_at": "client"},
}
OPTIONS: Final[dict[str, Any]] = {
    "task": "tabular", "dataset": "digits", "model": "linear",
    "rounds": 8, "epochs": 1, "batch_size": 8, "learning_rate": 0.1,
}  # fmt: skip
COLUMNS: Final = ("accuracy", "loss", "replies", "raw_up", "sent_up", "epsilon", "delta",
                  "clipping_norm")  # fmt: skip


def run(way: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each round of a run."""
    config = RunConfig(**OPTIONS, **WAYS[way], seed=seed)
    nodes: list[dict[str, Any]] = [
        {"partition-id": i, "num-partitions": CLIENTS} for i in range(CLIENTS)
    ]
    rows: list[dict[str, Any]] = []

    def keep(record: RoundRecord) -> None:
        numbers = {name: getattr(record, name) for name in COLUMNS}
        rows.append({"way": way, "seed": seed, "round": record.round, **numbers})

    federate(LocalGrid(make_client_app(), nodes), config, prepare(config), keep)
    yield from rows


def points(rows: list[dict[str, Any]], way: str) -> Spread | None:
    """Return by how much a way is above noise at the server, in points, paired by seed."""
    seeds = sorted({row["seed"] for row in rows})
    return Spread.of(accuracy(rows, way, s) - accuracy(rows, SERVER, s) for s in seeds)


def accuracy(rows: list[dict[str, Any]], way: str, seed: int) -> float:
    """Return the mean accuracy of a run's last rounds, in percent."""
    last = max(row["round"] for row in rows) - LAST
    mine = (r for r in rows if (r["way"], r["seed"]) == (way, seed) and r["round"] > last)
    return 100 * fmean(row["accuracy"] for row in mine)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/privacy.md."""
    lines = ["| noise at | accuracy | points | epsilon |", "| --- | ---: | ---: | ---: |"]
    seeds = sorted({row["seed"] for row in rows})
    for way in WAYS:
        mean = fmean(accuracy(rows, way, seed) for seed in seeds)
        epsilon = max(row["epsilon"] or 0 for row in rows if row["way"] == way)
        above = points(rows, way) if way != SERVER else None
        told = f"{above.mean:+.2f} ± {above.reach:.2f}" if above else ""
        lines.append(f"| {way} | {mean:.1f} | {told} | {f'{epsilon:.2f}' if epsilon else ''} |")
    return "\n".join(lines)


def main() -> None:
    """Make the runs that a file lacks, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    rows = pq.read_table(given.file).to_pylist() if given.file.exists() else []
    if given.table:
        print(table(rows))
        return
    torch.set_num_threads(1)
    add_missing(given.file, rows, WAYS, SEEDS, run)


if __name__ == "__main__":
    main()
