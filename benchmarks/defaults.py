"""What fedsz's defaults cost and save on unlike tasks, beside the same runs uncompressed.

    python -m benchmarks.defaults docs/results/defaults.parquet --data-dir DIR [--only "gpt;lstm"]
    python -m benchmarks.defaults docs/results/defaults.parquet --table

The first makes the rows of configs/portfolio.toml that the file lacks, task by task; the second
prints the table of docs/results/savings.md from them. `--config configs/portfolio-long.toml` does
so for the same tasks in more rounds. Pairs share the seed: of the model, the shares and the
examples' order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
from safetensors.numpy import save_file

from fedsz.control.policy import AUTO, FIXED
from fedsz.experiments.results import SWEEP, Results
from fedsz.experiments.scheme import RAW
from fedsz.experiments.sweep import Sweep
from fedsz.experiments.sweep_plan import SweepConfig
from fedsz.experiments.sweep_worker import grid_of
from fedsz.report.runs import Spread
from fedsz.training.federation import federate, prepare
from fedsz.training.model_state import arrays_of
from fedsz.training.options import RunConfig

CONFIG: Final = Path(__file__).parents[1] / "configs" / "portfolio.toml"
TUNED: Final = "mobilenetv2, tuned"
TASKS: Final[Mapping[str, SweepConfig]] = SweepConfig.read(CONFIG).tasks


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
    rounds: int
    seeds: int
    plain: float  # mean of the last accuracies, as a share
    points: Spread  # of the last accuracy to the plain run's, seed by seed, as a share
    course: Spread  # the same of the mean accuracy over all rounds
    up: float  # times fewer bytes of arrays than the plain run, over all rounds
    down: float
    both: float


HEAD: Final = """\
| model | rounds | seeds | plain | points | all rounds | up | down | both |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/results/savings.md."""
    return HEAD + "".join(_text(line) for line in lines(rows))


def lines(rows: list[dict[str, Any]]) -> Iterator[Line]:
    """Yield what each task with both kinds of runs came to, in the order of `TASKS`."""
    runs: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["round"]):
        runs.setdefault((task_of(row), row["seed"], row["policy"]), []).append(row)
    for name in TASKS:
        pairs = [
            (plain, runs[name, seed, AUTO])
            for (task, seed, policy), plain in runs.items()
            if task == name and policy != AUTO and (name, seed, AUTO) in runs
        ]
        if pairs:
            yield _line(name, pairs)


def _line(name: str, pairs: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> Line:
    points, courses, ratios = [], [], []
    for plain, default in pairs:
        points.append(default[-1]["accuracy"] - plain[-1]["accuracy"])
        courses.append(_mean_accuracy(default) - _mean_accuracy(plain))
        ratios.append([
            sum(row["raw_" + way] for row in plain for way in ways)
            / sum(row["sent_" + way] for row in default for way in ways)
            for ways in (("up",), ("down",), ("up", "down"))
        ])  # fmt: skip
    accuracy = fmean(plain[-1]["accuracy"] for plain, _ in pairs)
    up, down, both = map(fmean, zip(*ratios, strict=True))
    spreads = _spread(points), _spread(courses)
    return Line(name, len(pairs[0][0]) - 1, len(pairs), accuracy, *spreads, up, down, both)


def _spread(values: list[float]) -> Spread:
    spread = Spread.of(values)
    assert spread
    return spread


def _mean_accuracy(rows: list[dict[str, Any]]) -> float:
    """Return the mean accuracy over all rounds; round 0 is before any training."""
    return fmean(row["accuracy"] for row in rows if row["round"])


def _text(line: Line) -> str:
    points, course = (
        f"{100 * spread.mean:+.2f} ± {100 * spread.reach:.2f}"
        for spread in (line.points, line.course)
    )
    cells = [
        line.name,
        str(line.rounds),
        str(line.seeds),
        f"{100 * line.plain:.1f} %",
        points,
        course,
        *(f"{ratio:.1f}" for ratio in (line.up, line.down, line.both)),
    ]
    return f"| {' | '.join(cells)} |\n"


def task_of(row: Mapping[str, Any]) -> str:
    """Return the name that a row's task has in `TASKS`."""
    for name, sweep in TASKS.items():
        if (
            (row["task"], row["model"], row["dataset"])
            == (sweep.task, sweep.models, sweep.datasets)
            and (row["initial"] is not None) == bool(sweep.initial)
        ):  # fmt: skip
            return name
    raise ValueError(f"rows of {row['model']} on {row['dataset']}, which no task makes")


def main() -> None:
    """Make the rows, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="Parquet file of the rows")
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--config", type=Path, default=CONFIG, help="TOML file of the tasks")
    parser.add_argument("--only", default=";".join(TASKS), help="tasks, separated by semicolons")
    parser.add_argument("--ways", default="", help="in place of raw and auto, as in fedsz sweep")
    parser.add_argument("--table", action="store_true", help="print the table, run nothing")
    options = parser.parse_args()
    if not options.table:
        other = {"ways": options.ways} if options.ways else {}
        tasks = SweepConfig.read(options.config, data_dir=options.data_dir, **other).tasks
        for name in options.only.split(";"):
            if name == TUNED:
                pretrain(Path(tasks[name].initial), options.data_dir)
            with Results(options.rows, SWEEP) as results:
                for step in Sweep(tasks[name], results).run():
                    if step.over:
                        run = step.run
                        print(name, run.policy, run.seed, step.error or "", flush=True)
    print(table(pq.read_table(options.rows).to_pylist()), end="")


if __name__ == "__main__":
    main()
