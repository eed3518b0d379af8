"""How far a state_dict is from its reference, and the bounds by that.

With s_t the step of tensor t (its difference from the reference), n_t its elements and RMS the root
mean square, a bound of kind ``step`` is for tensor t

    b_t = K min(S, 4 RMS(s_t)),    S = RMS of all lossy tensors' steps together

One bound for all tensors spends the fewest bytes on a mean squared error. The minimum keeps tensors
that move by decades less from waiting for rounds until their residual reaches the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from fedsz.arrays import LOSSY_DTYPES, NDArray
from fedsz.codecs.spread import energy as energy_of
from fedsz.codecs.spread import energy_between
from fedsz.core.partition import is_lossy
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings

MOST: Final = 4.0  # root mean squares of its own step that bound a tensor
NEAR: Final = 0.5  # times as far from 0 as from the reference model, at most: a step
LOOK: Final = 1 << 16  # elements of a tensor that tell


def energies(
    state: Mapping[str, NDArray], reference: Reference, settings: Settings
) -> dict[str, tuple[int, float]]:
    """Return elements and sum of squares of the step of each tensor that may be lossy.

    Tensors that the reference lacks, or whose step is not finite, are left out.
    """
    found = {}
    for name, x in state.items():
        base = reference.like(name, x)
        if base is None or not x.size:
            continue
        if is_lossy(name, x, rule=settings.rule, threshold=settings.threshold):
            energy = energy_between(x, base)
            if math.isfinite(energy):
                found[name] = x.size, energy
    return found


def bounds_of_step(
    energies: Mapping[str, tuple[int, float]], settings: Settings, bound_value: float | None = None
) -> dict[str, float]:
    """Return the absolute bounds that a bound of kind ``step`` stands for, by tensor.

    Args:
        energies: elements and sum of squares of each tensor's step.
        settings: whose factors multiply the bound.
        bound_value: K; by default that of the settings' error bound.

    Returns:
        Bounds above 0; none where nothing moved. A tensor that did not move has K x S.
    """
    value = settings.bound.value if bound_value is None else bound_value
    scales = scales_of_step(energies)
    bounds = {
        name: value * settings.factors.get(name, 1.0) * scale for name, scale in scales.items()
    }
    return {name: bound for name, bound in bounds.items() if 0 < bound < math.inf}


def scales_of_step(energies: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Return what a bound of kind ``step`` is multiplied with, by tensor: min(S, 4 RMS(s_t))."""
    whole = root_mean_square(energies)
    own = {name: math.sqrt(energy / count) for name, (count, energy) in energies.items()}
    return {name: min(whole, MOST * rms) if rms else whole for name, rms in own.items()}


def root_mean_square(energies: Mapping[str, tuple[int, float]]) -> float:
    """Return that of all elements together; 0 where there are none."""
    count = sum(n for n, _ in energies.values())
    return math.sqrt(sum(energy for _, energy in energies.values()) / count) if count else 0.0


def is_step(trained: Mapping[str, NDArray], reference: Reference) -> bool:
    """Say whether an app has replied with its step in place of a model: what is much nearer to 0.

    Args:
        trained: the reply.
        reference: the model; tensors that it lacks say nothing.
    """
    size = distance = 0.0
    for name, x in trained.items():
        start = reference.like(name, x)
        if start is not None and x.dtype in LOSSY_DTYPES:
            some, of_start = (y.reshape(-1)[:LOOK] for y in (x, start))
            size += energy_of(some)
            distance += energy_between(some, of_start)
    return size < NEAR**2 * distance
