"""Differential privacy by `PrivateFedAvg`: what compression costs beside the same noise alone.

    python -m benchmarks.dp_accuracy docs/results/dp.parquet --data-dir ../shared/data
    python -m benchmarks.dp_accuracy docs/results/dp.parquet --table

The first makes the runs that the file lacks; the second prints the table of docs/privacy.md from
them. It is `fedsz run` with all clients in one process, as a sweep has them. Runs of one seed share
the model, the data, the clients that are drawn and the noise.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
import torch

from benchmarks.measuring import add_missing
from fedsz.control.record import RoundRecord
from fedsz.flower import LocalGrid, make_client_app
from fedsz.report.runs import Spread
from fedsz.training.federation import federate, prepare
from fedsz.training.options import RunConfig

CLIENTS: Final = 1000
SEEDS: Final = 3
LAST: Final = 3  # rounds whose mean accuracy counts: noise makes one alone swing
RAW: Final = "raw"
WAYS: Final[dict[str, dict[str, Any]]] = {
    RAW: {"codec": "raw", "lossless": "raw", "update": "delta", "downlink": "exact"},
    "auto": {},
}
OPTIONS: Final[dict[str, Any]] = {
    "dataset": "fashion_mnist", "model": "cnn", "image_size": 14, "test_samples": 1000,
    "rounds": 8, "epochs": 1, "batch_size": 16, "learning_rate": 0.02,
    "dp_epsilon": 8.0, "dp_delta": 1e-5, "dp_sampling": 0.04, "dp_clip": "0.3",
}  # fmt: skip
COLUMNS: Final = ("accuracy", "loss", "replies", "raw_up", "sent_up", "raw_down", "sent_down",
                  "epsilon", "delta", "clipping_norm")  # fmt: skip


def run(way: str, seed: int, data_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each round of a run."""
    config = RunConfig(
        **OPTIONS, **WAYS[way], seed=seed, dp_seed=seed, data_dir=str(data_dir.resolve())
    )
    nodes = [
        {"partition-id": i, "num-partitions": CLIENTS, "data-dir": config.data_dir}
        for i in range(CLIENTS)
    ]
    rows: list[dict[str, Any]] = []

    def keep(record: RoundRecord) -> None:
        numbers = {name: getattr(record, name) for name in COLUMNS}
        rows.append({"way": way, "seed": seed, "round": record.round, **numbers})

    federate(LocalGrid(make_client_app(), nodes), config, prepare(config), keep)
    yield from rows


class Outcome(NamedTuple):
    """What a way came to over its seeds.

    Attributes:
        accuracy: mean over seeds, of the last rounds, in percent.
        points: what it is above the same noise without compression, paired by seed.
        up, both: how many times fewer bytes are sent than as float32.
        epsilon: that the last round had spent.
    """

    accuracy: float
    points: Spread | None
    up: float
    both: float
    epsilon: float


def outcomes(rows: list[dict[str, Any]]) -> dict[str, Outcome]:
    """Return what each way came to."""
    found = {}
    seeds = sorted({row["seed"] for row in rows})
    last = max(row["round"] for row in rows)

    def accuracy(way: str, seed: int) -> float:
        mine = [
            r for r in rows if (r["way"], r["seed"]) == (way, seed) and r["round"] > last - LAST
        ]
        return 100 * fmean(row["accuracy"] for row in mine)

    for way in WAYS:
        mine = [row for row in rows if row["way"] == way]
        raw_up, up, raw_down, down = (
            sum(r[name] for r in mine) for name in ("raw_up", "sent_up", "raw_down", "sent_down")
        )
        found[way] = Outcome(
            fmean(accuracy(way, seed) for seed in seeds),
            Spread.of(accuracy(way, seed) - accuracy(RAW, seed) for seed in seeds),
            raw_up / up,
            (raw_up + raw_down) / (up + down),
            max(row["epsilon"] for row in mine),
        )
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/privacy.md."""
    lines = [
        "| update | accuracy | points | up | both | epsilon |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way, of in outcomes(rows).items():
        points = ""
        if way != RAW and of.points:
            points = f"{of.points.mean:+.2f} ± {of.points.reach:.2f}"
        sizes = f"{of.up:.1f} | {of.both:.1f}"
        lines.append(f"| `{way}` | {of.accuracy:.1f} | {points} | {sizes} | {of.epsilon:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Make the runs that a file lacks, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--data-dir", type=Path, default=Path(os.environ.get("FEDSZ_TEST_DATA", ""))
    )
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    rows = pq.read_table(given.file).to_pylist() if given.file.exists() else []
    if given.table:
        print(table(rows))
        return
    torch.set_num_threads(1)
    add_missing(given.file, rows, WAYS, SEEDS, lambda way, seed: run(way, seed, given.data_dir))


if __name__ == "__main__":
    main()
