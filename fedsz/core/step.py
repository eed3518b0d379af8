"""How far a state_dict is from its reference, by tensor and as a whole, and what that bounds.

With s_t the step of tensor t (its difference from the reference), n_t its elements and RMS the root
mean square, a bound of kind ``step`` is for tensor t

    b_t = K min(S, 4 RMS(s_t)),    S = RMS of all lossy tensors' steps together

One bound for all tensors spends the fewest bytes on a mean squared error. The minimum keeps those
that move by decades less from waiting for rounds until their residual reaches the bound. What a
quantiser leaves out is spread evenly within the bound, so that error feedback is some K / sqrt(3)
steps behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.codecs.spread import energy_between
from fedsz.core.partition import is_lossy
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings

MOST: Final = 4.0  # root mean squares of its own that bound a tensor's step


def energies(
    state: Mapping[str, NDArray], reference: Reference, config: Settings
) -> dict[str, tuple[int, float]]:
    """Return elements and sum of squares of the step of each tensor that may be lossy.

    Tensors whose step is not finite are left out.

    Raises:
        ConfigError: the reference lacks a tensor, or has it in another shape or dtype.
    """
    found = {}
    for name, x in state.items():
        if x.size and is_lossy(name, x, rule=config.rule, threshold=config.threshold):
            energy = energy_between(x, reference.tensor(name, x))
            if math.isfinite(energy):
                found[name] = x.size, energy
    return found


def bounds_of_step(energies: Mapping[str, tuple[int, float]], config: Settings) -> dict[str, float]:
    """Return the absolute bounds that a config's bound of kind ``step`` means, by tensor.

    Args:
        energies: elements and sum of squares of each tensor's step.
        config: with such a bound; its factors multiply it.

    Returns:
        Bounds above 0; none where nothing moved. A tensor that did not move has K x S.
    """
    scales = scales_of_step(energies)
    bounds = {name: config.bound_of(name).value * scale for name, scale in scales.items()}
    return {name: bound for name, bound in bounds.items() if 0 < bound < math.inf}


def scales_of_step(energies: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Return what a bound of kind ``step`` is multiplied with, by tensor: min(S, 4 RMS(s_t))."""
    whole = root_mean_square(energies)
    own = {name: math.sqrt(energy / count) for name, (count, energy) in energies.items()}
    return {name: min(whole, MOST * rms) if rms else whole for name, rms in own.items()}


@dataclass(frozen=True)
class Arrival:
    """How much of an update arrives, in sums of squares over all tensors that may be lossy.

    Attributes:
        step: of the difference between what was trained and what it was trained from.
        meant: of that with the residual of earlier rounds.
        left: of what the receiver lacks of it.
        tensors: how many these are.
    """

    step: float = 0.0
    meant: float = 0.0
    left: float = 0.0
    tensors: int = 0

    @classmethod
    def of(cls, x: NDArray, base: NDArray, meant: NDArray, decoded: NDArray) -> Arrival:
        """Return that of one tensor.

        Args:
            x: after training.
            base: what it was trained from.
            meant: what was to be sent, with its residual.
            decoded: what its receiver has of that; the same array if it has all of it.
        """
        left = 0.0 if decoded is meant else energy_between(meant, decoded)
        return cls(energy_between(x, base), energy_between(meant, base), left, 1)

    def __add__(self, other: Arrival) -> Arrival:
        """Return that of two records together."""
        return Arrival(
            self.step + other.step,
            self.meant + other.meant,
            self.left + other.left,
            self.tensors + other.tensors,
        )

    @property
    def kept(self) -> float:
        """The share of the update's energy that arrives, 1 - |v - v'|^2 / |v|^2."""
        return 1.0 - self.left / self.meant if self.meant else 1.0

    @property
    def lag(self) -> float:
        """How many rounds a sender is behind that feeds back what is left, |v - v'| / |s|."""
        return math.sqrt(self.left / self.step) if self.step else 0.0


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
