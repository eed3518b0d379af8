"""Error feedback of methods that keep the residual themselves, because they change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods import Chain, Shared, State, TensorSpec, Wrapper
from fedsz.methods.base import Coded, Decoded, dense
from fedsz.spec_strings import setting

RESIDUAL, ROUND = "residual", "round"


@dataclass(frozen=True)
class OwnFeedback(Wrapper):
    """A wrapper whose state has a residual, its round, and other arrays of the tensor's shape.

    Attributes:
        arrays: names of the others.
        decay: of the residual, for each round, 0 to 1.
    """

    feeds_back = True
    arrays: ClassVar[tuple[str, ...]]

    decay: float = setting(1.0, 0, 1)

    def init(self, spec: TensorSpec) -> State:
        nothing = np.zeros(spec.shape, spec.dtype)
        own = dict.fromkeys((RESIDUAL, *self.arrays), nothing) | {ROUND: np.zeros(1, np.int64)}
        return {f"{self.name}.{array}": x for array, x in own.items()}

    def own(self, state: State, array: str) -> NDArray:
        """Return an array of this wrapper's own state."""
        return state[f"{self.name}.{array}"]

    def encode_sum(
        self, inner: Chain, x: NDArray, residual: NDArray, state: State, shared: Shared
    ) -> tuple[Coded, Decoded, State]:
        """Code v = x + decay^n residual, with n the rounds since ``state``.

        Returns:
            The symbols of v, decoded, and the state after them, whose residual is v - decoded.
        """
        age = max(shared.round - int(self.own(state, ROUND)[0]), 1)
        v = np.asarray(x + x.dtype.type(self.decay**age) * residual)
        coded, after = inner.encode(v, state, shared)
        decoded = inner.decode(coded, shared)
        return (
            coded,
            decoded,
            self.changed(after, **{RESIDUAL: v - dense(decoded), ROUND: np.array([shared.round])}),
        )

    def changed(self, state: State, **arrays: NDArray) -> State:
        """Return a state with other arrays of this wrapper."""
        return {**state, **{f"{self.name}.{array}": x for array, x in arrays.items()}}
