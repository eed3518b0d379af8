"""Which coefficients a round sends, and on which grid: from the plan, the model and the history.

What is not sent stays with the client and is sent in a later round, so that it piles up. With v the
predicted variance of a coefficient, it is sent every T rounds, T a power of two up to `LONGEST`:
the smallest for which v T^2 reaches a threshold that is the same for all. Intervals that are in
proportion to 1 / sqrt(v) have the least sum of v T for a given number of coefficients. Of one T to
another, none has to wait longer than the longer of them. After T rounds sqrt(v) T has piled up if
steps go one way, and the grid is in proportion to that: times a factor of the plan for each class,
those of one T, and for T = 1 those within a factor of four above the threshold, of sixteen, and so
on. For predictions are not right, and clients say by how much in each class.

Whatever decides what is sent is integer arithmetic: of float32 variances the uppermost bits, and
random words for the round of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Layout
from fedsz.codecs import _methods, _stream
from fedsz.errors import ReferenceMismatch
from fedsz.methods.eigen import Basis, History
from fedsz.secagg.scales import is_exact
from fedsz.secagg.token_plan import CLASSES, TokenPlan
from fedsz.secagg.variances import variances

DOUBLINGS: Final = 5
LONGEST: Final = 1 << DOUBLINGS  # rounds between two in which a coefficient is sent

_ABOVE: Final = CLASSES - DOUBLINGS  # classes that are sent in each round

_SHIFT: Final = 20  # keys are float32 without so many lowest bits: 8 in an octave
_QUADRUPLE: Final = 16  # what a key grows by where a variance grows fourfold
_SMALLEST, _LARGEST = 1e-30, 1e30  # variances as keys have them

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sent:
    """What a round sends of one tensor.

    Attributes:
        basis: that its coefficients are of; None if they are its elements.
        where: positions of those that are sent, ascending.
        classes: by position, from 0 to `CLASSES` - 1; of use with a history only.
        grid: by position, the distance between two tokens' values, float64.
    """

    basis: Basis | None
    where: Indices
    classes: Indices
    grid: npt.NDArray[np.float64]

    def positions(self, count: int) -> Indices:
        """Return ``where``; empty, which stands for all, if these are all of ``count``."""
        return self.where[:0] if self.where.size == count else self.where


def select(plan: TokenPlan, layout: Layout, history: History | None) -> dict[str, Sent]:
    """Return what a round sends of each tensor that is not exact.

    Raises:
        ModelMismatch: the plan is for another model.
        ReferenceMismatch: the plan's coefficients are of another history.
    """
    plan.require(layout)
    if plan.history is not None and (history is None or history.digest != plan.history):
        raise ReferenceMismatch("the plan of a secure sum is for another history of broadcasts")
    bases: dict[str, Basis | None] = {}
    spread: dict[str, npt.NDArray[np.float32]] = {}
    for (name, shape), scale in zip(layout.shapes.items(), plan.scales, strict=True):
        if is_exact(name, layout):
            continue
        found = variances(history, name, shape) if plan.history and history else None
        bases[name], relative = found or (None, np.ones(math.prod(shape)))
        np.clip(relative * scale**2, _SMALLEST, _LARGEST, out=relative)
        spread[name] = relative.astype(np.float32)
    if plan.share == 1 and plan.history is None:  # all are above any threshold
        none = np.empty(0, np.int64)
        return {
            name: Sent(None, np.arange(v.size), none, np.sqrt(v.astype(np.float64)) / plan.spread)
            for name, v in spread.items()
        }
    keys = {name: (v.view(np.uint32) >> _SHIFT).astype(np.int32) for name, v in spread.items()}
    threshold = _threshold(keys, plan.share)
    sent, factors = {}, np.array(plan.factors)
    for name, key in keys.items():
        doublings = np.clip(-((key - threshold) // _QUADRUPLE), 0, DOUBLINGS)
        turns = _turns(plan, name, key.size)
        where = np.flatnonzero((turns & ((1 << doublings) - 1)) == 0)
        waits = doublings[where]
        above = np.minimum((key[where] - threshold) // _QUADRUPLE, _ABOVE - 1)
        classes = np.where(waits > 0, _ABOVE - 1 + waits, above).astype(np.int64)
        piled = np.sqrt(spread[name][where].astype(np.float64)) * (1 << waits)
        if plan.history is not None:
            piled *= factors[classes]
        sent[name] = Sent(bases[name], where, classes, piled / plan.spread)
    return sent


def _threshold(keys: Mapping[str, npt.NDArray[np.int32]], share: float) -> int:
    """Return the lowest key that makes no more than a share of all be sent, if there is one."""
    count = np.zeros(1 << (32 - _SHIFT), np.int64)
    for key in keys.values():
        count += np.bincount(key, minlength=count.size)
    (present,) = np.nonzero(count)
    if not present.size:
        return 0
    numbers = count[present]
    wanted = int(share * int(numbers.sum())) << DOUBLINGS
    low, high = int(present[0]), int(present[-1]) + DOUBLINGS * _QUADRUPLE
    for threshold in range(low, high):
        doublings = np.clip(-((present - threshold) // _QUADRUPLE), 0, DOUBLINGS)
        if int((numbers << (DOUBLINGS - doublings)).sum()) <= wanted:
            return threshold
    return high


def _turns(plan: TokenPlan, name: str, count: int) -> npt.NDArray[Any]:
    """Return the number of the round for each coefficient, which counts from one of its own."""
    words = np.empty(count, np.uint64)
    _methods.words(key_of(plan, name), 0, words)
    return (words >> np.uint64(64 - DOUBLINGS)).astype(np.int64) + plan.number


def key_of(plan: TokenPlan, name: str, *numbers: int) -> int:
    """Return what random words are drawn from, 0 to 2^64 - 1."""
    drawn = (n.to_bytes(8, "little") for n in (plan.seed, *numbers))
    return _stream.xxh3_64(b"".join((*drawn, name.encode("utf-8", "surrogatepass"))))
