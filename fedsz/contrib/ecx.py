"""`ecx`: error feedback that extrapolates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.contrib.own_feedback import RESIDUAL, OwnFeedback
from fedsz.methods import Chain, Shared, State
from fedsz.methods.base import Coded
from fedsz.spec_strings import setting


@dataclass(frozen=True)
class Ecx(OwnFeedback):
    """ErrorCompensatedX (Tang et al. 2021): the next error is foreseen from the last two.

    With x the tensor, d the error of the last round and d' of the round before it, and e the
    residual, n rounds old:

        e = (1 - smooth) e + smooth (2 d - d');  v = x + decay^n e;  send v;  d = v - decoded(v)

    Without decay, nothing is lost or sent twice. With a smoothing of 0.5, e is d and this is
    `Feedback`, whatever the decay; below, it is a low-pass filter. Above, the error of an element
    that waits grows faster than linearly, and with most methods it never ends: the source's own
    2 d - d', a smoothing of 1, is refused.

    Attributes:
        decay: of the residual, for each round, 0 to 1.
        smooth: weight of the last two errors, above 0 and up to 0.5.

    Raises:
        ConfigError: a setting is out of range.
    """

    name = "ecx"
    summary = "error feedback that extrapolates from the errors of the last two rounds"
    arrays = "before", "filtered"  # d' and e

    smooth: float = setting(0.2, 0, 0.5, above=True)

    def encode(self, inner: Chain, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        kind, last = x.dtype.type, self.own(state, RESIDUAL)
        ahead = 2 * last - self.own(state, "before")
        smooth = kind(self.smooth)
        filtered = np.asarray((1 - smooth) * self.own(state, "filtered") + smooth * ahead)
        coded, _, after = self.encode_sum(inner, x, filtered, state, shared)
        return coded, self.changed(after, before=last, filtered=filtered)
