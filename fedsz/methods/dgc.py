"""`dgc`: error feedback of a momentum that is forgotten where it has been sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.errors import ConfigError
from fedsz.methods.base import Parts, Shared, Sparse, State, TensorSpec
from fedsz.methods.combinators import Feedback
from fedsz.spread import energy

MOMENTUM: Final = "momentum"


@dataclass(frozen=True)
class Dgc(Feedback):
    """Deep gradient compression (Lin et al. 2018); its warm-up is a setting of `TopK`.

    With x the tensor, u the momentum and r the residual, n rounds old:

        u = momentum u + clipped(x);  v = u + decay^n r;  send v;  r = v - decoded(v)

    Then u becomes 0 where anything has been decoded (factor masking).

    Attributes:
        inner: what codes v.
        decay: of the residual, for each round, 0 to 1.
        momentum: of earlier rounds, 0 to below 1; a step that never changes is sent
            1 / (1 - momentum) times.
        clip: the largest l2 norm of a tensor, in its unit; larger ones are scaled down. 0 for none.

    Raises:
        ConfigError: a setting is out of range, or ``inner`` is none that `Feedback` takes.
    """

    name = "dgc"
    summary = "error feedback of a momentum, which ends where it is sent"

    momentum: float = 0.9
    clip: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"dgc momentum must lie in 0 to below 1, got {self.momentum}")
        if not 0 <= self.clip < math.inf:
            raise ConfigError(f"dgc clip must be finite, from 0, got {self.clip}")

    def init(self, spec: TensorSpec) -> State:
        return {**super().init(spec), MOMENTUM: np.zeros(spec.shape, spec.dtype)}

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:
        u = state[MOMENTUM] * x.dtype.type(self.momentum) + self._clipped(x)
        parts, after = super().encode(u, state, shared)
        decoded = self.inner.decode(parts, shared)
        if isinstance(decoded, Sparse):
            u.reshape(-1)[decoded.indices] = 0
        else:
            u[decoded != 0] = 0
        return parts, {**after, MOMENTUM: u}

    def _clipped(self, x: NDArray) -> NDArray:
        norm = math.sqrt(energy(x))
        if not self.clip or norm <= self.clip:
            return x
        return np.asarray(x * x.dtype.type(self.clip / norm))
