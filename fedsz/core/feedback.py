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
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray, wide
from fedsz.codecs.spread import energy_between
from fedsz.core.coders import CodecCoder, Coder
from fedsz.core.reference import Reference
from fedsz.core.tensors import Entry, narrow
from fedsz.stream import Part


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


class UpdateCoder(Coder):
    """A coder at work on what a client has made of its reference model, with error feedback.

    Each tensor is coded with its residual, decoded again, and compared.

    Args:
        coder: codes tensors.
        start: the reference model, whether updates are differences from it or not.
        earlier: by tensor, what earlier rounds left out; None without error feedback. One of
            another shape or dtype than its tensor is not used. What is used leaves it, which
            saves memory.
        weight: what these are multiplied with: decay^n.

    Attributes:
        energies: how much of each tensor arrives.
    """

    def __init__(
        self,
        coder: Coder,
        start: Reference,
        earlier: dict[str, NDArray] | None,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self._coder, self._start, self._weight = coder, start, weight
        self._feeds_back = earlier is not None
        self._earlier: dict[str, NDArray] = {} if earlier is None else earlier
        self.chains, self.errors = coder.chains, coder.errors
        self._rest: dict[str, NDArray] = {}
        self.energies: list[UpdateEnergy] = []

    def residuals(self) -> dict[str, NDArray]:
        """Return by tensor what is left out once the round is coded.

        Residuals of tensors that the round has not sent wait, times the weight.
        """
        while self._earlier:
            name, r = self._earlier.popitem()
            self._rest[name] = r if self._weight == 1 else r * r.dtype.type(self._weight)
        return self._rest

    def encode(self, entry: Entry) -> Part | None:
        """Do as `Coder.encode` of the tensor with its residual, and keep the new one."""
        x, coder, start = entry.x, self._coder, self._start.like(entry.name, entry.x)
        if start is None:
            return coder.encode(entry)
        target = self.target(entry.name, x)
        with_residual = entry._replace(x=narrow(target, x.dtype))
        if isinstance(coder, CodecCoder):
            # Of the step and the residual, a bound would grow with what it leaves out.
            part = coder.encode(with_residual, coder.bound(entry, start))
        else:
            part = coder.encode(with_residual)
        decoded = with_residual.x if part is None else self.decode(with_residual, part)
        self._add_energy(x, start, with_residual.x, decoded)
        if part is not None and self._feeds_back:
            self.keep_rest(entry.name, target, decoded, out=None if target is x else target)
        return part

    def exact(self, entry: Entry) -> Entry:
        """Return a tensor with its residual: all that the tensor's dtype holds of it arrives."""
        if not self._feeds_back:
            return entry
        target = self.target(entry.name, entry.x)
        exact = entry._replace(x=narrow(target, entry.x.dtype))
        self.keep_rest(entry.name, target, exact.x)
        return exact

    def target(self, name: str, x: NDArray) -> NDArray:
        """Return a tensor with its residual, in float64 for float64 and in float32 for others.

        The tensor itself, if it has none.
        """
        r = self._earlier.get(name)
        if r is None or not self._weight or (r.shape, r.dtype) != (x.shape, x.dtype):
            return x
        target = np.array(r, wide(x.dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            target *= target.dtype.type(self._weight)
            target += x
        return target

    def keep_rest(
        self, name: str, target: NDArray, decoded: NDArray, out: NDArray | None = None
    ) -> None:
        """Keep what a tensor with its residual is above the tensor that its receiver decodes.

        Nothing of a tensor with a NaN or an infinity anywhere: the next round starts afresh for it.
        ``out`` is an array that may hold it.
        """
        self._earlier.pop(name, None)
        if decoded is target:
            return
        with np.errstate(invalid="ignore", over="ignore"):
            rest = np.subtract(target, decoded, out=out, dtype=wide(decoded.dtype))
        if np.isfinite(rest).all() and rest.any():
            self._rest[name] = narrow(rest, decoded.dtype)

    def _add_energy(self, x: NDArray, start: NDArray, target: NDArray, decoded: NDArray) -> None:
        step = energy_between(x, start)
        if x.size and math.isfinite(step):
            lost = 0.0 if decoded is target else energy_between(target, decoded)
            wanted = step if target is x else energy_between(target, start)
            self.energies.append(UpdateEnergy(step, wanted, lost, 1))
