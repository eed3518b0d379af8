"""What a basis that both sides know costs a client and a server in a round, on one core.

    python -m benchmarks.eigen_cost [--model resnet50]

Processor time of what the method `eigen` does to a whole model: the products of a broadcast's step,
their eigenvectors, the coefficients of an update, and the update that has these; and how many
numbers each side keeps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from benchmarks.measuring import machine
from fedsz.methods import History
from fedsz.training import models
from fedsz.update.reference import Reference

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the processor seconds that something takes, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    asked = parser.parse_args()
    built = models.build(asked.model, num_classes=1000, in_channels=3)
    floats = {k: x.numpy() for k, x in built.state_dict().items() if x.is_floating_point()}
    rng = np.random.default_rng(0)
    moved = {k: x + 1e-3 * rng.standard_normal(x.shape, np.float32) for k, x in floats.items()}
    before, now = Reference(floats), Reference(moved)
    _ = before.digest, now.digest

    grown, history = timed(lambda: History().beyond(before, now))
    solved, bases = timed(lambda: {k: history.basis(k, x.shape) for k, x in floats.items()})
    known = {k: basis for k, basis in bases.items() if basis}
    turned, values = timed(lambda: {k: b.coefficients(floats[k]) for k, b in known.items()})
    back, _ = timed(lambda: [b.tensor(values[k]) for k, b in known.items()])

    count = sum(x.size for x in floats.values())
    kept = sum(p.size for p in history.arrays().values())
    print(f"{machine()}; {asked.model}, {count / 1e6:.1f} M parameters")
    print(f"products {grown:.2f} s, eigenvectors {solved:.2f} s")
    print(f"coefficients {turned:.2f} s, {4e-6 * count / turned:.0f} MB/s; back {back:.2f} s")
    print(f"products, and vectors as well, have {kept / count:.3f} numbers a parameter")


if __name__ == "__main__":
    main()
