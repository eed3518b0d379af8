"""`ecx`: error feedback that extrapolates from the errors of the last two rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray
from fedsz.errors import ConfigError
from fedsz.methods.base import Parts, Shared, State, TensorSpec
from fedsz.methods.combinators import RESIDUAL, Feedback

BEFORE, OWED = "before", "owed"
MOST: Final = 0.5  # more diverges


@dataclass(frozen=True)
class Ecx(Feedback):
    """ErrorCompensatedX (Tang et al. 2021): the next error is foreseen from the last two.

    With x the tensor, d the error of the last round and d' of the round before it, and e what is
    owed, n rounds old:

        e = (1 - smooth) e + smooth (2 d - d');  v = x + decay^n e;  send v;  d = v - decoded(v)

    Without decay, nothing is lost or sent twice. With a smoothing of 0.5, e is d and this is
    `Feedback`, whatever the decay; below, it is a low-pass filter. Above, the error of an element
    that waits grows faster than linearly, and with most parts it never ends: the source's own
    2 d - d', a smoothing of 1, is refused.

    Attributes:
        inner: what codes v.
        decay: of what is owed, for each round, 0 to 1.
        smooth: weight of the last two errors, above 0 and up to 0.5.

    Raises:
        ConfigError: a setting is out of range, or ``inner`` is none that `Feedback` takes.
    """

    name = "ecx"
    summary = "error feedback that extrapolates from the errors of the last two rounds"

    smooth: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.smooth <= MOST:
            raise ConfigError(f"ecx smooth must lie above 0, up to {MOST}, got {self.smooth}")

    def init(self, spec: TensorSpec) -> State:
        nothing = np.zeros(spec.shape, spec.dtype)
        return {**super().init(spec), BEFORE: nothing, OWED: nothing}

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:
        kind, last = x.dtype.type, state[RESIDUAL]
        ahead = 2 * last - state[BEFORE]
        owed = kind(1 - self.smooth) * state[OWED] + kind(self.smooth) * ahead
        # Its `Feedback` adds what is owed, decayed by its age, and leaves the error of this round.
        parts, after = super().encode(x, {**state, RESIDUAL: owed}, shared)
        return parts, {**after, BEFORE: last, OWED: owed}
