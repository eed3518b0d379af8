"""`ecx`: error feedback that extrapolates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.contrib import residual
from fedsz.contrib.residual import RESIDUAL
from fedsz.methods import Shared, State, TensorSpec, Wrapper
from fedsz.methods.base import Coded
from fedsz.methods.combinators import require_contracting
from fedsz.spec_strings import setting

BEFORE: Final = "before"
OWED: Final = "owed"


@dataclass(frozen=True)
class Ecx(Wrapper):
    """ErrorCompensatedX (Tang et al. 2021): the next error is foreseen from the last two.

    With x the tensor, d the error of the last round and d' of the round before it, and e the
    residual, n rounds old:

        e = (1 - smooth) e + smooth (2 d - d');  v = x + decay^n e;  send v;  d = v - decoded(v)

    Without decay, nothing is lost or sent twice. With a smoothing of 0.5, e is d and this is
    `Feedback`, whatever the decay; below, it is a low-pass filter. Above, the error of an element
    that waits grows faster than linearly, and with most methods it never ends: the source's own
    2 d - d', a smoothing of 1, is refused.

    Attributes:
        inner: what codes v.
        decay: of the residual, for each round, 0 to 1.
        smooth: weight of the last two errors, above 0 and up to 0.5.

    Raises:
        ConfigError: a setting is out of range, or ``inner`` is none that `Feedback` takes.
    """

    name = "ecx"
    summary = "error feedback that extrapolates from the errors of the last two rounds"

    decay: float = setting(1.0, 0, 1)
    smooth: float = setting(0.2, 0, 0.5, above=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_contracting(self.inner)

    @property
    def biased(self) -> bool:
        return False

    def init(self, spec: TensorSpec) -> State:
        nothing = np.zeros(spec.shape, spec.dtype)
        return {**residual.init(self.inner, spec), BEFORE: nothing, OWED: nothing}

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        kind, last = x.dtype.type, state[RESIDUAL]
        ahead = 2 * last - state[BEFORE]
        owed = np.asarray(kind(1 - self.smooth) * state[OWED] + kind(self.smooth) * ahead)
        coded, kept, _ = residual.encode(self.inner, x, owed, self.decay, state, shared)
        return coded, {**kept, BEFORE: last, OWED: owed}
