"""What secure sums cost: accuracy and bits a parameter of whole runs, paired with plain ones.

    python -m benchmarks.secure_sums RESULTS.parquet --data-dir DIR
    python -m benchmarks.secure_sums RESULTS.parquet --table

The first makes the runs that the file lacks; the second prints their table. Tokens are real, packed
and added up in the ring; masks, which cancel, are left out, and so are messages. Runs of one seed
share the model, the shares, and the order of the examples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fedsz.arrays import NDArray
from fedsz.privacy.quantizer import Learned, moved
from fedsz.privacy.ring import Ring
from fedsz.report.runs import Spread
from fedsz.training.model_state import arrays_of, set_arrays
from fedsz.training.options import RunConfig
from fedsz.training.task import load_task

CLIENTS: Final = 4
ROUNDS: Final = 60
CAP: Final = 1024  # the largest weight of the first round, as `SecureSum` has it
LATE: Final = 20  # of them, the last ones
SEEDS: Final = 3
TASKS: Final = {
    "cnn": RunConfig(
        model="cnn", dataset="cifar10", image_size=16, samples=1200, test_samples=1000,
        partitioner="dirichlet", alpha=0.3, clients=CLIENTS, learning_rate=0.02,
    ),
    "gpt": RunConfig(
        task="benchmarks.tasks:Characters", model="gpt", dataset="shakespeare", samples=512,
        test_samples=100, clients=CLIENTS, learning_rate=2e-3,
    ),
}  # fmt: skip


PLAIN: Final = "float32"
WAYS: Final = {PLAIN: 0, "all": 8}  # bits of a secure sum, for each parameter; 0 for none


class Summed:
    """The server's side of secure sums of so many bits, and what its clients keep."""

    def __init__(self, bits: int) -> None:
        self._bits, self._known = bits, Learned(CAP)
        self._residuals: list[dict[str, NDArray]] = [{} for _ in range(CLIENTS)]

    def round(
        self,
        model: dict[str, NDArray],
        train: Callable[[int, dict[str, NDArray]], tuple[dict[str, NDArray], int]],
    ) -> tuple[dict[str, NDArray], int]:
        """Return the model after a round, and how many bytes of tokens each client sends.

        Args:
            model: before it.
            train: trains what a client begins with, and returns that and the client's weight.
        """
        codec = self._known.codec(model, CLIENTS, self._bits)
        sums, size = np.zeros(codec.count, codec.dtype), 0
        for client in range(CLIENTS):
            after, weight = train(client, model)
            sent = codec.encode(after, model, weight, self._residuals[client])
            self._residuals[client] = sent.residual
            packed = Ring(self._bits).pack(sent.tokens)
            Ring(self._bits).unpack_add(packed, sums)
            size = len(packed)
        mean = codec.decode(sums, CLIENTS)
        self._known.learn(mean, CLIENTS)
        return {name: moved(x, mean.step[name]) for name, x in model.items()}, size


def run(name: str, way: str, seed: int, data_dir: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each round: accuracy and loss on what is held out, and bytes of tokens."""
    config = replace(TASKS[name], seed=seed, data_dir=data_dir)
    task = load_task(config)
    network, held_out = task.build_model(), task.load_test()
    shares = [task.load_share(i, CLIENTS) for i in range(CLIENTS)]
    model = {key: x.copy() for key, x in arrays_of(network).items()}
    parameters = sum(x.size for x in model.values())
    summed = Summed(WAYS[way]) if WAYS[way] else None
    for number in range(1, ROUNDS + 1):
        seeds = [hash((seed, number, client)) % 2**32 for client in range(CLIENTS)]

        def train(
            client: int, start: dict[str, NDArray], seeds: list[int] = seeds
        ) -> tuple[dict[str, NDArray], int]:
            set_arrays(network, {key: x.copy() for key, x in start.items()})
            told = task.train(network, shares[client], seeds[client])
            return {key: x.copy() for key, x in arrays_of(network).items()}, told.examples

        if summed is None:
            trained = [train(client, model) for client in range(CLIENTS)]
            total = sum(weight for _, weight in trained)
            model = {
                key: (sum(weight * one[key] for one, weight in trained) / total).astype(x.dtype)
                for key, x in model.items()
            }
            size = 4 * parameters
        else:
            model, size = summed.round(model, train)
        set_arrays(network, {key: x.copy() for key, x in model.items()})
        score = task.evaluate(network, held_out)
        yield {
            "task": name, "way": way, "seed": seed, "round": number, "accuracy": score.accuracy,
            "loss": score.loss, "bytes": size, "parameters": parameters,
        }  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What a way came to over the seeds of a task.

    Attributes:
        bits: a parameter and round.
        whole, late: points of accuracy to the uncompressed run of the seed, as a share: the mean of
            all rounds, and of the last `LATE`.
    """

    bits: float
    whole: Spread
    late: Spread


def cost(rows: list[dict[str, Any]], task: str, way: str) -> Cost:
    """Return what a way came to."""
    ours = [row for row in rows if (row["task"], row["way"]) == (task, way)]
    plain = {
        (row["seed"], row["round"]): row["accuracy"]
        for row in rows
        if (row["task"], row["way"]) == (task, PLAIN)
    }
    points = [
        (row["seed"], row["round"], row["accuracy"] - plain[row["seed"], row["round"]])
        for row in ours
    ]
    seeds = sorted({row["seed"] for row in ours})

    def spread(first: int) -> Spread:
        found = Spread.of([
            fmean(p for s, number, p in points if s == seed and number >= first) for seed in seeds
        ])  # fmt: skip
        assert found
        return found

    bits = 8 * fmean(row["bytes"] / row["parameters"] for row in ours)
    return Cost(bits, spread(1), spread(ROUNDS - LATE + 1))


HEAD: Final = """\
| task | sent | seeds | bits a parameter | times below float32 | points, all rounds | last third |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
"""


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line for each task and way but the uncompressed one."""
    lines = []
    for task in TASKS:
        made = {row["way"] for row in rows if row["task"] == task}
        for way in (way for way in WAYS if way in made and way != PLAIN):
            found = cost(rows, task, way)
            spreads = (found.whole, found.late)
            points = [f"{100 * p.mean:+.2f} ± {100 * p.reach:.2f}" for p in spreads]
            sizes = [str(found.whole.count), f"{found.bits:.2f}", f"{32 / found.bits:.1f}"]
            cells = [task, way, *sizes, *points]
            lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


def main() -> None:
    """Make what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--ways", nargs="+", choices=[*WAYS], default=[*WAYS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(SEEDS)])
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    rows = pq.read_table(given.results).to_pylist() if given.results.exists() else []
    if given.table:
        print(table(rows), end="")
        return
    torch.set_num_threads(1)
    for seed in given.seeds:
        for task in given.tasks:
            for way in given.ways:
                if any((r["task"], r["way"], r["seed"]) == (task, way, seed) for r in rows):
                    continue
                rows += run(task, way, seed, given.data_dir)
                pq.write_table(pa.Table.from_pylist(rows), given.results, compression="zstd")
                print(seed, task, way, f"{rows[-1]['accuracy']:.4f}", flush=True)


if __name__ == "__main__":
    main()
