"""Models of clients on lattices that are staggered, so that their errors cancel in the mean.

A mean of updates depends, to first order, on the mean of the models that training began with. If
these are points of n lattices of step q, each shifted by q / n against the one before, the mean of
the points nearest to any x is as near to it as a point of a lattice of step q / n. So clients can
be sent much coarser models for the same error of what they make together; each alone trains from a
model that is off by as much as its own lattice is coarse. Quantisers with shifts that sender and
receiver know are dithered ones (Schuchman 1964); here shifts stay, so that what does not move takes
no bytes.

A tensor of lattice k lies at a + o_k(q) + q Z, with a its element in the anchor, the model from
which lattices parted. Elements that are as in the anchor stay there. Steps are q = 5 m 2^e, with
1/2 <= m < 1, and o_k(q) = m 2^e (k 2^-e mod 5): as 2 is prime to 5, shifts are spread evenly at any
e, and the lattice of step 2 q is part of the one of step q.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.codecs.base import FLOAT32
from fedsz.core.grid import Placed, nearest, step_below
from fedsz.core.reference import Reference

LATTICES: Final = 5
MOST: Final = 4.0  # times as coarse as one lattice for all: each client trains from its own model
OFF: Final = -1.0  # in place of a step, of a tensor that is on no lattice of these any more


def shift_of(lattice: int, step: float) -> float:
    """Return what a lattice of a step is shifted by: a whole number of fifths of it, below 1."""
    unit = step / LATTICES
    _, exponent = math.frexp(unit)
    return unit * (lattice * pow(2, -exponent, LATTICES) % LATTICES)


def widening(weights: Mapping[int, float]) -> float:
    """Return how many times as coarse lattices may be, for the mean to be as exact as with one.

    With p the shares of the weights, errors of two lattices being correlated by -1/5 on average
    (1 - 6 s (1 - s) for shifts of s steps, over all s but 0), the error of the mean has
    sum(p^2) - (1 - sum(p^2)) / 5 of the energy that one of them has.

    Args:
        weights: of the clients on each lattice, together.
    """
    total = sum(weights.values())
    if not 0 < total < math.inf:
        return 1.0
    same = sum((weight / total) ** 2 for weight in weights.values())
    return min(1 / math.sqrt(same - (1 - same) / LATTICES), MOST)


@dataclass(frozen=True)
class Staggered:
    """Where the models of one lattice lie.

    Attributes:
        lattice: its number, below `LATTICES`.
        anchor: the model from which lattices parted.
        steps: of the last points, by tensor; those that are not in it are as in the anchor. `OFF`
            of one that does not lie on the lattice any more.
    """

    lattice: int
    anchor: Reference
    steps: Mapping[str, float] = field(default_factory=dict)

    def place(
        self, model: Mapping[str, NDArray], bounds: Mapping[str, float], before: Reference
    ) -> tuple[Placed, Staggered]:
        """Return the points nearest to tensors within bounds, and where models lie after them.

        Tensors that float32 does not have there are left out.

        Args:
            model: to be sent.
            bounds: absolute, by tensor; one of 0 keeps a tensor off the lattice.
            before: what receivers hold.
        """
        points: dict[str, NDArray] = {}
        grid: dict[str, float] = {}
        steps = dict(self.steps)
        for name, bound in bounds.items():
            x, anchor, last = model[name], self.anchor.arrays.get(name), steps.get(name, 0.0)
            if x.dtype != FLOAT32 or not x.size or last == OFF or anchor is None:
                continue
            if anchor.shape != x.shape or anchor.dtype != x.dtype:
                continue
            if not last and np.array_equal(x, anchor):  # what does not train stays where it is
                points[name], grid[name] = before.tensor(name, x), 0.0
                continue
            point = None
            if bound:
                step = LATTICES * step_below(2 * bound / LATTICES, last / LATTICES)
                point = self._nearest(x, anchor, step, known=step == last)
            if point is None:
                steps[name] = OFF
                continue
            unit = min(step, last) if last else step / LATTICES
            still = x == anchor
            if still.any():  # what is pruned, or does not train, stays there
                point[still] = anchor[still]
            if last and not np.array_equal(still, before.tensor(name, x) == anchor):
                unit /= LATTICES  # for what leaves the anchor, or is back
            points[name], steps[name], grid[name] = point, step, unit
        return Placed(points, {}, grid, overflows=0), replace(self, steps=steps)

    def _nearest(self, x: NDArray, anchor: NDArray, step: float, *, known: bool) -> NDArray | None:
        """Return the nearest points; ``known`` if the lattice is known to be one of float32."""
        shift = FLOAT32.type(shift_of(self.lattice, step))
        with np.errstate(over="ignore", invalid="ignore"):
            base = anchor + shift
            # Exactly the sum if and only if both come back (Knuth's TwoSum).
            if not known and not (
                np.array_equal(base - shift, anchor) and bool((base - anchor == shift).all())
            ):
                return None
        return nearest(x, step, base)
