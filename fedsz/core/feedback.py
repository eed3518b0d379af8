"""Error feedback: what compression left out of one round goes into the update of the next.

With x the tensor to send, r the residual, n the rounds that it has waited, and D(C(v)) what v
decodes to (Seide et al. 2014, Karimireddy et al. 2019):

    v = x + decay^n r;  send C(v);  r = v - D(C(v))

The residual is of what is really decoded, so that it holds every error on the way, the codec's and
the rounding of narrow dtypes too. It is kept in the tensor's own dtype. In half precision that
rounds it, by at most 2^-8 of itself in bfloat16 and 2^-11 in float16 (2^-25 where it is subnormal).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from fedsz.arrays import NDArray, wide
from fedsz.codecs.base import Residual
from fedsz.core.lossy import narrow


class ErrorFeedback:
    """The residuals of a client: those of an earlier round, and those of this one.

    Args:
        earlier: by tensor, what earlier rounds left out.
        weight: what these are multiplied with: decay^n.

    Attributes:
        residuals: by tensor, what this round has left out so far; those of tensors that the round
            has not sent wait, times the weight.
        misfits: by tensor, why a residual is not used: it is of another shape or dtype.
    """

    def __init__(
        self, earlier: Mapping[str, NDArray] = MappingProxyType({}), weight: float = 1.0
    ) -> None:
        self._earlier, self._weight = earlier, weight
        self.residuals: dict[str, NDArray] = {
            name: r if weight == 1 else r * r.dtype.type(weight) for name, r in earlier.items()
        }
        self.misfits: dict[str, str] = {}

    def of(self, name: str, x: NDArray) -> Residual | None:
        """Return what is to be added to a tensor, if anything."""
        r = self._earlier.get(name)
        if r is None or not self._weight:
            return None
        if (r.shape, r.dtype) != (x.shape, x.dtype):
            self.misfits[name] = f"{r.dtype} {r.shape}, and the tensor is {x.dtype} {x.shape}"
            return None
        return Residual(r, self._weight)

    def target(self, name: str, x: NDArray) -> NDArray:
        """Return a tensor with its residual: itself, if it has none."""
        residual = self.of(name, x)
        return x if residual is None else narrow(residual.added_to(x), x.dtype)

    def keep(self, name: str, residual: NDArray | None) -> None:
        """Keep what this round leaves out of a tensor; None if it leaves out nothing."""
        self.residuals.pop(name, None)
        if residual is not None:
            self.residuals[name] = residual

    def keep_rest(self, name: str, x: NDArray, decoded: NDArray) -> None:
        """Keep what a tensor with its residual is above the tensor that its receiver decodes.

        Nothing of a tensor with a NaN or an infinity anywhere: the next round starts afresh for it.
        """
        if decoded is x or decoded.dtype.kind in "iubc":
            return self.keep(name, None)
        residual = self.of(name, x)
        target = x if residual is None else residual.added_to(x)
        with np.errstate(invalid="ignore", over="ignore"):
            rest = np.subtract(target, decoded, dtype=wide(decoded.dtype))
        if not np.isfinite(rest).all():
            return self.keep(name, None)
        rest = narrow(rest, decoded.dtype)
        return self.keep(name, rest if rest.any() else None)
