"""Tensors that a codec codes within a bound: a sender's side, with its error feedback or without.

Of an update by `uniform` in float32 or float64 three passes see all elements: one look, which finds
the bound and how far the tensor has moved; the codec's own, which finds its scales; and that which
quantises, which writes the residual as well. All others are coded, decoded and compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, LosslessCodec
from fedsz.codecs.uniform import WIDE, Uniform, compare
from fedsz.core.encoder import Encoder, hardly_saves
from fedsz.core.feedback import ErrorFeedback
from fedsz.core.framed import framed
from fedsz.core.lossless import Entry, encode_lossless
from fedsz.core.lossy import CodedTensor, Within, bound_of, encode_difference, encode_within
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.step import Arrival
from fedsz.stream import DIFFERENCE, VALUES, Part


class BoundEncoder(Encoder):
    """A config's codec at work on one state_dict.

    Args:
        config: with the codec and the rule for bounds.
        bounds: by the names of tensors, absolute; they take the place of the config's. Tensors
            without one stay lossless where the config's is of kind ``step``.
    """

    def __init__(
        self, config: Settings, bounds: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        super().__init__()
        self.codec: Codec = config.lossy_codec
        self._config, self._bounds, self._rule = config, dict(bounds), config.bound

    def encode(self, entry: Entry, reference: Reference | None) -> Part | None:
        """Do as `Encoder.encode`.

        A tensor stays lossless where coding it would hardly save anything, and where its bound
        cannot be kept.
        """
        bound = self._bound_of(entry.name)
        if bound is None:
            return None
        if isinstance(self.codec, LosslessCodec):
            return encode_lossless([entry], self.codec, reference)
        x = entry.x
        within, transform = None, VALUES
        if reference:
            base = reference.tensor(entry.name, x)
            within, transform = encode_difference(x, base, bound, self.codec), DIFFERENCE
        # A bound by the spread of the differences is none for values: what did not move would be
        # lost.
        if within is None and not (reference and bound.kind == "std"):
            absolute = bound.absolute(x)
            within = encode_within(x, absolute, self.codec) if absolute else None
            transform = VALUES
        return self._part(entry, within, transform)

    def _bound_of(self, name: str) -> ErrorBound | None:
        if name in self._bounds:
            return ErrorBound.abs(self._bounds[name])
        # Where nothing moved, or beside no reference, a step bounds nothing: it stays lossless.
        return None if self._rule.kind == "step" else self._config.bound_of(name)

    def _part(self, entry: Entry, within: Within | None, transform: int) -> Part | None:
        if within is None or hardly_saves(within.payload, entry.x):
            return None
        stated = within.bound if self.codec.keeps_bound else within.max_error
        if stated:
            self.max_error = max(self.max_error, within.max_error / stated)
        return Part(self.codec.wire_id, within.payload, stated, (entry.i,), transform)


class UpdateEncoder(BoundEncoder):
    """A config's codec at work on what a client has made of the model that it was sent.

    Args:
        meant: the update, with what earlier rounds have left out of it.
        config: as of `BoundEncoder`; it says whether differences from ``sent`` are coded.
        sent: the model that it was made of.

    Attributes:
        left: by tensor, what is left out of this round; nothing of those that arrive exactly.
    """

    def __init__(self, meant: ErrorFeedback, config: Settings, sent: Reference) -> None:
        # Of all tensors together; others are found as tensors are looked at.
        by_step = config.bound.kind == "step"
        super().__init__(config, meant.bounds(config, sent) if by_step else {})
        self._meant, self._sent = meant, sent
        self.misfits = meant.misfits
        self.left: dict[str, NDArray] = {}

    def encode(self, entry: Entry, reference: Reference | None) -> Part | None:
        """Do as `BoundEncoder.encode` of the tensor with its residual, and keep what is left."""
        base, bound = self._sent.tensor(entry.name, entry.x), self._bound_of(entry.name)
        if isinstance(self.codec, Uniform) and entry.x.dtype in WIDE and entry.x.size and bound:
            return self._encode_in_place(entry, base, bound, self.codec, reference)
        return self._encode_decoded(entry, base, reference)

    def exact(self, entry: Entry) -> Entry:
        """Return a tensor with its residual: all that the tensor's dtype holds of it arrives."""
        x = self._meant[entry.name]
        if x is not entry.x and x.dtype not in WIDE:
            self._keep(entry.name, self._meant.residual_of(entry.name, x))
        return entry._replace(x=x)

    def _encode_in_place(
        self,
        entry: Entry,
        base: NDArray,
        bound: ErrorBound,
        codec: Uniform,
        reference: Reference | None,
    ) -> Part | None:
        """Code a tensor without making an array but for what is left out."""
        x, residual = entry.x, self._meant.residual(entry.name)
        by_deviation = bound.kind == "std"
        seen = compare(
            x, base, deviation=by_deviation, energies=True, threads=codec.threads, residual=residual
        )
        if not math.isfinite(seen.meant + seen.step) or (by_deviation and reference is None):
            return self._encode_decoded(entry, base, reference)
        self.steps[entry.name] = seen.step
        absolute, rounding = bound_of(seen, bound, x.dtype)
        if reference is None:
            rounding = 0.0
        if not absolute > rounding:
            return self._encode_decoded(entry, base, reference)
        origin, left = None if reference is None else base, framed(x.shape, x.dtype)
        coded = codec.encode_update(x, origin, absolute - rounding, residual, left.room)
        within = Within(coded.payload, absolute, coded.max_error + rounding)
        part = self._part(entry, within, VALUES if reference is None else DIFFERENCE)
        lost = coded.left if part else 0.0
        self.arrived += Arrival(seen.step, seen.meant, lost, 1)
        if lost or (part and left.x.any()):
            self.left[entry.name] = left.x
        return part

    def _encode_decoded(
        self, entry: Entry, base: NDArray, reference: Reference | None
    ) -> Part | None:
        """Code a tensor, decode it, and compare."""
        name, x = entry.name, self._meant[entry.name]
        own = self._meant.bound(name, self._config, reference) if reference else 0.0
        if own:
            self._bounds[name] = own
        part, y = super().encode(entry._replace(x=x), reference), x
        if part is not None:
            if part.bound is not None:
                origin = base if part.transform == DIFFERENCE else None
                y = CodedTensor(x.dtype, x.shape, self.codec, part.data, 0, origin).decode()
            self._keep(name, self._meant.residual_of(name, y))
        self._measure(entry, base, x, y)
        return part

    def _keep(self, name: str, left: NDArray | None) -> None:
        if left is not None:
            self.left[name] = left
