"""How near FetchSGD comes to the minimum of a quadratic, beside a sketch without feedback.

    python -m benchmarks.fetchsgd

The minimum has a few elements of 2,000 that are not 0. FetchSGD (Rothchild et al. 2020, algorithm
1) draws its columns once, and the server keeps momentum and error in the sketch. The k elements of
the largest median estimate are applied, and subtracted from the error. `sketch` draws columns anew
in each round, and the server applies all that they decode to, with the step over 1 - momentum. Both
send the same bytes up.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np

from fedsz.methods import Shared, TensorSpec
from fedsz.methods.base import VALUES, dense
from fedsz.methods.fetchsgd import SketchedFeedback
from fedsz.methods.settings import Count, Flag
from fedsz.methods.sketch import Sketch

SIZE, ROWS = 2000, 5
SPEC = TensorSpec((SIZE,), np.dtype(np.float64), "fc.weight")


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        columns: of each row of the sketch.
        heavy: elements of the minimum that are not 0.
        momentum: of the server, 0 to below 1.
        rate: share of the way to the minimum that a step goes.
        k: elements that are applied in a round.
    """

    columns: int
    heavy: int
    momentum: float
    rate: float
    k: int

    @property
    def sketch(self) -> Sketch:
        """What clients send."""
        return Sketch(columns=Count(str(self.columns)), rows=ROWS)

    def minimum(self) -> np.ndarray:
        """Return the minimum of the quadratic."""
        draws = np.random.default_rng(0)
        target = np.zeros(SIZE)
        target[draws.choice(SIZE, self.heavy, replace=False)] = draws.normal(size=self.heavy)
        return target


CASES = (
    Case(100, 20, 0.0, 0.3, 10),
    Case(100, 20, 0.0, 0.1, 3),
    Case(100, 20, 0.9, 0.03, 3),
    Case(100, 20, 0.0, 0.003, 2),
    Case(100, SIZE, 0.0, 0.1, 3),
    Case(20, 3, 0.0, 0.12, 1),
    Case(20, 5, 0.0, 0.12, 1),
)


def fetchsgd(case: Case, rounds: int) -> np.ndarray:
    """Return where FetchSGD has gone from 0."""
    server = SketchedFeedback(Count(str(case.k)), case.momentum)
    sketch, shared = replace(case.sketch, fixed=Flag(1)), Shared(SPEC, seed=1)
    target, w = case.minimum(), np.zeros(SIZE)
    for _ in range(rounds):
        sent = sketch.encode(case.rate * (target - w), {}, shared)[0][VALUES]
        w += server.step(sent, sketch, shared).dense()
    return w


def without_feedback(case: Case, rounds: int) -> np.ndarray:
    """Return where sketches with columns of their own have gone from 0."""
    target, w, rate = case.minimum(), np.zeros(SIZE), case.rate / (1 - case.momentum)
    for number in range(rounds):
        shared = Shared(SPEC, seed=1, round=number)
        sent = case.sketch.encode(rate * (target - w), {}, shared)[0]
        w += dense(case.sketch.decode(sent, shared))
    return w


def main() -> None:
    """Print a table: squared distances to the minimum, over the one at the start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    rounds = parser.parse_args().rounds
    heads = ("columns", "heavy", "momentum", "step", "k", "fetchsgd", "sketch")
    print("".join(f"{head:>11}" for head in heads))
    for case in CASES:
        reached = fetchsgd(case, rounds), without_feedback(case, rounds)
        target = case.minimum()
        shares = (np.square(w - target).sum() / np.square(target).sum() for w in reached)
        settings = (case.columns, case.heavy, case.momentum, case.rate, case.k)
        print("".join(f"{x:11g}" for x in settings) + "".join(f"{x:11.1e}" for x in shares))


if __name__ == "__main__":
    main()
