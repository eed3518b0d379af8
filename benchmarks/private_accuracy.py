"""Differential privacy by clipping on clients: what compression costs, and error feedback, too.

    python -m benchmarks.private_accuracy docs/results/private.parquet
    python -m benchmarks.private_accuracy docs/results/private.parquet --table

The first makes the runs that the file lacks; the second prints the table of docs/flower.md from
them. All clients train in each round, behind Flower's `fixedclipping_mod` and inside its wrapper.
The server clips what it decodes again. Runs of one seed share the model, the data and the noise.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import strategy as flower
from threadpoolctl import threadpool_limits

from benchmarks.measuring import add_missing, rows_of
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid
from fedsz.report.runs import Spread
from tests.flower_apps import NAMES, Weights, descended, digits, named, tested, weights_of

NOISE: Final = 1.0  # Flower's noise_multiplier
ROUNDS: Final = 20
LAST: Final = 5  # rounds whose mean accuracy counts: noise makes one alone swing
SEEDS: Final = 3

PLAIN: Final = "plain"  # without fedsz
DEFAULT: Final = "default"
METHODS: Final = ("uniform@std:1",)
WAYS: Final = (PLAIN, DEFAULT, *(f"{way}{m}" for m in METHODS for way in ("", "feedback>")))

Split = tuple[np.ndarray, np.ndarray]  # float32 [N, features] from 0 to 1, classes [N]


class Task(NamedTuple):
    """What clients learn.

    Attributes:
        split: returns what they train on, and what is held out.
        widths: of a network of dense layers.
        clients: that have equal shares.
        epochs: of each in a round.
        norm: which updates are clipped to, as nearly all of them are larger.
    """

    split: Callable[[], tuple[Split, Split]]
    widths: tuple[int, ...]
    clients: int
    epochs: int
    norm: float


TASKS: Final = {
    "digits": Task(digits, (64, 64, 10), 60, 5, 0.25),
}


def app_of(task: Task, train: Split, seed: int, way: str) -> ClientApp:
    """Return an app that trains on a client's share."""
    app = ClientApp(mods=[*([FedSZMod()] if way != PLAIN else []), fixedclipping_mod])

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        (record,) = message.content.array_records.values()
        client = int(context.node_config["client"])
        turn = int(message.content["config"]["server-round"])
        images, labels = (x[client :: task.clients] for x in train)
        rng = np.random.default_rng((seed, client, turn))
        weights = weights_of(record)
        for _ in range(task.epochs):
            weights = descended(weights, images, labels, rng)
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": named(weights, list(record)), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def run(name: str, way: str, seed: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each round: accuracy and loss on what is held out, and bytes of updates."""
    task = TASKS[name]
    train, held_out = task.split()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - Flower draws its noise from it
    inner = LocalGrid(app_of(task, train, seed, way), [{"client": i} for i in range(task.clients)])
    options = {"update": way} if way != DEFAULT else {}
    grid = FedSZGrid(inner, **options) if way != PLAIN else inner
    first = first_weights(task, seed)
    size = sum(x.nbytes for x in first) * task.clients
    rows: list[dict[str, Any]] = []

    def measure(number: int, arrays: ArrayRecord) -> None:
        accuracy, loss = tested(weights_of(arrays), *held_out)
        sent, scale = size if number else 0, 1.0
        if isinstance(grid, FedSZGrid):
            grid.observe(accuracy=accuracy, loss=loss)
            traffic = grid.take_traffic()
            assert traffic.replies == (task.clients if number else 0)
            sent, scale = traffic.sent_up, median([c.scale for c in traffic.clients] or [1.0])
        rows.append({
            "task": name, "way": way, "seed": seed, "round": number, "accuracy": accuracy,
            "loss": loss, "raw_up": size if number else 0, "sent_up": sent, "scale": scale,
        })  # fmt: skip

    strategy = flower.DifferentialPrivacyClientSideFixedClipping(
        flower.FedAvg(fraction_evaluate=0.0), NOISE, task.norm, task.clients
    )
    with threadpool_limits(1):
        weights = named(first, NAMES[: len(first)])
        strategy.start(grid, weights, num_rounds=rounds, evaluate_fn=measure)
    yield from rows


def first_weights(task: Task, seed: int) -> Weights:
    """Return a network as He et al. (2015) begin one."""
    rng = np.random.default_rng(seed)
    weights: Weights = []
    for inputs, outputs in pairwise(task.widths):
        kernel = rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs))
        weights += [kernel.astype(np.float32), np.zeros(outputs, np.float32)]
    return weights


class Side(NamedTuple):
    """What a way came to over the seeds of a task.

    Attributes:
        points: of the mean accuracy over the last rounds to the plain run's, as a share.
        up: times fewer bytes of updates.
        scale: what the second clipping has scaled the median update by, the mean over rounds.
    """

    points: Spread
    up: float
    scale: float


def side(rows: list[dict[str, Any]], task: str, way: str) -> Side:
    """Return what a way came to."""
    plain, ours = (
        {seed: [r for r in rows if (r["task"], r["way"], r["seed"]) == (task, one, seed)]
         for seed in sorted({r["seed"] for r in rows})}
        for one in (PLAIN, way)
    )  # fmt: skip
    points = Spread.of([_late(ours[seed]) - _late(plain[seed]) for seed in plain])
    assert points
    trained = [row for run in ours.values() for row in run if row["round"]]
    up = sum(r["raw_up"] for r in trained) / sum(r["sent_up"] for r in trained)
    return Side(points, up, fmean(row["scale"] for row in trained))


def _late(rows: list[dict[str, Any]]) -> float:
    return fmean(row["accuracy"] for row in sorted(rows, key=lambda row: row["round"])[-LAST:])


HEAD: Final = """\
| task | update | points | up | scale | points, fed back | up | scale |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/flower.md."""
    lines = []
    for task in TASKS:
        for method in (DEFAULT, *METHODS):
            ways = (method,) if method == DEFAULT else (method, f"feedback>{method}")
            cells = [task, method if method == DEFAULT else f"`{method}`"]
            for way in ways:
                points, up, scale = side(rows, task, way)
                cells += [f"{100 * points.mean:+.2f} ± {100 * points.reach:.2f}"]
                cells += [f"{up:.1f}", f"{scale:.2f}"]
            lines.append(f"| {' | '.join([*cells, '', '', ''][:8])} |\n")
    return HEAD + "".join(lines)


def main() -> None:
    """Make what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(SEEDS)])
    parser.add_argument("--commit", default="", help="of fedsz, to be noted in the rows")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table(rows_of(given.results)), end="")
        return
    logging.disable(logging.INFO)

    def rows(seed: int, task: str, way: str) -> list[dict[str, Any]]:
        return [{**row, "commit": given.commit} for row in run(task, way, seed, ROUNDS)]

    add_missing(given.results, ("seed", "task", "way"), product(given.seeds, TASKS, WAYS), rows)


if __name__ == "__main__":
    main()
