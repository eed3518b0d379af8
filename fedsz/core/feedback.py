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

import numpy as np

from fedsz.arrays import NDArray, wide
from fedsz.bounds import ErrorBound
from fedsz.codecs.base import Residual
from fedsz.codecs.spread import energy_between
from fedsz.codecs.uniform import WIDE, Comparison, Uniform, compare
from fedsz.core.coders import CodecCoder, Coder
from fedsz.core.reference import Reference
from fedsz.core.tensors import Entry, Within, bound_of, compared, narrow
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

    Of an update by `uniform` in float32 or float64 three passes see all elements: one look, which
    finds the bound and how far the tensor has moved; the codec's own, which finds its scales; and
    that which quantises, which writes the residual as well. All other tensors are coded, decoded
    and compared.

    Args:
        coder: codes tensors.
        start: the reference model, whether updates are differences from it or not.
        earlier: by tensor, what earlier rounds left out; None without error feedback.
        weight: what these are multiplied with: decay^n.

    Attributes:
        residuals: by tensor, what this round has left out so far; those of tensors that the round
            has not sent wait, times the weight.
        energies: how much of each tensor arrives.
    """

    def __init__(
        self,
        coder: Coder,
        start: Reference,
        earlier: Mapping[str, NDArray] | None,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self._coder, self._start, self._weight = coder, start, weight
        self._feeds_back, self._earlier = earlier is not None, earlier or {}
        self.chains, self.errors, self.misfits = coder.chains, coder.errors, coder.misfits
        self.residuals: dict[str, NDArray] = {
            name: r if weight == 1 else r * r.dtype.type(weight)
            for name, r in self._earlier.items()
        }
        self.energies: list[UpdateEnergy] = []

    def encode(self, entry: Entry) -> Part | None:
        """Do as `Coder.encode` of the tensor with its residual, and keep the new one."""
        start = self._start.like(entry.name, entry.x)
        if start is None:
            return self._coder.encode(entry)
        if found := self._within(entry, start):
            return self._encode_in_place(entry, *found)
        return self._encode_decoded(entry, start)

    def exact(self, entry: Entry) -> Entry:
        """Return a tensor with its residual: all that the tensor's dtype holds of it arrives."""
        if not self._feeds_back:
            return entry
        x = self.target(entry.name, entry.x)
        self.keep_rest(entry.name, entry.x, x)
        return entry._replace(x=x)

    def target(self, name: str, x: NDArray) -> NDArray:
        """Return a tensor with its residual: itself, if it has none."""
        residual = self._residual(name, x)
        return x if residual is None else narrow(residual.added_to(x), x.dtype)

    def keep_rest(self, name: str, x: NDArray, decoded: NDArray) -> None:
        """Keep what a tensor with its residual is above the tensor that its receiver decodes.

        Nothing of a tensor with a NaN or an infinity anywhere: the next round starts afresh for it.
        """
        if decoded is x or decoded.dtype.kind in "iubc":
            return self._keep(name, None)
        residual = self._residual(name, x)
        target = x if residual is None else residual.added_to(x)
        with np.errstate(invalid="ignore", over="ignore"):
            rest = np.subtract(target, decoded, dtype=wide(decoded.dtype))
        if not np.isfinite(rest).all():
            return self._keep(name, None)
        rest = narrow(rest, decoded.dtype)
        return self._keep(name, rest if rest.any() else None)

    def _residual(self, name: str, x: NDArray) -> Residual | None:
        """Return what is to be added to a tensor, if anything."""
        r = self._earlier.get(name)
        if r is None or not self._weight:
            return None
        if (r.shape, r.dtype) != (x.shape, x.dtype):
            self.misfits[name] = f"{r.dtype} {r.shape}, and the tensor is {x.dtype} {x.shape}"
            return None
        return Residual(r, self._weight)

    def _keep(self, name: str, residual: NDArray | None) -> None:
        """Keep what this round leaves out of a tensor; None if it leaves out nothing."""
        self.residuals.pop(name, None)
        if residual is not None:
            self.residuals[name] = residual

    def _within(self, entry: Entry, start: NDArray) -> tuple[Comparison, float, float] | None:
        """Return how far a tensor has moved, its absolute bound, and what rounding takes of that.

        None where it cannot be coded without making an array but for its residual.
        """
        x, coder = entry.x, self._coder
        if not isinstance(coder, CodecCoder) or not isinstance(coder.codec, Uniform):
            return None
        bound = coder.bound(entry.name)
        if bound is None or x.dtype not in WIDE or not x.size:
            return None
        by_deviation = bound.kind == "std"
        statistics = compare(
            x,
            start,
            deviation=by_deviation,
            energies=True,
            residual=self._residual(entry.name, x),
        )
        if not math.isfinite(statistics.target + statistics.step):
            return None
        if by_deviation and entry.base is None:
            return None
        absolute, rounding = bound_of(statistics, bound, x.dtype)
        if entry.base is None:
            rounding = 0.0
        return (statistics, absolute, rounding) if absolute > rounding else None

    def _encode_in_place(
        self, entry: Entry, statistics: Comparison, absolute: float, rounding: float
    ) -> Part | None:
        """Code a tensor as `_within` has found it."""
        x, coder = entry.x, self._coder
        assert isinstance(coder, CodecCoder)
        assert isinstance(coder.codec, Uniform)
        # Without error feedback, too: the energy of what is lost is counted as it is written.
        rest, residual = np.empty_like(x), self._residual(entry.name, x)
        coded = coder.codec.encode_update(x, entry.base, absolute - rounding, residual, rest)
        error = coded.max_error + rounding
        part = coder.part(entry, Within(coded.payload, absolute, error, entry.base is not None))
        lost = coded.left if part else 0.0
        self.energies.append(UpdateEnergy(statistics.step, statistics.target, lost, 1))
        if self._feeds_back and part:
            self._keep(entry.name, rest if lost or rest.any() else None)
        return part

    def _encode_decoded(self, entry: Entry, start: NDArray) -> Part | None:
        """Code a tensor, decode it, and compare."""
        coder, x = self._coder, entry.x
        target = entry._replace(x=self.target(entry.name, x)) if self._feeds_back else entry
        if isinstance(coder, CodecCoder):
            bound = coder.bound(entry.name)
            if bound and bound.kind == "std" and entry.base is not None and x.size:
                # Of the step and the residual, a bound would grow with what it leaves out.
                deviation = compared(x, start, deviation=True).deviation
                if own := bound.absolute_of(deviation):
                    bound = ErrorBound.abs(own)
            part = coder.encode(target, bound)
        else:
            part = coder.encode(target)
        decoded = target.x if part is None else self.decode(target, part)
        if self._feeds_back and part:
            self.keep_rest(entry.name, x, decoded)
        step = energy_between(x, start)
        if x.size and math.isfinite(step):
            lost = 0.0 if decoded is target.x else energy_between(target.x, decoded)
            sent = step if target.x is x else energy_between(target.x, start)
            self.energies.append(UpdateEnergy(step, sent, lost, 1))
        return part
