"""What fedsz's defaults cost and save on unlike tasks, beside the same runs uncompressed.

    python -m benchmarks.defaults docs/results/defaults.parquet --data-dir DIR [--only gpt,lstm]
    python -m benchmarks.defaults docs/results/defaults.parquet --table

The first makes the rows that the file lacks, a sweep for each task; the second prints the table of
docs/choosing.md from them. Pairs share the seed: of the model, the shares and the examples' order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
from safetensors.numpy import save_file

from fedsz.control.rule import AUTO, FIXED
from fedsz.experiments.results import SWEEP, Results
from fedsz.experiments.scheme import RAW
from fedsz.experiments.sweep import Sweep
from fedsz.experiments.sweep_plan import SweepConfig
from fedsz.experiments.sweep_worker import grid_of
from fedsz.report.runs import Spread
from fedsz.training.federation import federate, prepare
from fedsz.training.model_state import arrays_of
from fedsz.training.options import RunConfig

TUNED: Final = "mobilenetv2, tuned"
TEXT: Final = {
    "task": "benchmarks.tasks:Characters", "datasets": "shakespeare", "learning_rate": 1e-3,
    "samples": 2560, "test_samples": 300, "rounds": 12, "clients": 4,
}  # fmt: skip
QUESTIONS: Final = {
    "task": "benchmarks.tasks:Questions", "datasets": "shakespeare", "samples": 384,
    "test_samples": 300, "clients": 4, "rounds": 8, "batch_size": 8,
}  # fmt: skip
# By the names of the table; what a task does not say is as `fedsz sweep` has it.
TASKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "quickstart": {
        "task": "benchmarks.tasks:Quickstart", "models": "lenet", "datasets": "cifar10",
        "clients": 5, "rounds": 5, "batch_size": 32, "samples": 40_000, "seeds": 5,
    },
    "resnet8": {
        "task": "benchmarks.tasks:ResNet8", "models": "resnet8", "datasets": "cifar10",
        "clients": 4, "rounds": 10, "samples": 3840, "test_samples": 4000, "learning_rate": 0.05,
        "image_size": 16, "seeds": 5,
    },
    "mobilenetv2": {
        "models": "mobilenetv2", "datasets": "fashion_mnist", "clients": 4, "rounds": 8,
        "samples": 1600, "test_samples": 1000, "learning_rate": 0.02, "seeds": 3,
    },
    TUNED: {
        "models": "mobilenetv2", "datasets": "fashion_mnist", "clients": 4, "rounds": 5,
        "samples": 1200, "test_samples": 1000, "learning_rate": 0.005, "seeds": 5,
    },
    "gpt": TEXT | {"models": "gpt", "learning_rate": 2e-3},
    "lstm": TEXT | {"models": "lstm", "learning_rate": 3e-3},
    "minilm": QUESTIONS | {"models": "minilm", "learning_rate": 1e-4},
    "minilm, LoRA": QUESTIONS | {"models": "minilm-lora", "learning_rate": 2e-3},
    "mlp": {
        "task": "tabular", "models": "mlp", "datasets": "digits", "clients": 4, "rounds": 10,
        "learning_rate": 0.02, "seeds": 5,
    },
    "logistic regression": {
        "task": "benchmarks.tasks:Clothes", "models": "logistic", "datasets": "fashion_mnist",
        "clients": 4, "samples": 8000, "test_samples": 5000, "rounds": 10, "learning_rate": 0.005,
        "seeds": 5,
    },
}  # fmt: skip


def plan(name: str, data_dir: str, tuned_from: Path) -> SweepConfig:
    """Return the runs of a task, plain and by default."""
    usual = {"rule": RunConfig.rule, "seeds": 3, "ways": [RAW, AUTO], "data_dir": data_dir}
    initial = {"initial": str(tuned_from)} if name == TUNED else {}
    return SweepConfig.of(usual | initial | TASKS[name])


def pretrain(path: Path, data_dir: str) -> None:
    """Train the mobilenetv2 that is tuned afterwards: five rounds on CIFAR-10."""
    if path.exists():
        return
    config = RunConfig(
        model="mobilenetv2", dataset="cifar10", samples=6000, test_samples=2000, rounds=5,
        learning_rate=0.02, clients=2, seed=100, data_dir=data_dir, codec=RAW, policy=FIXED,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(arrays_of(federate(grid_of(config), config, prepare(config))), path)


class Line(NamedTuple):
    """A row of the table: what the default came to over the seeds of a task."""

    name: str
    seeds: int
    plain: float  # mean of the last accuracies, as a share
    points: Spread  # of the last accuracy to the plain run's, seed by seed, as a share
    loss: Spread  # of the last loss to the plain run's, as a share of it
    kept: float  # least mean of a task's updates over its rounds
    up: float  # times fewer bytes of arrays than the plain run, over all rounds
    down: float
    both: float


HEAD: Final = """\
| model | seeds | plain | points | loss | kept | up | down | both |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/choosing.md."""
    return HEAD + "".join(_text(line) for line in lines(rows))


def lines(rows: list[dict[str, Any]]) -> Iterator[Line]:
    """Yield what each task with both kinds of runs came to, in the order of `TASKS`."""
    runs: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["round"]):
        runs.setdefault((_task(row), row["seed"], row["policy"]), []).append(row)
    for name in TASKS:
        pairs = [
            (plain, runs[name, seed, AUTO])
            for (task, seed, policy), plain in runs.items()
            if task == name and policy != AUTO and (name, seed, AUTO) in runs
        ]
        if pairs:
            yield _line(name, pairs)


def _line(name: str, pairs: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> Line:
    points, losses, kept, ratios = [], [], [], []
    for plain, default in pairs:
        points.append(default[-1]["accuracy"] - plain[-1]["accuracy"])
        losses.append(default[-1]["loss"] / plain[-1]["loss"] - 1)
        kept += [row["kept"] for row in default if row["kept"] is not None]
        ratios.append([
            sum(row["raw_" + way] for row in plain for way in ways)
            / sum(row["sent_" + way] for row in default for way in ways)
            for ways in (("up",), ("down",), ("up", "down"))
        ])  # fmt: skip
    of_points, of_losses = Spread.of(points), Spread.of(losses)
    assert of_points
    assert of_losses
    accuracy = fmean(plain[-1]["accuracy"] for plain, _ in pairs)
    up, down, both = map(fmean, zip(*ratios, strict=True))
    return Line(name, len(pairs), accuracy, of_points, of_losses, min(kept), up, down, both)


def _text(line: Line) -> str:
    points, loss = (f"{100 * s.mean:+.2f} ± {100 * s.reach:.2f}" for s in (line.points, line.loss))
    cells = [
        line.name,
        str(line.seeds),
        f"{100 * line.plain:.1f} %",
        points,
        f"{loss} %",
        f"{100 * line.kept:.0f} %",
        *(f"{ratio:.1f}" for ratio in (line.up, line.down, line.both)),
    ]
    return f"| {' | '.join(cells)} |\n"


def _task(row: Mapping[str, Any]) -> str:
    """Return the name that a row's task has in `TASKS`."""
    for name, options in TASKS.items():
        shares = options.get("partitions", "iid")
        if (
            row["model"] == options["models"]
            and row["dataset"] == options["datasets"]
            and row["task"] == options.get("task", RunConfig.task)
            and shares.startswith(row["partitioner"])
            and (row["initial"] is not None) == (name == TUNED)
        ):
            return name
    raise ValueError(f"rows of {row['model']} on {row['dataset']}, which no task makes")


def main() -> None:
    """Make the rows, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="Parquet file of the rows")
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--only", default=";".join(TASKS), help="tasks, separated by semicolons")
    parser.add_argument("--tuned-from", type=Path, default=Path("runs/mobilenetv2.safetensors"))
    parser.add_argument("--table", action="store_true", help="print the table, run nothing")
    options = parser.parse_args()
    if not options.table:
        for name in options.only.split(";"):
            if name == TUNED:
                pretrain(options.tuned_from, options.data_dir)
            with Results(options.rows, SWEEP) as results:
                for step in Sweep(plan(name, options.data_dir, options.tuned_from), results).run():
                    if step.over:
                        run = step.run
                        print(name, run.policy, run.seed, step.error or "", flush=True)
    print(table(pq.read_table(options.rows).to_pylist()), end="")


if __name__ == "__main__":
    main()
