"""How near FetchSGD comes to the minimum of a quadratic, beside a sketch without feedback.

    python -m benchmarks.fetchsgd

The minimum has 20 elements of 2,000 that are not 0. FetchSGD (Rothchild et al. 2020, algorithm 1)
draws its columns once, and the server keeps momentum and error in the sketch: the k elements of the
largest median estimate are applied, and subtracted from the error. `sketch` draws columns anew in
each round, and the server applies all that they decode to. Both send the same bytes up.
"""

from __future__ import annotations

import argparse

import numpy as np

from fedsz.codecs import _methods
from fedsz.codecs.base import flat
from fedsz.methods import Shared, TensorSpec
from fedsz.methods.base import VALUES, dense
from fedsz.methods.settings import Count
from fedsz.methods.sketch import Sketch
from fedsz.methods.top_k import largest

SIZE, HEAVY = 2000, 20
SKETCH = Sketch(columns=Count("100"), rows=5)
SPEC = TensorSpec((SIZE,), name="fc.weight")

# Momentum, share of the way that a step goes, and elements that are applied in a round.
SETTINGS = ((0.0, 0.3, 10), (0.0, 0.03, 10), (0.0, 0.01, 10), (0.9, 0.003, 10), (0.0, 0.003, 2))


def medians(sketch: np.ndarray, shared: Shared) -> np.ndarray:
    """Return the median over rows of each element's column times its sign."""
    rows = np.zeros((SKETCH.rows, SIZE))
    for i, (columns, row) in enumerate(zip(sketch.reshape(SKETCH.rows, -1), rows, strict=True)):
        _methods.add_from_sketch(shared.key(), i * SIZE, flat(columns), row)
    return np.median(rows, axis=0)


def fetchsgd(target: np.ndarray, rounds: int, momentum: float, rate: float, k: int) -> np.ndarray:
    """Return where FetchSGD has gone from 0."""
    shared, w = Shared(SPEC, seed=1), np.zeros_like(target)
    velocity = error = np.zeros(SKETCH.values_spec({}, SPEC).size)
    for _ in range(rounds):
        sent = SKETCH.encode(rate * (target - w), {}, shared)[0][VALUES]
        velocity = momentum * velocity + sent
        error = error + velocity
        estimates, step = medians(error, shared), np.zeros_like(target)
        heavy = largest(estimates, k)
        step[heavy] = estimates[heavy]
        error = error - SKETCH.encode(step, {}, shared)[0][VALUES]
        w += step
    return w


def without_feedback(target: np.ndarray, rounds: int, rate: float) -> np.ndarray:
    """Return where sketches with columns of their own have gone from 0."""
    w = np.zeros_like(target)
    for number in range(rounds):
        shared = Shared(SPEC, seed=1, round=number)
        w += dense(SKETCH.decode(SKETCH.encode(rate * (target - w), {}, shared)[0], shared))
    return w


def main() -> None:
    """Print a table: squared distances to the minimum, over the one at the start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    rounds = parser.parse_args().rounds
    draws = np.random.default_rng(0)
    target = np.zeros(SIZE)
    target[draws.choice(SIZE, HEAVY, replace=False)] = draws.normal(size=HEAVY)
    energy = np.square(target).sum()
    print(f"{'momentum':>10}{'rate':>8}{'k':>5}{'fetchsgd':>12}{'sketch':>12}")
    for momentum, rate, k in SETTINGS:
        reached = fetchsgd(target, rounds, momentum, rate, k)
        beside = without_feedback(target, rounds, rate / (1 - momentum))
        ours, theirs = (np.square(w - target).sum() / energy for w in (reached, beside))
        print(f"{momentum:10g}{rate:8g}{k:5}{ours:12.1e}{theirs:12.1e}")


if __name__ == "__main__":
    main()
