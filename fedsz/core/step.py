"""How far a state_dict is from its reference, by tensor and as a whole, and the bounds by that.

With s_t the step of tensor t (its difference from the reference), n_t its elements and RMS the root
mean square, a bound of kind ``step`` is for tensor t

    b_t = K min(S, 4 RMS(s_t)),    S = RMS of all lossy tensors' steps together

One bound for all tensors spends the fewest bytes on a mean squared error. The minimum keeps tensors
that move by decades less from waiting for rounds until their residual reaches the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import LOSSY_DTYPES, NDArray
from fedsz.codecs.spread import energy as energy_of
from fedsz.codecs.spread import energy_between
from fedsz.core.partition import is_lossy
from fedsz.core.reference import Reference, like_in
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
        base = like_in(reference.arrays, name, x)
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


@dataclass(frozen=True)
class UpdateEnergy:
    """How much of an update arrives, in sums of squares over all tensors that may be lossy.

    Attributes:
        step: of the difference between the trained model and the reference model.
        target: of that with the residual of earlier rounds.
        residual: of the part of the target that the receiver lacks.
        tensors: how many these are.
    """

    step: float = 0.0
    target: float = 0.0
    residual: float = 0.0
    tensors: int = 0

    def __add__(self, other: UpdateEnergy) -> UpdateEnergy:
        """Return that of two updates together."""
        return UpdateEnergy(
            self.step + other.step,
            self.target + other.target,
            self.residual + other.residual,
            self.tensors + other.tensors,
        )

    @property
    def fraction(self) -> float:
        """The fraction of the update's energy that arrives, 1 - |v - v'|^2 / |v|^2."""
        return 1.0 - self.residual / self.target if self.target else 1.0

    @property
    def residual_ratio(self) -> float:
        """The norm of the residual over that of the step, |v - v'| / |s|."""
        return math.sqrt(self.residual / self.step) if self.step else 0.0


def root_mean_square(energies: Mapping[str, tuple[int, float]]) -> float:
    """Return that of all elements together; 0 where there are none."""
    count = sum(n for n, _ in energies.values())
    return math.sqrt(sum(energy for _, energy in energies.values()) / count) if count else 0.0


def step_spread(
    before: Mapping[str, NDArray], after: Mapping[str, NDArray], *, rule: str, threshold: int
) -> dict[str, tuple[int, float]]:
    """Return elements and standard deviation of the step that each lossy tensor takes.

    Tensors that are not in both, in one shape, or whose step is not finite are left out. ``rule``
    and ``threshold`` say which are lossy, see `fedsz.core.partition.is_lossy`.
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


def is_step(trained: Mapping[str, NDArray], reference: Reference) -> bool:
    """Say whether an app has replied with its step in place of a model: what is much nearer to 0.

    Args:
        trained: the reply.
        reference: the model; tensors that it lacks say nothing.
    """
    size = distance = 0.0
    for name, x in trained.items():
        start = like_in(reference.arrays, name, x)
        if start is not None and x.dtype in LOSSY_DTYPES:
            some, of_start = (y.reshape(-1)[:LOOK] for y in (x, start))
            size += energy_of(some)
            distance += energy_between(some, of_start)
    return size < NEAR**2 * distance
