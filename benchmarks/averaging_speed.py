"""How long a server takes to check, decode and add up a round's replies, beside Flower's FedAvg.

    taskset -c 0 python benchmarks/averaging_speed.py [--replies 40] [--megabytes 8]
        [--bound step:1 | --chain 'topk:k=1%>ternary'] [--passes 15]

Each reply is a step of its own from the model that the server sent. Its rows and columns have
scales of their own; around those it falls off as Laplace's distribution does. fedsz gets it as a
client seals it that policy `auto` steers: as a difference, within a bound of kind ``step``; or with
``--chain`` by methods without state. Flower gets the model as it is, in the same memory. A pass is
all that happens from the received records to the mean:

- fedsz: header, checksums, decoding, the norm of each reply, the sum, the reference, the mean;
- Flower: `aggregate_arrayrecords`, which reads each array and multiplies and adds it.

`--replies 1000 --megabytes 10 --passes 1` is a large fleet; Flower's replies take 10 GB then. At
most 40 of the replies differ, the others are copies in memory of their own.

Memory is the growth of the process's peak (VmHWM) in a pass before, and what the server must hold
beside it: Flower's FedAvg all replies, fedsz one after the other. Linux only.

Passes alternate, on one thread. Times are of the processor, which count no waiting for others. A
ratio is the median of those of passes side by side, with an interval of 95 % for it. The mean is
compared with that of the decoded replies before anything is timed.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from measuring import forget_peak, interval, memory

from fedsz.arrays import NDArray
from fedsz.core.encode import compress
from fedsz.core.reference import Reference
from fedsz.flower.mean import Mean
from fedsz.flower.records import sealed, to_record
from fedsz.flower.update import Update

SHAPES = {
    "conv1.weight": (64, 3, 3, 3),
    "conv2.weight": (128, 64, 3, 3),
    "conv3.weight": (256, 128, 3, 3),
    "conv4.weight": (256, 256, 3, 3),
    "norm.weight": (256,),
    "norm.bias": (256,),
    "hidden.weight": (512, 1024),
    "head.weight": (10, 512),
    "head.bias": (10,),
}
WIDE = "wide.weight"  # of 1024 columns, and as many rows as the size asks for
SCALES = 0.3  # standard deviation of the logarithms of rows' and columns' scales
STEP = 1e-3  # the deviation of steps, of weights that have 0.05
KEY = "num-examples"
DISTINCT = 40  # replies


def shapes_of(megabytes: float) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model of about so many MB of float32, with convolutions from 5 on."""
    rest = int(megabytes * 1e6 / 4) - sum(map(math.prod, SHAPES.values()))
    return {**SHAPES, WIDE: (max(rest // 1024, 1), 1024)}


def step(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    """Return a step whose rows and columns have scales of their own."""
    x = rng.laplace(scale=STEP / math.sqrt(2), size=shape)
    if len(shape) > 1:
        rows, columns = (
            rng.normal(scale=SCALES, size=shape[0]),
            rng.normal(scale=SCALES, size=shape[1]),
        )
        scales = np.exp(rows[:, None] + columns)
        x *= scales.reshape(scales.shape + (1,) * (len(shape) - 2))
    return x.astype(np.float32)


class Round:
    """What both servers receive in a round."""

    def __init__(self, megabytes: float, replies: int, bound: str, chain: str | None) -> None:
        rng = np.random.default_rng(0)
        model = {
            name: rng.normal(scale=0.05, size=shape).astype(np.float32)
            for name, shape in shapes_of(megabytes).items()
        }
        self.reference = Reference(model)
        self.weights = [float(w) for w in rng.integers(100, 1000, replies)]
        self.raw_bytes = sum(x.nbytes for x in model.values())
        self.sealed: list[ArrayRecord] = []
        self.plain: list[RecordDict] = []
        for weight in self.weights[:DISTINCT]:
            trained = {name: x + step(rng, x.shape) for name, x in model.items()}
            coded = compress(trained, bound, reference=self.reference, chain=chain)
            self.sealed.append(sealed(coded))
            metrics = MetricRecord({KEY: weight})
            self.plain.append(RecordDict({"arrays": to_record(trained), "metrics": metrics}))
        repeated = zip(itertools.cycle(range(DISTINCT)), self.weights[DISTINCT:], strict=False)
        for i, weight in repeated:
            self.sealed.append(copied(self.sealed[i]))
            arrays, metrics = copied(self.plain[i].array_records["arrays"]), {KEY: weight}
            records = {"arrays": arrays, "metrics": MetricRecord(metrics)}
            self.plain.append(RecordDict(records))

    @property
    def ratio(self) -> float:
        """How many times smaller replies are than models."""
        sent = sum(len(a.data) for record in self.sealed for a in record.values())
        return len(self.sealed) * self.raw_bytes / sent

    def fedsz(self) -> ArrayRecord:
        """Do what a server does that gets sealed replies."""
        mean = Mean()
        for record, weight in zip(self.sealed, self.weights, strict=True):
            opened = self.opened(record)
            terms = opened.terms()
            update = opened.measured(terms)
            mean.add(update, terms, weight, update.scale)
        return mean.result()

    def opened(self, record: ArrayRecord) -> Update:
        """Return a checked reply to an exact broadcast."""
        return Update.open(record, model=self.reference.arrays, reference=self.reference)

    def decoded(self) -> dict[str, NDArray]:
        """Return the mean of the replies, each decoded whole."""
        total = sum(self.weights)
        mean = {name: np.zeros(x.shape) for name, x in self.reference.arrays.items()}
        for record, weight in zip(self.sealed, self.weights, strict=True):
            for name, x in self.opened(record).arrays().items():
                mean[name] += weight / total * x
        return mean

    def flower(self) -> ArrayRecord:
        """Do what Flower's FedAvg does."""
        return aggregate_arrayrecords(self.plain, KEY)


def copied(record: ArrayRecord) -> ArrayRecord:
    """Return a record with memory of its own."""
    return ArrayRecord(
        {
            name: Array(a.dtype, a.shape, a.stype, bytes(memoryview(a.data)))
            for name, a in record.items()
        }
    )


def growth(work: Callable[[], Any]) -> float:
    """Return by how many MB the memory of this process grows at most while it works."""
    ctypes.CDLL(None).malloc_trim(0)  # what others have freed must not be there to be used
    before = memory("VmRSS")
    forget_peak()
    work()
    return memory("VmHWM") - before


def passes(works: list[Callable[[], Any]], count: int) -> list[list[float]]:
    """Return the processor time of each work in each of ``count`` passes, after one not counted."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(count + 1):
        for work, times in zip(works, taken, strict=True):
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
    return [times[1:] for times in taken]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--replies", type=int, default=40)
    parser.add_argument("--megabytes", type=float, default=8.0, help="of a reply as it is")
    parser.add_argument("--bound", default="step:1")
    parser.add_argument("--chain", help="of methods, in place of the bound")
    parser.add_argument("--passes", type=int, default=15)
    options = parser.parse_args()
    case = Round(options.megabytes, options.replies, options.bound, options.chain)
    nbytes = options.replies * case.raw_bytes
    largest = max(sum(len(a.data) for a in record.values()) for record in case.sealed)
    memory = {
        "flower_MB": round(nbytes / 1e6 + growth(case.flower)),
        "fedsz_MB": round(largest / 1e6 + growth(case.fedsz)),
    }
    ours, theirs = case.fedsz(), case.decoded()
    apart = max(float(np.abs(ours[name].numpy() - x).max()) for name, x in theirs.items())
    assert apart < 1e-2 * STEP, f"the means lie {apart} apart"

    flower, fedsz = passes([case.flower, case.fedsz], options.passes)
    ratios = [a / b for a, b in zip(flower, fedsz, strict=True)]
    print(
        json.dumps(
            {
                "smaller": round(case.ratio, 1),
                "flower_ms": round(1e3 * statistics.median(flower), 1),
                "fedsz_ms": round(1e3 * statistics.median(fedsz), 1),
                "flower_GB/s": round(nbytes / statistics.median(flower) / 1e9, 2),
                "fedsz_GB/s": round(nbytes / statistics.median(fedsz) / 1e9, 2),
                "times_as_fast": round(statistics.median(ratios), 2),
                **memory,
                "interval": [round(v, 2) for v in interval(ratios)],
            }
        )
    )


if __name__ == "__main__":
    main()
