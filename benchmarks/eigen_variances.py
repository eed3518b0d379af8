"""What it saves to order or code coefficients by the variances that earlier broadcasts predict.

    python -m benchmarks.eigen_variances --data-dir DIR [--seeds 3]

Trains tasks as configs/eigen.toml has them, and MobileNetV2, by the chain that docs/eigen.md
recommends: clients with feedback and without, all of them in each round, and a broadcast within
step:0.6. In some rounds it looks at what `uniform` is given of tensors that have a basis, and takes
the bytes of

- rows and columns, in the order of the mean of their logarithmic variances;
- all coefficients in one order, as rows of some 256, which `uniform` sorts into classes;
- no order at all: an adaptive binary coder that knows the class of each coefficient, an octave of
  variance wide, with nothing sent but `NEEDED` bytes. It is the estimator of Krichevsky and
  Trofimov for whether a number is beyond 0, 1, 2, ..., and a bit for each sign: fewer bytes than
  any table, whose frequencies must be sent.

A row has the bytes of a task, seed and way. It writes docs/results/eigen-variances.parquet.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.eigen_energy import config_of, copied
from benchmarks.measuring import machine
from fedsz.arrays import NDArray
from fedsz.codecs.uniform import Uniform
from fedsz.core.broadcast import Broadcast
from fedsz.core.chained import ChainEncoder
from fedsz.core.decode import decompress
from fedsz.core.encode import compress_measured
from fedsz.core.settings import Settings
from fedsz.core.step import energies, scales_of_step
from fedsz.methods import parse
from fedsz.methods.state import by_tensor
from fedsz.secagg.variances import variances
from fedsz.training.model_state import set_arrays
from fedsz.training.options import RunConfig
from fedsz.training.task import load_task

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "eigen-variances.parquet"
CODED: Final = "eigen>uniform@step:1"
FEEDBACK: Final = f"feedback>{CODED}"
NEEDED: Final = 6  # bytes: a head and the grid
COLUMNS: Final = 256


class Trained(NamedTuple):
    """A task, the rounds that are looked at, and how its clients code."""

    task: str
    model: str
    looked_at: tuple[int, ...]
    chain: str = FEEDBACK

    def config(self, data_dir: str, seed: int) -> RunConfig:
        """Return its options: those of a sweep's task, for another model on its images as well."""
        config = config_of(self.task, data_dir, seed)
        return config if self.model == self.task else dataclasses.replace(config, model=self.model)


RUNS: Final = (
    Trained("cnn", "cnn", (5, 15, 30)),
    Trained("gpt", "gpt", (5, 15, 30)),
    Trained("cnn", "mobilenetv2", (4, 8)),
    Trained("cnn", "cnn", (5, 15, 30), CODED),
    Trained("gpt", "gpt", (5, 15, 30), CODED),
)


class Coefficients(NamedTuple):
    """A tensor in its basis, as a client codes it, and what broadcasts predict."""

    values: NDArray
    variances: NDArray
    bound: float


def seen(of: Trained, data_dir: str, seed: int) -> Iterator[Coefficients]:
    """Yield what clients code in the rounds that are looked at."""
    config = of.config(data_dir, seed)
    task, asked = (
        load_task(config),
        Settings(update=of.chain, downlink="step:0.6", threshold=0, rule="parameters"),
    )
    model, broadcast, chain = task.build_model(), Broadcast(asked), parse(of.chain)
    at, held, known = copied(model), b"", b""
    shares = [task.load_share(i, config.clients) for i in range(config.clients)]
    kept: list[dict[str, NDArray]] = [{} for _ in shares]
    for number in range(1, max(of.looked_at) + 1):
        broadcast.put(at, reference=True)
        history = broadcast.history(held, known)
        sent = broadcast.model
        assert sent is not None
        held, known = sent.digest, history.digest if history else b""
        sent = sent.with_history(history) if history else sent
        arrived, weights = [], []
        for i, share in enumerate(shares):
            set_arrays(model, sent.arrays)
            weights.append(task.train(model, share, seed * 1000 + number * 100 + i).examples)
            now = copied(model)
            scales = scales_of_step(energies(now, sent, asked))
            if number in of.looked_at and history:
                owed = by_tensor(kept[i])
                for name, scale in scales.items():
                    found = variances(history, name, now[name].shape)
                    if found:
                        v = now[name] - sent.arrays[name] + owed.get(name, {}).get("residual", 0)
                        y = found[0].coefficients(v).reshape(v.shape)
                        yield Coefficients(y, found[1].reshape(v.shape), scale)
            encoder = ChainEncoder(
                chain, round=number, kept=kept[i], sent=sent, history=history, scales=scales
            )
            stream, _ = compress_measured(now, asked, sent, encoder=encoder)
            kept[i] = encoder.left
            arrived.append(decompress(stream, reference=sent, as_numpy=True))
        at = {
            name: np.asarray(np.average([of[name] for of in arrived], 0, weights)).astype(x.dtype)
            for name, x in at.items()
        }


def size(values: NDArray, bound: float) -> int:
    """Return the bytes of a payload."""
    return len(Uniform().encode(np.ascontiguousarray(values), bound))


def in_order(of: Coefficients) -> NDArray:
    """Return a tensor whose rows and columns stand in the order of their variances."""
    x, logs = of.values, np.log2(of.variances)
    for axis in (0, 1):
        others = tuple(i for i in range(x.ndim) if i != axis)
        x = np.take(x, np.argsort(-logs.mean(others), kind="stable"), axis)
    return x


def all_in_order(of: Coefficients) -> NDArray:
    """Return the coefficients in the order of their variances, as a matrix."""
    ordered = of.values.reshape(-1)[np.argsort(-of.variances.reshape(-1), kind="stable")]
    n = ordered.size
    columns = min((c for c in range(1, n + 1) if n % c == 0), key=lambda c: abs(c - COLUMNS))
    return ordered.reshape(-1, columns)


def least(of: Coefficients) -> float:
    """Return the bytes by an adaptive coder that knows the class of each coefficient."""
    numbers = np.abs(np.rint(of.values.reshape(-1) / (2 * of.bound))).astype(np.int64)
    classes = np.rint(np.log2(of.variances.reshape(-1))).astype(np.int64)
    classes -= classes.min()
    bits = float(np.count_nonzero(numbers))
    for beyond in range(int(numbers.max(initial=0)) + 1):
        ones = np.bincount(classes, numbers > beyond)
        bits += sum(map(estimated, np.bincount(classes), ones))
        numbers, classes = numbers[numbers > beyond], classes[numbers > beyond]
    return NEEDED + bits / 8


def estimated(count: int, ones: float) -> float:
    """Return the bits of so many binary decisions by Krichevsky and Trofimov's estimator."""
    if not count:
        return 0.0
    nats = math.lgamma(count + 1) + 2 * math.lgamma(0.5)
    return (nats - math.lgamma(ones + 0.5) - math.lgamma(count - ones + 0.5)) / math.log(2)


def main() -> None:
    """Measure, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    rows = []
    for run in RUNS:
        for seed in range(asked.seeds):
            total: Counter[str] = Counter()
            for of in seen(run, asked.data_dir, seed):
                total["today"] += size(of.values, of.bound)
                total["rows and columns"] += size(in_order(of), of.bound)
                total["all"] += size(all_in_order(of), of.bound)
                total["classes"] += math.ceil(least(of))
            told = {"model": run.model, "feedback": run.chain == FEEDBACK, "seed": seed}
            rows += [
                {**told, "order": k, "bytes": n, "machine": machine()} for k, n in total.items()
            ]
            print(told, dict(total), flush=True)
    pq.write_table(pa.Table.from_pylist(rows), OUT, compression="zstd")


if __name__ == "__main__":
    main()
