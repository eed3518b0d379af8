"""Accuracy with and without compression, over seeds: a table as the README has it.

    python benchmarks/accuracy.py --data-dir DIR [--samples N] [--seeds 3] [--only uniform ...]
        [--grid local] [--jobs 2] [--results runs/accuracy.parquet]

Each run is a federation of processes over gRPC, as ``fedsz run`` starts it; with ``--grid local``,
of one process. Runs with equal seeds have the same initial model, the same partition and the same
order of images, so that they differ in the way of updating alone. The result file is that of a
sweep: the same command goes on where an earlier one ended.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedsz.experiments.results import SWEEP, Results
from fedsz.experiments.scheme import Scheme
from fedsz.experiments.sweep import Sweep
from fedsz.experiments.sweep_plan import GRIDS, SweepConfig
from fedsz.report.rate_accuracy import RateAccuracy, rate_accuracies
from fedsz.report.runs import Run, Setting, Spread, difference, settings_of, spread
from fedsz.report.source import read_source
from fedsz.training.options import RunConfig, options

WAYS = {
    "uncompressed": "raw",
    "sz2": "weights:sz2@1e-2",
    "uniform": "weights@1e-2",
    "uniform, steps": "delta@1e-2",
    "auto": "auto",
}


def plan(arguments: argparse.Namespace) -> SweepConfig:
    """Return the runs of the configuration in each way and with each seed."""
    base = RunConfig.read(
        arguments.config, data_dir=arguments.data_dir, samples=arguments.samples,
        test_samples=arguments.test_samples,
    )  # fmt: skip
    same = {name: getattr(base, name) for name in options()}
    ways = ",".join(WAYS[name] for name in arguments.only)
    own = {name: getattr(arguments, name) for name in ("seeds", "grid", "jobs", "results")}
    return SweepConfig(**same | own, models=base.model, datasets=base.dataset, ways=ways)


def row(way: RateAccuracy, runs: Sequence[Run]) -> str:
    """Return a line of the table; bytes and ratio are of whole runs."""
    raw = fmean(done.raw_up for run in runs for done in run.trained)
    accuracy = spread(Spread.of(100 * run.accuracy for run in runs), "{:.2f}".format)
    sent = f"{raw / way.up / 1e6:.3f} MB | {way.up:.2f}"
    if runs[0].uncompressed:
        return f"| {way.name} | {accuracy} | - | {sent} | - |"
    error = max(run.max_error for run in runs)
    return f"| `{way.name}` | {accuracy} | {difference(way.difference)} | {sent} | {error:.4f} |"


def table(setting: Setting) -> str:
    """Return the table, uncompressed first."""
    lines = [
        "| | accuracy, % | points | sent up a round | ratio | largest error / bound |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way in rate_accuracies(setting):
        runs = [run for run in setting.runs if setting.label(run, bound=True) == way.name]
        lines.append(row(way, runs))
    return "\n".join(lines)


def main() -> None:
    """Run what the result file lacks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("configs/cifar10.toml"))
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--samples", type=int, default=0, help="training images in all; 0: all")
    parser.add_argument("--test-samples", type=int, default=0, help="test images; 0: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--grid", choices=GRIDS, default="grpc")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--results", default="runs/accuracy.parquet")
    arguments = parser.parse_args()
    with Results(Path(arguments.results), SWEEP) as results:
        for step in Sweep(plan(arguments), results).run():
            if step.over:
                accuracy = f"accuracy {step.round.accuracy:.4f}" if step.round else ""
                way = Scheme.of_run(step.run)
                print(f"seed {step.run.seed}, {way}: {step.error or accuracy}", flush=True)
    for setting in settings_of(read_source(Path(arguments.results))):
        print(f"\n{setting.provenance}\n\n{table(setting)}")


if __name__ == "__main__":
    main()
