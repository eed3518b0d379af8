"""What codes the tensors of a state_dict that may be lossy: a codec within a bound, or a pipeline.

`UpdateCoder` stands around either on a client: it adds error feedback, and measures how much of an
update arrives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, LosslessCodec
from fedsz.codecs.spread import energy_between
from fedsz.codecs.uniform import WIDE, Uniform, compare
from fedsz.core.feedback import ErrorFeedback
from fedsz.core.framed import framed
from fedsz.core.lossless import Entry, encode_lossless
from fedsz.core.lossy import (
    CodedTensor,
    Within,
    bound_of,
    compared,
    encode_difference,
    encode_within,
)
from fedsz.core.reference import Reference, like_in
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
    def encode(self, entry: Entry, reference: Reference | None) -> Part | None:
        """Return the payload of a tensor; None where it has to stay lossless.

        A tensor that the reference has is coded as the difference from it.
        """

    @abstractmethod
    def decode(self, entry: Entry, part: Part, reference: Reference | None) -> NDArray:
        """Return the tensor as a receiver of its payload decodes it."""

    def exact(self, entry: Entry) -> Entry:
        """Return what is to be sent of a tensor that stays lossless: the tensor."""
        return entry


def base_of(entry: Entry, reference: Reference | None) -> NDArray | None:
    """Return the tensor that an entry may be coded as a difference from, if there is one."""
    return None if reference is None else like_in(reference.arrays, entry.name, entry.x)


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

    def encode(self, entry: Entry, reference: Reference | None) -> Part | None:
        """Do as `Coder.encode`.

        A tensor stays lossless where coding it would hardly save anything, and where its bound
        cannot be kept.
        """
        return self.encode_bounded(entry, reference, self.bound(entry.name))

    def encode_bounded(
        self, entry: Entry, reference: Reference | None, bound: ErrorBound | None
    ) -> Part | None:
        """Do as `encode` within another bound."""
        if bound is None:
            return None
        if isinstance(self.codec, LosslessCodec):
            return encode_lossless([entry], self.codec, reference)
        x, base = entry.x, base_of(entry, reference)
        within, transform = None, VALUES
        if base is not None:
            within, transform = encode_difference(x, base, bound, self.codec), DIFFERENCE
        # A bound by the deviation of differences is none for values: what did not move would be
        # lost.
        if within is None and not (base is not None and bound.kind == "std"):
            absolute = bound.absolute(x)
            within = encode_within(x, absolute, self.codec) if absolute else None
            transform = VALUES
        return self.part(entry, within, transform)

    def part(self, entry: Entry, within: Within | None, transform: int) -> Part | None:
        """Return a payload as a part of the stream; None where it hardly saves anything."""
        if within is None or hardly_saves(within.payload, entry.x):
            return None
        stated = within.bound if self.codec.keeps_bound else within.max_error
        if stated:
            self.max_error = max(self.max_error, within.max_error / stated)
        return Part(self.codec.wire_id, within.payload, stated, (entry.i,), transform)

    def decode(self, entry: Entry, part: Part, reference: Reference | None) -> NDArray:
        """Do as `Coder.decode`."""
        if part.bound is None:
            return entry.x
        base = base_of(entry, reference) if part.transform == DIFFERENCE else None
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
        steps: by tensor that may be lossy, the sum of squares of its step; not finite where the
            step is not.
    """

    def __init__(self, coder: Coder, start: Reference, feedback: ErrorFeedback | None) -> None:
        super().__init__()
        self._coder, self._start, self._feedback = coder, start, feedback
        self.chains = coder.chains
        self.energy = UpdateEnergy()
        self.steps: dict[str, float] = {}

    def encode(self, entry: Entry, reference: Reference | None) -> Part | None:
        """Do as `Coder.encode` of the tensor with its residual, and keep the new one."""
        part = self._encode(entry, reference)
        self.max_error = self._coder.max_error
        return part

    def _encode(self, entry: Entry, reference: Reference | None) -> Part | None:
        base, coder = base_of(entry, self._start), self._coder
        if base is None:
            return coder.encode(entry, reference)
        if isinstance(coder, CodecCoder) and isinstance(coder.codec, Uniform):
            bound = coder.bound(entry.name)
            if entry.x.dtype in WIDE and entry.x.size and bound is not None:
                return self._encode_in_place(entry, base, bound, coder, coder.codec, reference)
        return self._encode_decoded(entry, base, reference)

    def exact(self, entry: Entry) -> Entry:
        """Return a tensor with its residual: all that the tensor's dtype holds of it arrives."""
        if self._feedback is None:
            return entry
        x = self._feedback.target(entry.name, entry.x)
        if x is entry.x or x.dtype in WIDE:
            self._feedback.keep(entry.name, None)
        else:
            self._feedback.keep_rest(entry.name, entry.x, x)
        return entry._replace(x=x)

    def decode(self, entry: Entry, part: Part, reference: Reference | None) -> NDArray:
        """Do as `Coder.decode`."""
        return self._coder.decode(entry, part, reference)

    def _encode_in_place(
        self,
        entry: Entry,
        base: NDArray,
        bound: ErrorBound,
        coder: CodecCoder,
        codec: Uniform,
        reference: Reference | None,
    ) -> Part | None:
        """Code a tensor without making an array but for its residual."""
        x, feedback, by_deviation = entry.x, self._feedback, bound.kind == "std"
        residual = feedback.of(entry.name, x) if feedback else None
        statistics = compare(
            x, base, deviation=by_deviation, energies=True, threads=codec.threads, residual=residual
        )
        if not math.isfinite(statistics.target + statistics.step) or (
            by_deviation and reference is None
        ):
            return self._encode_decoded(entry, base, reference)
        self.steps[entry.name] = statistics.step
        absolute, rounding = bound_of(statistics, bound, x.dtype)
        if reference is None:
            rounding = 0.0
        if not absolute > rounding:
            return self._encode_decoded(entry, base, reference)
        # Without error feedback, too: the energy of what is lost is counted as it is written.
        origin, rest = None if reference is None else base, framed(x.shape, x.dtype)
        coded = codec.encode_update(x, origin, absolute - rounding, residual, rest.room)
        within = Within(coded.payload, absolute, coded.max_error + rounding)
        part = coder.part(entry, within, VALUES if reference is None else DIFFERENCE)
        lost = coded.left if part else 0.0
        self.energy += UpdateEnergy(statistics.step, statistics.target, lost, 1)
        if feedback and part:
            feedback.keep(entry.name, rest.x if lost or rest.x.any() else None)
        return part

    def _encode_decoded(
        self, entry: Entry, base: NDArray, reference: Reference | None
    ) -> Part | None:
        """Code a tensor, decode it, and compare."""
        coder, feedback = self._coder, self._feedback
        target = entry
        if feedback is not None:
            target = entry._replace(x=feedback.target(entry.name, entry.x))
        if isinstance(coder, CodecCoder):
            bound = coder.bound(entry.name)
            if bound and bound.kind == "std" and reference and entry.x.size:
                # Of the step and the residual, a bound would grow with what it leaves out.
                statistics = compared(entry.x, base, deviation=True)
                if own := bound.absolute_of(statistics.deviation):
                    bound = ErrorBound.abs(own)
            part = coder.encode_bounded(target, reference, bound)
        else:
            part = coder.encode(target, reference)
        decoded = target.x if part is None else coder.decode(target, part, reference)
        if feedback and part:
            feedback.keep_rest(entry.name, entry.x, decoded)
        self._measure(entry, base, target.x, decoded)
        return part

    def _measure(self, entry: Entry, base: NDArray, target: NDArray, decoded: NDArray) -> None:
        """Note how much of a tensor arrives."""
        step = self.steps[entry.name] = energy_between(entry.x, base)
        if entry.x.size and math.isfinite(step):
            lost = 0.0 if decoded is target else energy_between(target, decoded)
            sent = step if target is entry.x else energy_between(target, base)
            self.energy += UpdateEnergy(step, sent, lost, 1)
