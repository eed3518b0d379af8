"""Accuracy with and without compression, over seeds: the table in the README.

    python benchmarks/accuracy.py --data-dir DIR [--samples N] [--seeds 3] [--only uniform ...]

Each run is a whole federation of processes over gRPC, as ``fedsz run`` starts it. Runs with equal
seeds have the same initial model, the same partition and the same order of images, and are made one
after the other, so that they differ in the codec alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from fedsz.control.record import RoundRecord
from fedsz.training.local_fleet import run_local
from fedsz.training.options import RunConfig

CODECS = {
    "uncompressed": {"codec": "raw", "lossless": "raw"},
    "sz2": {"codec": "sz2", "update": "weights", "error_bound": 1e-2},
    "uniform": {"codec": "uniform", "update": "weights", "error_bound": 1e-2},
    "uniform, steps": {"codec": "uniform", "update": "delta", "error_bound": 1e-2},
    "auto": {"policy": "auto"},
}


def run(config: RunConfig) -> list[RoundRecord]:
    """Return the rounds of one federation."""
    with tempfile.TemporaryDirectory() as folder:
        events = run_local(replace(config, run_dir=str(Path(folder) / "run")))
        return [event for event in events if isinstance(event, RoundRecord)]


def spread(values: list[float], form: str) -> str:
    """Return the median, and the least and the greatest."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("configs/cifar10.toml"))
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--samples", type=int, default=0, help="training images in all; 0: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CODECS, default=list(CODECS), metavar="CODEC")
    arguments = parser.parse_args()
    base = RunConfig.read(arguments.config, data_dir=arguments.data_dir, samples=arguments.samples)
    results: dict[str, list[list[RoundRecord]]] = {name: [] for name in arguments.only}
    for seed in range(arguments.seeds):
        for name, runs in results.items():
            rounds = run(replace(base, seed=seed, **CODECS[name]))
            runs.append(rounds)
            print(f"seed {seed}, {name}: accuracy {rounds[-1].accuracy:.4f}", flush=True)

    images = arguments.samples or "all"
    print(
        f"\n{base.dataset}, {base.model}, {base.clients} clients, {base.rounds} rounds, {images}"
        f" training images, {arguments.seeds} seeds: median (least-greatest)."
        f" {platform.machine()}, {os.cpu_count()} cores.\n"
    )
    print("| | accuracy | sent up a round | ratio | largest error / bound |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, runs in results.items():
        trained = [[row for row in rounds if row.round] for rounds in runs]
        accuracy = spread([100 * rounds[-1].accuracy for rounds in trained], ".2f")
        sent = statistics.median(row.sent_up for rounds in trained for row in rounds) / 1e6
        ratio = statistics.median(row.ratio or 1.0 for rounds in trained for row in rounds)
        error = max(row.max_error for rounds in trained for row in rounds)
        print(f"| {name} | {accuracy} % | {sent:.3f} MB | {ratio:.2f} | {error:.4f} |")


if __name__ == "__main__":
    main()
