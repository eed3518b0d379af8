"""Error feedback: what compression left out of one round goes into the update of the next.

With x the tensor to send, r the residual, n the rounds that it has waited, and D(C(v)) what v
decodes to (Seide et al. 2014, Karimireddy et al. 2019):

    v = x + decay^n r;  send C(v);  r = v - D(C(v))

The residual is of what is really decoded, so that it holds every error on the way, the codec's and
the rounding of narrow dtypes too. It is kept in the tensor's own dtype. In half precision that
rounds it, by at most 2^-8 of itself in bfloat16 and 2^-11 in float16 (2^-25 where it is subnormal).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray, wide
from fedsz.codecs.spread import energy_between
from fedsz.core.reference import Reference
from fedsz.core.tensors import narrow
from fedsz.methods import State

RESIDUAL: Final = "feedback"  # in the state of a tensor; methods have other names
_TENSOR: Final = "/"  # between the name of a state's array and its tensor, in a store


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

    @classmethod
    def total(cls, energies: Iterable[UpdateEnergy]) -> UpdateEnergy:
        """Return that of several tensors or updates together, the same in whatever order."""
        each = list(energies)
        names = ("step", "target", "residual", "tensors")
        return cls(*(sum(sorted(getattr(one, name) for one in each)) for name in names))

    @property
    def fraction(self) -> float:
        """The fraction of the update's energy that arrives, 1 - |v - v'|^2 / |v|^2."""
        return 1.0 - self.residual / self.target if self.target else 1.0

    @property
    def residual_ratio(self) -> float:
        """The norm of the residual over that of the step, |v - v'| / |s|."""
        return math.sqrt(self.residual / self.step) if self.step else 0.0

    @classmethod
    def of(cls, x: NDArray, start: NDArray, target: NDArray, decoded: NDArray) -> UpdateEnergy:
        """Return that of one tensor; zeros where the step is empty or not finite.

        Args:
            x: the trained tensor.
            start: the reference model's.
            target: the trained one with its residual.
            decoded: what arrives.
        """
        step = energy_between(x, start)
        if not (x.size and math.isfinite(step)):
            return cls()
        wanted = step if target is x else energy_between(target, start)
        return cls(step, wanted, 0.0 if decoded is target else energy_between(target, decoded), 1)


@dataclass(frozen=True)
class Update:
    """What an update depends on beside its arrays.

    Attributes:
        start: the reference model, whether updates are differences from it or not.
        states: by tensor, its residual of earlier rounds and the state of a method. Coding takes
            them out, which saves memory.
        weight: what residuals are multiplied with: decay^n; None without error feedback.
    """

    start: Reference
    states: dict[str, dict[str, NDArray]]
    weight: float | None = None

    def target(self, x: NDArray, residual: NDArray | None) -> NDArray:
        """Return a tensor with its residual, in float64 for float64 and in float32 for others.

        The tensor itself, if it has none, or one of another shape or dtype.
        """
        if residual is None or not self.weight:
            return x
        if (residual.shape, residual.dtype) != (x.shape, x.dtype):
            return x
        target = np.array(residual, wide(x.dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            target *= target.dtype.type(self.weight)
            target += x
        return target

    def waiting(self) -> dict[str, State]:
        """Return the states of tensors that the round has not sent, residuals times the weight."""
        for state in self.states.values():
            residual = state.pop(RESIDUAL, None)
            if residual is not None and self.weight is not None:
                state[RESIDUAL] = residual * residual.dtype.type(self.weight)
        return dict(self.states)

    def with_residual(
        self, state: State, target: NDArray, decoded: NDArray, out: NDArray | None = None
    ) -> State:
        """Return a tensor's state with what its target is above the tensor that arrives.

        Without it where that is nothing, and for a tensor with a NaN or an infinity anywhere: the
        next round starts afresh for it. ``out`` is an array that may hold it.
        """
        if decoded is target:
            return state
        with np.errstate(invalid="ignore", over="ignore"):
            rest = np.subtract(target, decoded, out=out, dtype=wide(decoded.dtype))
        if not (np.isfinite(rest).all() and rest.any()):
            return state
        return {**state, RESIDUAL: narrow(rest, decoded.dtype)}


def flat(states: Mapping[str, State]) -> dict[str, NDArray]:
    """Return the arrays of all tensors' states by one name each, as a store keeps them."""
    return {f"{key}{_TENSOR}{n}": x for n in sorted(states) for key, x in states[n].items()}


def by_tensor(memory: Mapping[str, NDArray]) -> dict[str, dict[str, NDArray]]:
    """Return the state of each tensor, given what `flat` has returned."""
    states: dict[str, dict[str, NDArray]] = {}
    for path, x in memory.items():
        key, _, name = path.partition(_TENSOR)
        states.setdefault(name, {})[key] = x
    return states
