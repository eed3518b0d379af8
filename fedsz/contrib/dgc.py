"""`dgc`: error feedback of a momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.codecs.spread import energy
from fedsz.contrib.own_feedback import RESIDUAL, OwnFeedback
from fedsz.methods import Chain, Shared, Sparse, State
from fedsz.methods.base import Coded
from fedsz.spec_strings import setting


@dataclass(frozen=True)
class Dgc(OwnFeedback):
    """Deep gradient compression (Lin et al. 2018); its warm-up is a setting of `TopK`.

    With x the tensor, u the momentum and r the residual, n rounds old:

        u = momentum u + clipped(x);  v = u + decay^n r;  send v;  r = v - decoded(v)

    Then u becomes 0 where anything has been decoded (factor masking).

    Attributes:
        decay: of the residual, for each round, 0 to 1.
        momentum: of earlier rounds, 0 to below 1; a step that never changes is sent
            1 / (1 - momentum) times.
        clip: the largest l2 norm of a tensor, in its unit; larger ones are scaled down. 0 for none.

    Raises:
        ConfigError: a setting is out of range.
    """

    name = "dgc"
    summary = "error feedback of a momentum, which ends where it is sent"
    arrays = ("momentum",)

    momentum: float = setting(0.9, 0, 1, below=True)
    clip: float = setting(0.0, 0)

    def encode(self, inner: Chain, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        u = self.own(state, "momentum") * x.dtype.type(self.momentum) + self._clipped(x)
        coded, decoded, after = self.encode_sum(inner, u, self.own(state, RESIDUAL), state, shared)
        if isinstance(decoded, Sparse):
            u.reshape(-1)[decoded.indices] = 0
        else:
            u[decoded != 0] = 0
        return coded, self.changed(after, momentum=u)

    def _clipped(self, x: NDArray) -> NDArray:
        norm = math.sqrt(energy(x))
        if not self.clip or norm <= self.clip:
            return x
        return np.asarray(x * x.dtype.type(self.clip / norm))
