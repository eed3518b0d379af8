"""Error feedback with a residual that the method keeps, for methods that change it."""

from __future__ import annotations

from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods import Shared, State, TensorSpec, Transform
from fedsz.methods.base import Coded, Decoded, dense
from fedsz.methods.state import branch, within

RESIDUAL: Final = "residual"
ROUND: Final = "round"


def init(inner: Transform, spec: TensorSpec) -> State:
    """Return the first residual, its round, and the state of ``inner``."""
    nothing = np.zeros(spec.shape, spec.dtype)
    return {RESIDUAL: nothing, ROUND: np.zeros(1, np.int64), **branch(inner.init(spec))}


def encode(
    inner: Transform, x: NDArray, owed: NDArray, decay: float, state: State, shared: Shared
) -> tuple[Coded, State, Decoded]:
    """Code v = x + decay^n owed, with n the rounds since ``state``.

    Returns:
        The symbols of v, the state after them, whose residual is v - decoded, and decoded.
    """
    age = max(shared.round - int(state[ROUND][0]), 1)
    v = np.asarray(x + x.dtype.type(decay**age) * owed)
    coded, kept = inner.encode(v, within(state), shared)
    chain = inner.sent(shared.spec)
    assert chain is not None
    decoded = chain.decode(coded, shared)
    own = {RESIDUAL: v - dense(decoded), ROUND: np.array([shared.round])}
    return coded, {**own, **branch(kept)}, decoded
