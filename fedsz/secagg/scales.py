"""How large clients' updates will be, by what the server has seen; of each tensor one number.

For a tensor that is rounded to a grid it is the elements' root mean square, as clients have them to
send: at first a share of the weights' own, and after each round what clients say of it in the sum.
For an exact tensor it is how far an element may move.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from fedsz.arrays import Layout, NDArray
from fedsz.codecs.spread import energy
from fedsz.core.partition import PARAMETERS, is_lossy

_STEP: Final = 0.1  # of the weights' root mean square: the first step, by guess
_LEAST: Final = 0.1  # of that over all tensors: for those that begin with zeros
_WHOLE: Final = float(1 << 16)  # that whole numbers may move, such as counters
_ROOM: Final = 8.0  # times the largest element that running statistics may move
_FURTHER: Final = 1.0  # that they may move beyond that
_SLOWEST: Final = 0.2  # that a scale is multiplied with after a round, at least
_FARTHEST: Final = 100.0  # times the first guess, whatever clients have said
_SMALLEST: Final = 1e-15  # or the scale of a tensor that does not train would become 0


def is_exact(name: str, layout: Layout) -> bool:
    """Say whether a tensor goes exactly, in wide numbers: all but floating-point parameters."""
    x = np.broadcast_to(np.zeros((), layout.dtypes[name]), layout.shapes[name])
    return not is_lossy(name, x, rule=PARAMETERS, threshold=0)


def scales_of(
    arrays: Mapping[str, NDArray], before: Mapping[str, float] | None = None
) -> tuple[float, ...]:
    """Return the scales of a round's plan.

    Args:
        arrays: the model that clients begin with.
        before: what `Sum.scales` said after the last round; None before the first.
    """
    layout, known = Layout.of(arrays), before or {}
    sizes = {
        name: energy(x, double=True) for name, x in arrays.items() if not is_exact(name, layout)
    }
    elements = sum(arrays[name].size for name in sizes)
    finite = [size for size in sizes.values() if math.isfinite(size)]
    whole = math.sqrt(sum(finite) / elements) if elements else 0.0
    found = []
    for name, x in arrays.items():
        if name not in sizes:
            whole_numbers = x.dtype.kind in "iub"
            found.append(_WHOLE if whole_numbers else _ROOM * _largest(x) + _FURTHER)
            continue
        rms = math.sqrt(sizes[name] / x.size) if math.isfinite(sizes[name]) else whole
        guess = _STEP * max(rms, _LEAST * whole) or _STEP
        scale = min(known.get(name, guess), _FARTHEST * guess)
        found.append(max(scale, _SMALLEST))
    return tuple(found)


def growth(energy: float) -> float:
    """Return what a scale is multiplied with where tokens had so much of the expected energy."""
    return max(math.sqrt(energy), _SLOWEST)


def _largest(x: NDArray) -> float:
    """Return the largest absolute value of the finite elements, 0 of none."""
    values = np.abs(x.astype(np.float64)).reshape(-1)
    return float(values[np.isfinite(values)].max(initial=0.0))
