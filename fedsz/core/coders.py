"""What codes the tensors of a state_dict that may be lossy: a codec within a bound, or a pipeline.

`UpdateCoder` stands around either on a client: it adds error feedback, and measures how much of an
update arrives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, LosslessCodec
from fedsz.codecs.spread import energy_between
from fedsz.codecs.uniform import WIDE, Comparison, Uniform, compare
from fedsz.core.feedback import ErrorFeedback
from fedsz.core.lossless import Entry, encode_lossless
from fedsz.core.lossy import CodedTensor, Within, bound_of, compared, encode_lossy
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.step import UpdateEnergy
from fedsz.stream import DIFFERENCE, VALUES, Chain, Part


class Coder(ABC):
    """Codes the tensors of one state_dict that may be lossy.

    Attributes:
        chains: the pipelines that payloads have been coded by, as the stream's header has them.
        max_error: the largest error so far, as a fraction of its tensor's bound; 0 without bounds.
    """

    def __init__(self) -> None:
        self.chains: list[Chain] = []
        self.max_error = 0.0

    @abstractmethod
    def encode(self, entry: Entry) -> Part | None:
        """Return the payload of a tensor; None where it has to stay lossless.

        A tensor with a base is coded as the difference from it.
        """

    @abstractmethod
    def decode(self, entry: Entry, part: Part) -> NDArray:
        """Return the tensor as a receiver of its payload decodes it."""

    def exact(self, entry: Entry) -> Entry:
        """Return what is to be sent of a tensor that stays lossless: the tensor."""
        return entry

    def feeds_back(self, entry: Entry) -> bool:  # noqa: ARG002 - of subclasses
        """Say whether error feedback, if there is some, is for this tensor."""
        return True


def hardly_saves(payload: bytes, x: NDArray) -> bool:
    """Say whether a payload is so large that its tensor had better stay lossless."""
    return 10 * len(payload) > 9 * x.nbytes


class CodecCoder(Coder):
    """The codec of settings at work on one state_dict.

    Args:
        settings: with the codec and the rule for bounds.
        bounds: by the names of tensors, absolute; they take the place of the settings'. Tensors
            without one stay lossless where the settings' bound is of kind ``step``.
    """

    def __init__(
        self, settings: Settings, bounds: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        super().__init__()
        self.codec: Codec = settings.lossy_codec
        self._settings, self._bounds, self._bound = settings, dict(bounds), settings.bound

    def bound(self, name: str) -> ErrorBound | None:
        """Return a tensor's bound; None where nothing moved, or there is no reference."""
        if name in self._bounds:
            return ErrorBound.abs(self._bounds[name])
        return None if self._bound.kind == "step" else self._settings.bound_of(name)

    def encode(self, entry: Entry, bound: ErrorBound | None = None) -> Part | None:
        """Do as `Coder.encode`.

        A tensor stays lossless where coding it would hardly save anything, and where its bound
        cannot be kept.

        Args:
            entry: the tensor.
            bound: in place of the tensor's own.
        """
        bound = bound or self.bound(entry.name)
        if bound is None:
            return None
        if isinstance(self.codec, LosslessCodec):
            return encode_lossless([entry], self.codec)
        within = encode_lossy(entry.x, entry.base, bound, self.codec)
        return None if within is None else self.part(entry, within)

    def part(self, entry: Entry, within: Within) -> Part | None:
        """Return a payload as a part of the stream; None where it hardly saves anything."""
        if hardly_saves(within.payload, entry.x):
            return None
        stated = within.bound if self.codec.keeps_bound else within.max_error
        if stated:
            self.max_error = max(self.max_error, within.max_error / stated)
        transform = DIFFERENCE if within.is_difference else VALUES
        return Part(self.codec.wire_id, within.payload, stated, (entry.i,), transform)

    def decode(self, entry: Entry, part: Part) -> NDArray:
        """Do as `Coder.decode`."""
        if part.bound is None:
            return entry.x
        base = entry.base if part.transform == DIFFERENCE else None
        return CodedTensor(entry.x.dtype, entry.x.shape, self.codec, part.data, 0, base).decode()


class UpdateCoder(Coder):
    """A coder at work on what a client has made of its reference model.

    Of an update by `uniform` in float32 or float64 three passes see all elements: one look, which
    finds the bound and how far the tensor has moved; the codec's own, which finds its scales; and
    that which quantises, which writes the residual as well. All other tensors are coded, decoded
    and compared.

    Args:
        coder: codes tensors.
        start: the reference model, whether updates are differences from it or not.
        feedback: adds residuals, and keeps new ones; None without error feedback.

    Attributes:
        energy: how much of the update arrives.
    """

    def __init__(self, coder: Coder, start: Reference, feedback: ErrorFeedback | None) -> None:
        super().__init__()
        self._coder, self._start, self._feedback = coder, start, feedback
        self.chains = coder.chains
        self.energy = UpdateEnergy()

    def encode(self, entry: Entry) -> Part | None:
        """Do as `Coder.encode` of the tensor with its residual, and keep the new one."""
        start = self._start.like(entry.name, entry.x)
        if start is None:
            part = self._coder.encode(entry)
        elif found := self._within(entry, start):
            part = self._encode_in_place(entry, *found)
        else:
            part = self._encode_decoded(entry, start)
        self.max_error = self._coder.max_error
        return part

    def exact(self, entry: Entry) -> Entry:
        """Return a tensor with its residual: all that the tensor's dtype holds of it arrives."""
        if self._feedback is None or not self._coder.feeds_back(entry):
            return entry
        x = self._feedback.target(entry.name, entry.x)
        self._feedback.keep_rest(entry.name, entry.x, x)
        return entry._replace(x=x)

    def decode(self, entry: Entry, part: Part) -> NDArray:
        """Do as `Coder.decode`."""
        return self._coder.decode(entry, part)

    def _within(self, entry: Entry, start: NDArray) -> tuple[Comparison, float, float] | None:
        """Return how far a tensor has moved, its absolute bound, and what rounding takes of that.

        None where it cannot be coded without making an array but for its residual.
        """
        x, coder, feedback = entry.x, self._coder, self._feedback
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
            threads=coder.codec.threads,
            residual=feedback.of(entry.name, x) if feedback else None,
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
        x, coder, feedback = entry.x, self._coder, self._feedback
        assert isinstance(coder, CodecCoder)
        assert isinstance(coder.codec, Uniform)
        residual = feedback.of(entry.name, x) if feedback else None
        # Without error feedback, too: the energy of what is lost is counted as it is written.
        rest = np.empty_like(x)
        coded = coder.codec.encode_update(x, entry.base, absolute - rounding, residual, rest)
        error = coded.max_error + rounding
        part = coder.part(entry, Within(coded.payload, absolute, error, entry.base is not None))
        lost = coded.left if part else 0.0
        self.energy += UpdateEnergy(statistics.step, statistics.target, lost, 1)
        if feedback and part:
            feedback.keep(entry.name, rest if lost or rest.any() else None)
        return part

    def _encode_decoded(self, entry: Entry, start: NDArray) -> Part | None:
        """Code a tensor, decode it, and compare."""
        coder, x = self._coder, entry.x
        feedback = self._feedback if coder.feeds_back(entry) else None
        target = entry._replace(x=feedback.target(entry.name, x)) if feedback else entry
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
        decoded = target.x if part is None else coder.decode(target, part)
        if feedback and part:
            feedback.keep_rest(entry.name, x, decoded)
        step = energy_between(x, start)
        if x.size and math.isfinite(step):
            lost = 0.0 if decoded is target.x else energy_between(target.x, decoded)
            sent = step if target.x is x else energy_between(target.x, start)
            self.energy += UpdateEnergy(step, sent, lost, 1)
        return part
