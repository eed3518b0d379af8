"""How far each tensor moves from one model to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedsz.arrays import NDArray
from fedsz.update.partition import is_lossy


def spread(
    before: Mapping[str, NDArray], after: Mapping[str, NDArray], *, rule: str, threshold: int
) -> dict[str, tuple[int, float]]:
    """Return elements and standard deviation of the step that each lossy tensor takes.

    Tensors that are not in both, in one shape, or whose step is not finite are left out.

    Args:
        before: a model.
        after: another; may make its arrays as they are asked for.
        rule: which tensors are lossy, see `fedsz.update.partition.is_lossy`.
        threshold: the same.
    """
    found = {}
    for name, x in after.items():
        base = before.get(name)
        if base is None or base.shape != x.shape:
            continue
        if is_lossy(name, x, rule=rule, threshold=threshold):
            with np.errstate(over="ignore", invalid="ignore"):
                deviation = float(np.std(x.astype(np.float64) - base))
            if math.isfinite(deviation):
                found[name] = x.size, deviation
    return found
