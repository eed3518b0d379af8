"""What a bound with error feedback costs: noise in the model, or that what is held back is late.

    python -m benchmarks.noise_or_lag docs/results/noise-or-lag.parquet --data-dir DIR
    python -m benchmarks.noise_or_lag docs/results/noise-or-lag.parquet --table

The first makes the runs that the file lacks; the second prints the table of docs/results/savings.md
from them. Two tasks of configs/portfolio.toml learn for twelve rounds, all clients in each, by
exact broadcasts. Some ways have one of the two alone; others are `uniform` with error feedback:

- noise: Gaussian noise in the model, another in each round, of a part of the root mean square of
  the round's mean step;
- late: of what clients have moved and the model has not, all but a part goes into it; as much as
  makes equal steps so many rounds late;
- a bound in root mean squares of a client's step.

Bounds and noise begin at a third, as `auto` has them. A row has a run's mean accuracy and loss over
all rounds, its bits a parameter, and of what the model lacks, in the mean over rounds,

- energy: over that of the round's mean step;
- lag: its projection on that step, in rounds.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch

from benchmarks.measuring import add_missing, machine
from fedsz.arrays import NDArray
from fedsz.codecs.base import FLOAT32
from fedsz.codecs.uniform import Uniform
from fedsz.control.auto import Scores, share_of_steps
from fedsz.report.runs import Spread, difference
from fedsz.training.model_state import arrays_of, set_arrays
from fedsz.training.options import RunConfig
from fedsz.training.task import LoadedTask, load_task

TASKS: Final = ("gpt", "lstm")
ROUNDS: Final = 12
SEEDS: Final = 3
CONFIG: Final = Path(__file__).parents[1] / "configs" / "portfolio.toml"
OPTIONS: Final = {"models": "model", "datasets": "dataset"}  # of a sweep, and of a run


class Way(NamedTuple):
    """What is between clients and the model."""

    noise: float = 0.0
    late: float = 0.0
    bound: float = 0.0

    def __str__(self) -> str:
        told = (f"{key} {x:g}" for key, x in self._asdict().items() if x)
        return ", ".join(told) or "exact"


WAYS: Final = (
    Way(),
    *(Way(noise=part) for part in (0.3, 0.6, 1.0)),
    *(Way(late=part) for part in (0.25, 0.5)),
    *(Way(bound=bound) for bound in (1.8, 3.6)),
)
Model = dict[str, NDArray]


def config_of(name: str, data_dir: str, seed: int) -> RunConfig:
    """Return the options of a task of configs/portfolio.toml."""
    told = tomllib.loads(CONFIG.read_text())["tasks"][name]
    told = {OPTIONS.get(key, key): value for key, value in told.items()}
    told.pop("seeds", None)  # of a sweep
    kind, _, alpha = told.pop("partitions", "iid").partition(":")
    about = {"partitioner": kind, "alpha": float(alpha or 1), "data_dir": data_dir, "seed": seed}
    return RunConfig.of({**told, **about})


def copied(model: Any) -> Model:
    """Return a model's arrays, as training will leave them."""
    return {name: x.copy() for name, x in arrays_of(model).items()}


def energy(x: Model) -> float:
    """Return the sum of squares."""
    return float(sum(np.square(of, dtype=np.float64).sum() for of in x.values()))


class Client(NamedTuple):
    """What a client has moved in a round, what is still held back then, and what it sent."""

    step: Model
    rest: Model
    nbytes: int


def sent(way: Way, step: Model, held: Model, grown: float) -> Client:
    """Send a step and what was held back before, within so much of a bound."""
    size = sum(x.size for x in step.values())
    bound = way.bound * grown * math.sqrt(energy(step) / size)
    codec, rest, nbytes = Uniform(), {}, 0
    for name, x in step.items():
        due = x + held[name]
        rest[name] = due * np.float32(way.late / (1 + way.late))
        if bound:
            payload = codec.encode(due, bound)
            nbytes += len(payload)
            rest[name] = due - codec.decode(payload, due.shape)
    return Client(step, rest, nbytes)


def trained(way: Way, task: LoadedTask, clients: int, seed: int) -> dict[str, float]:
    """Return the means of a run's rounds."""
    model, drawn = task.build_model(), np.random.default_rng(seed)
    exact, test = copied(model), task.load_test()  # the model that lacks nothing
    size = sum(x.size for x in exact.values())
    shares = [task.load_share(i, clients) for i in range(clients)]
    lacks: Model = {name: np.zeros_like(x) for name, x in exact.items()}
    held, found = [lacks] * clients, []
    at = exact
    for number in range(1, ROUNDS + 1):
        grown = share_of_steps(number, Scores())[0]
        replies, weights = [], []
        for i, share in enumerate(shares):
            set_arrays(model, at)
            weights.append(task.train(model, share, seed * 1000 + number * 100 + i).examples)
            step = {name: x - at[name] for name, x in copied(model).items()}
            replies.append(sent(way, step, held[i], grown))
        held = [of.rest for of in replies]
        step, rest = (
            {name: np.average([x[name] for x in models], 0, weights) for name in at}
            for models in ([of.step for of in replies], held)
        )
        scale = way.noise * grown * math.sqrt(energy(step) / size)
        exact = {name: x + step[name] for name, x in exact.items()}
        lacks = {name: x + scale * drawn.standard_normal(x.shape) for name, x in rest.items()}
        at = {name: (x - lacks[name]).astype(FLOAT32) for name, x in exact.items()}
        set_arrays(model, at)
        score, moved = task.evaluate(model, test), energy(step)
        assert score.accuracy is not None
        found.append(
            {
                "accuracy": score.accuracy,
                "loss": score.loss,
                "bits": 8 * sum(of.nbytes for of in replies) / clients / size,
                "energy": energy(lacks) / moved,
                "lag": sum(float((lacks[name] * x).sum()) for name, x in step.items()) / moved,
            }
        )
    return {key: fmean(of[key] for of in found) for key in found[0]}


class Cost(NamedTuple):
    """What a way's models lack, its bits, and its points of accuracy against no loss at all."""

    energy: float
    lag: float
    bits: float
    points: Spread


def cost(rows: list[dict[str, Any]], task: str, way: str) -> Cost:
    """Return the means over seeds."""
    of, exact = (
        {row["seed"]: row for row in rows if (row["task"], row["of"]) == (task, name)}
        for name in (way, str(Way()))
    )
    points = Spread.of(row["accuracy"] - exact[seed]["accuracy"] for seed, row in of.items())
    assert points
    means = (fmean(row[key] for row in of.values()) for key in ("energy", "lag", "bits"))
    return Cost(*means, points)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line for each way, of both tasks."""
    lines = []
    for way in map(str, WAYS[1:]):
        costs = [cost(rows, task, way) for task in TASKS]
        cells = [
            f"{of.energy:.2f} | {of.lag:z.2f} | {f'{of.bits:.2f}' if of.bits else ''}"
            f" | {difference(of.points)}"
            for of in costs
        ]
        lines.append(f"| {' | '.join([way, *cells])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--task", choices=TASKS, help="this one alone")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    rows = pq.read_table(asked.file).to_pylist() if asked.file.exists() else []
    if asked.table:
        print(table(rows))
        return
    torch.set_num_threads(1)
    of = {f"{task}: {way}": (task, way) for task in TASKS for way in WAYS}

    def run(name: str, seed: int) -> list[dict[str, Any]]:
        task, way = of[name]
        config = config_of(task, asked.data_dir, seed)
        told = trained(way, load_task(config), config.clients, seed)
        return [
            {"way": name, "task": task, "of": str(way), "seed": seed, **told, "machine": machine()}
        ]

    wanted = [name for name, (task, _) in of.items() if asked.task in (None, task)]
    add_missing(asked.file, rows, wanted, SEEDS, run)


if __name__ == "__main__":
    main()
