"""What a basis that both sides know costs in a round, on one core, and on which links that pays.

    python -m benchmarks.eigen_cost [--model resnet50] [--passes 3] [--clients 100]

Processor time of what the method `eigen` adds for a whole model:

- the products of a broadcast's step, their eigenvectors, the coefficients of an update, and the
  update that has these: each by itself, by the best instruction set and by vectors of 128 bits,
  which is what ARM cores have;
- a client's update with the basis and without, and the link on which sending what the basis saves
  takes as long as that: bits saved a parameter, by docs/results/eigen.parquet, over seconds added a
  parameter. On a faster link the basis makes rounds longer;
- a server's preparation for clients that each hold another old model, with histories and without.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

import numpy as np
import pyarrow.parquet as pq

from benchmarks.measuring import machine
from fedsz.arrays import NDArray
from fedsz.codecs import _eigen
from fedsz.core.broadcast import Broadcast
from fedsz.core.chained import ChainEncoder
from fedsz.core.encode import compress_measured
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.step import energies, scales_of_step
from fedsz.methods import History, parse
from fedsz.methods.eigen import DECAY, axes_of
from fedsz.training import models

ROWS: Final = Path(__file__).parents[1] / "docs" / "results" / "eigen.parquet"
NATURAL: Final = "feedback>uniform@step:1"
BASIS: Final = "feedback>eigen>uniform@step:1"
TASKS: Final[Mapping[str, Mapping[str, object]]] = {
    "cnn, 4 of 4": {"model": "cnn", "clients": 4},
    "cnn, 10 of 100": {"model": "cnn", "clients": 100},
    "gpt": {"model": "gpt"},
}
STEPS: Final = 20  # broadcasts that a server has seen

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the processor seconds that something takes, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def stepped(model: Mapping[str, NDArray], rng: np.random.Generator) -> dict[str, NDArray]:
    """Return a model after a step of which no direction is larger than another."""
    return {k: x + 1e-3 * rng.standard_normal(x.shape, np.float32) for k, x in model.items()}


def bits_saved() -> dict[str, float]:
    """Return bits that the basis saves an update a parameter, by task, of checked-in rows."""
    rows = [row for row in pq.read_table(ROWS).to_pylist() if row["round"]]

    def bits(of: Mapping[str, object]) -> float:
        chosen = [row for row in rows if of.items() <= row.items()]
        return 32 * sum(row["sent_up"] for row in chosen) / sum(row["raw_up"] for row in chosen)

    natural = {"update": "delta+ef", "error_bound": "step:1"}
    return {
        name: bits({**task, **natural}) - bits({**task, "update": BASIS})
        for name, task in TASKS.items()
    }


def one_by_one(before: Reference, now: Reference, level: str) -> dict[str, float]:
    """Return seconds of each computation over all tensors, by an instruction set."""
    spent = dict.fromkeys(("products", "eigenvectors", "coefficients", "back"), 0.0)
    for name, x in now.arrays.items():
        step = (x - before.arrays[name]).reshape(-1)
        for axis in axes_of(x.shape):
            products = np.zeros(axis.squares, np.float32)
            vectors = np.empty_like(products)
            around = partial(_eigen.rotate, step, *axis, vectors)
            works = (
                partial(_eigen.add_products, step, *axis, DECAY, products, level),
                partial(_eigen.eigenvectors, products, axis.length, axis.block, vectors),
                partial(around, False, level),
                partial(around, True, level),
            )
            for what, work in zip(spent, works, strict=True):
                spent[what] += timed(work)[0]
    return spent


def update_seconds(text: str, arrays: Mapping[str, NDArray], sent: Reference) -> float:
    """Return how long a client takes to code an update, the history of its basis included."""
    config = Settings(update=text, threshold=0)
    scales = scales_of_step(energies(arrays, sent, config))
    chain = parse(text)

    def work() -> object:
        encoder = ChainEncoder(chain, sent=sent, history=sent.history, scales=scales)
        return compress_measured(arrays, config, sent, encoder=encoder)

    return timed(work)[0]


def server_seconds(model: Mapping[str, NDArray], clients: int) -> tuple[float, float, int]:
    """Return seconds to prepare for clients, with histories and without; and their old models."""
    rng, found, old = np.random.default_rng(1), [], 0
    for update in (BASIS, NATURAL):
        broadcast = Broadcast(Settings(update=update, downlink="step:0.6", threshold=0))
        held, at = [], dict(model)
        for _ in range(STEPS):
            broadcast.put(at, reference=True)
            assert broadcast.model is not None
            held.append(broadcast.model.digest)
            at = stepped(at, rng)
        asked = (held[:-1] * math.ceil(clients / len(held)))[:clients]
        old = len(set(asked))

        def work(broadcast: Broadcast = broadcast, asked: list[bytes] = asked) -> None:
            broadcast.prepare(asked)
            for digest in asked:
                broadcast.history(digest, b"")

        found.append(timed(work)[0])
    return found[0], found[1], old


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--clients", type=int, default=100)
    asked = parser.parse_args()
    built = models.build(asked.model, num_classes=1000, in_channels=3)
    floats = {k: x.numpy() for k, x in built.state_dict().items() if x.is_floating_point()}
    rng = np.random.default_rng(0)
    before, now = Reference(floats), Reference(stepped(floats, rng))
    update = stepped(now.arrays, rng)
    count = sum(x.size for x in floats.values())
    print(f"{machine()}; {asked.model}, {count / 1e6:.1f} M parameters")
    for level in (_eigen.levels()[-1], _eigen.levels()[0]):
        spent = one_by_one(before, now, level)
        print(f"{level}: " + ", ".join(f"{what} {s:.2f} s" for what, s in spent.items()))

    added = []
    for _ in range(asked.passes):
        grown, history = timed(lambda: History().beyond(before, now))
        with_basis = grown + update_seconds(BASIS, update, now.with_history(history))
        without = update_seconds(NATURAL, update, now)
        added.append(with_basis - without)
        print(f"a client's round: {with_basis:.2f} s with the basis, {without:.2f} s without")
    kept = sum(p.size for p in history.arrays().values())
    print(f"products, and vectors as well, have {kept / count:.3f} numbers a parameter")
    for name, bits in bits_saved().items():
        link = bits * count / median(added) / 1e6
        print(f"{name}: {bits:.3f} bit a parameter saved; that pays below {link:.2f} Mbit/s")
    known, plain, old = server_seconds(floats, asked.clients)
    print(f"{asked.clients} clients of {old} old models: {known:.1f} s, {plain:.1f} s without")


if __name__ == "__main__":
    main()
