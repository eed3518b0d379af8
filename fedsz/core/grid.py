"""Models as points of a lattice, so that differences between them add up exactly.

A tensor b_t of the model that clients hold after broadcast t is

    b_t = q_0 m_0 + q_1 m_1 + ... + q_t m_t

with arrays of integers m and steps q that have few bits. As long as float32 holds each b_t, so it
does each sum on the way: no order of adding rounds. So any number of broadcasts is one array of
integers, in units of what their steps have in common, and leads to the same model, to the bit.

A tensor is on no lattice if it is not float32, is not finite, or has a bound so far below its
elements that float32 does not hold all points. It goes from model to model as ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np

from fedsz.arrays import NDArray, flat
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, _methods
from fedsz.codecs.base import FLOAT32, Residual
from fedsz.codecs.uniform import Uniform
from fedsz.core.encoder import hardly_saves
from fedsz.core.feedback import ErrorFeedback
from fedsz.core.lossless import Entry
from fedsz.core.partition import is_lossy
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.stream import DIFFERENCE, VALUES, Part

STEP_BITS: Final = 4  # of a first step: it is at most an eighth below twice the bound
UNTRAINED: Final = ErrorBound.rel(1 / 16)  # eight levels of what is chance train as well
FEW: Final = 1 / 64  # of the elements on lattices, as many may leave them, and go on as others do
FINE: Final = 20  # bits of the largest element of a tensor that no bound places
# The same of a first model that both sides hold. Float32 has 24: where elements become more than 64
# times as large, it lacks points, and the whole model is sent.
FIRST: Final = 18

Grid = Mapping[str, float]  # by tensors on it, the steps that lead to a model; 0 if none moved


@dataclass(frozen=True)
class Placed:
    """The tensors of a model that are on a lattice, and their steps.

    Attributes:
        points: what each of them becomes.
        left: what is left out of those that are not what they were, if that was asked for.
        grid: what each has moved by multiples of; or is a multiple of, without a model before.
        overflows: elements of tensors that have left the lattice that they were on: now, if they
            fit one of their own, or before.
    """

    points: Mapping[str, NDArray]
    left: Mapping[str, NDArray]
    grid: Grid
    overflows: int

    @property
    def is_outgrown(self) -> bool:
        """Whether so many elements have left their lattices that all are to begin on new ones."""
        return self.overflows > FEW * sum(x.size for x in self.points.values())

    def beside(self, other: Placed) -> Placed:
        """Return these, and others of which nothing is left, on a lattice of their own."""
        points, grid = {**self.points, **other.points}, {**self.grid, **other.grid}
        return replace(self, points=points, grid=grid)


def place(
    meant: ErrorFeedback,
    bounds: Mapping[str, float],
    before: Reference | None = None,
    earlier: Sequence[Grid] = (),
    *,
    leaves: bool = False,
) -> Placed:
    """Return the lattice points nearest to tensors, within their bounds.

    Args:
        meant: the model to be sent, with what earlier rounds have left out.
        bounds: by the names of tensors that may be lossy, the absolute error; 0 if there is none.
        before: what its receivers hold; without it, points are multiples of a step.
        earlier: the steps that led there, from those of a key frame on.
        leaves: whether to return what is left out.
    """
    points: dict[str, NDArray] = {}
    left: dict[str, NDArray] = {}
    grid: dict[str, float] = {}
    overflows = 0
    for name, bound in bounds.items():
        x, residual = meant.plain(name), meant.residual(name)
        if x.dtype != FLOAT32 or not x.size:
            continue
        if before and name not in earlier[-1]:
            overflows += x.size * (name in earlier[0])
            continue
        base = before.tensor(name, x) if before else None
        like = earlier[-1][name] if before and len(earlier) > 1 else 0.0
        if not bound:
            x, residual = meant[name], None
        step = step_below(2 * bound, like) if bound else (like or fine_step(x))
        rest = np.empty(x.shape, FLOAT32) if leaves and bound else None
        point = nearest(x, step, base, residual, rest)
        if point is None and bound and base is not None:
            overflows += x.size * (nearest(x, step, None, residual) is not None)
        if point is not None and (bound or np.array_equal(point, x)):
            points[name], grid[name] = point, step
            if rest is not None and rest.any():
                left[name] = rest
    return Placed(points, left, grid, overflows)


def place_first(state: Mapping[str, NDArray], config: Settings) -> Placed:
    """Return the points of a model that both sides hold, hardly moved and the same everywhere."""
    lossy = {
        name: fine_step(x, FIRST) / 2
        for name, x in state.items()
        if is_lossy(name, x, rule=config.rule, threshold=config.threshold)
    }
    return place(ErrorFeedback(state, {}), lossy)


def bounds_of(
    meant: ErrorFeedback,
    named: Mapping[str, float],
    config: Settings,
    before: Reference | None,
) -> dict[str, float]:
    """Return the absolute bound of each tensor that may be lossy; 0 where nothing may move.

    It is that in ``named``, or else the config's.
    """
    bounds = {}
    for name in meant:
        if not is_lossy(name, meant.plain(name), rule=config.rule, threshold=config.threshold):
            continue
        if name in named:
            bounds[name] = named[name]
            continue
        x, own = meant[name], config.bound_of(name)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = x - before.tensor(name, x) if before and own.kind == "std" else x
        bounds[name] = own.absolute(moved)
    return bounds


def bounds_of_chance(state: Mapping[str, NDArray]) -> dict[str, float]:
    """Return the absolute bounds of an untrained model's weights of two dimensions or more."""
    weights = {name: x for name, x in state.items() if x.ndim > 1 and x.dtype.kind == "f"}
    return {name: UNTRAINED.absolute(x) for name, x in weights.items()}


def step_below(most: float, like: float = 0.0) -> float:
    """Return the largest step up to ``most``, which is above 0.

    It is a power of two times ``like``, or a number of `STEP_BITS` bits.
    """
    if not like:
        fraction, exponent = math.frexp(most)
        return math.ldexp(math.floor(fraction * 2**STEP_BITS), exponent - STEP_BITS)
    _, octaves = math.frexp(most / like)
    step = math.ldexp(like, octaves - 1)
    return step if step <= most else step / 2


def fine_step(x: NDArray, bits: int = FINE) -> float:
    """Return a power of two that leaves so many bits to the largest element of a finite tensor."""
    largest = float(np.abs(x).max(initial=0.0))
    return math.ldexp(1.0, math.frexp(largest)[1] - bits) if 0 < largest < math.inf else 1.0


def nearest(
    x: NDArray,
    step: float,
    base: NDArray | None = None,
    residual: Residual | None = None,
    left: NDArray | None = None,
) -> NDArray | None:
    """Return base, or zero, plus the multiples of ``step`` that are nearest to a float32 tensor.

    None where float32 does not hold them all, and where float64 does not tell them apart.

    Args:
        x: the tensor.
        step: above 0.
        base: float32, of its shape.
        residual: of its dtype and shape; it is added to ``x``.
        left: where the rest goes, likewise; contiguous. What is in it says nothing beside None.
    """
    point, nothing = np.empty(x.shape, FLOAT32), np.empty(0, FLOAT32)
    weight, added = (residual.weight, flat(residual.x)) if residual else (1.0, nothing)
    start = nothing if base is None else flat(base)
    rest = nothing if left is None else left.reshape(-1)
    sides = flat(x), added, weight, start, step, point.reshape(-1), rest
    return point if _methods.nearest_points(*sides) else None


def common_grid(grids: Iterable[Grid]) -> dict[str, float]:
    """Return the largest steps of which those of all grids are multiples, where all have one."""
    known = list(grids)
    names = set.intersection(*map(set, known)) if known else set()
    return {name: _common({grid[name] for grid in known}) for name in names}


def _common(steps: Iterable[float]) -> float:
    exact = [Fraction(step) for step in steps]
    units = max(step.denominator for step in exact)  # powers of two, of which the largest will do
    return math.gcd(*(int(step * units) for step in exact)) / units


def encode_point(
    entry: Entry, step: float, codec: Codec, reference: Reference | None
) -> Part | None:
    """Code a tensor exactly, in multiples of ``step``: its own, or of what it is above a reference.

    None where that would hardly save anything, or is not exact. It is float32.
    """
    if not isinstance(codec, Uniform):
        return None
    x = entry.x
    base = reference.tensor(entry.name, x) if reference else None
    if base is not None and not _methods.comes_back(flat(x), flat(base)):
        return None
    payload = codec.encode_multiples(x, base, step)
    if hardly_saves(payload, x):
        return None
    transform = VALUES if base is None else DIFFERENCE
    return Part(codec.wire_id, payload, step / 2, (entry.i,), transform)
