"""Which examples are held out for testing: a fifth, by a seed that is never a run's.

With the run's own seed, a model would be tested on examples that another run trained on.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

TEST_SHARE: Final = 0.2
_SEED: Final = 101


def hold_out(labels: npt.NDArray[Any], *, by_class: bool = True) -> tuple[Ints, Ints]:
    """Return the rows to train with and those to test with, each in a seeded order.

    They are the rows of scikit-learn's `train_test_split`, whose import takes seconds. The two must
    agree: a client of an earlier release would train on what a server tests with.

    Args:
        labels: of the examples, shape (n,).
        by_class: whether both parts have the classes in the same proportions.
    """
    # NumPy never changes what this generator draws (NEP 19).
    rng = np.random.RandomState(_SEED)
    tested = math.ceil(TEST_SHARE * len(labels))
    if not by_class:
        rows = rng.permutation(len(labels))
        return rows[tested:], rows[:tested]
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
    trained = _apportion(counts, len(labels) - tested, rng)
    ends = trained + _apportion(counts - trained, tested, rng)
    shuffled = [rows[rng.permutation(len(rows))] for rows in members]
    train = [rows[:end] for rows, end in zip(shuffled, trained, strict=True)]
    test = [rows[begin:end] for rows, begin, end in zip(shuffled, trained, ends, strict=True)]
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


def _apportion(counts: Ints, total: int, rng: np.random.RandomState) -> Ints:
    """Divide a total in proportion to counts: largest remainders first, and ties by lot."""
    exact = counts / counts.sum() * total
    parts: npt.NDArray[np.float64] = np.floor(exact)
    missing = int(total - parts.sum())
    for remainder in np.unique(exact - parts)[::-1]:
        if not missing:
            break
        (tied,) = np.where(exact - np.floor(exact) == remainder)
        drawn = rng.choice(tied, size=min(len(tied), missing), replace=False)
        parts[drawn] += 1
        missing -= len(drawn)
    return parts.astype(np.int64)
