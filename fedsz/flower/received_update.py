"""An update as its receiver has it: checked, and decoded tensor by tensor."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from flwr.app import ArrayRecord

from fedsz.arrays import Layout, NDArray
from fedsz.codecs.spread import energy
from fedsz.core.ahead import is_step
from fedsz.core.clipping import MARGIN, scaled_step
from fedsz.core.decode import owned, unpack
from fedsz.core.framed import framed
from fedsz.core.lossy import CodedTensor
from fedsz.core.reference import Reference, require_reference
from fedsz.errors import CorruptStream, FedszError, ModelMismatch, RefusedReply
from fedsz.flower.records import aside_of, from_array, is_sealed, layout_of, streams_of
from fedsz.flower.refusal import WHOLE, Norm, Refusal
from fedsz.stream import Limits, Reader
from fedsz.stream.format import Header
from fedsz.stream.inspection import coded_by

LEAST_SCALE: Final = 1e-20  # an update that must be clipped to less is refused
IF_MEANT: Final = "if clients are to reply so, FedSZGrid takes same_model=False"


class Stopwatch:
    """Adds up the seconds spent inside of it; for each tensor, so no generator."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self._start = seconds, 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._start


class ReceivedUpdate:
    """The arrays of a record that somebody sent, sealed or plain; checked, not yet decoded.

    Iterating decodes them one at a time, in no particular order and as often as one likes. All
    that can be checked without decoding has been when this exists: structure, names, shapes,
    checksums.

    Args:
        record: from anybody.
        layout: what the arrays must look like, and the dtypes they are returned in.
        references: by their digests, the models that differences may refer to.
        sent: the model that the sender started from, where that is known.
        meant: tensors that its step counts from in place of these.
        codecs: the names of those that its streams may use, and the texts of chains; None for all.
        drawn: the seed and the round that chains must draw from; None for any.
        limits: what its stream may ask for; by default what one of ``layout`` may.

    Attributes:
        record: what was sent, until it is released.
        start: the model that its sender started from; empty where that is not known.
        meant: what its step counts from, of those tensors in which that is another; see
            `forget_meant_of_step`.
        shapes: by name, in the sender's order.
        raw_bytes: size of the arrays.
        sent_bytes: size of what was sent.
        digest: SHA-256 of it: the data of its Arrays, in their order.
        clock: runs while it is decoded.
        norm: of its step, once all of it has been decoded: from the model that its sender started
            from; of the arrays themselves where that model is not known.
        limit: the most that its norm may be; see `judge`.
        clips: whether an update above that is scaled down to it, in place of refused.
        clipping_norm: what differential privacy has it clipped to instead; see `clip_to`.
        clipped: what the step of its floats was scaled by to keep to that; 1 if it did.
        keeps_whole: whether whole numbers and bools have no part in what is learned: no norm, and
            they stay as they were sent to its sender.
        holds_whole: whether they do so in this update.
        watched: names of tensors of which it notes in ``below`` whether it takes them below 0,
        floors: those of them in which 0 takes the place of what is below.
        staleness: how many models are newer than the one that its sender started from.
        share: what its step counts times because its sender has sent more than others.
        refused: why whoever was to use it could not, if so.

    Raises:
        RefusedReply: a codec or chain that is not among ``codecs``, or draws otherwise.
        ModelMismatch: names or shapes are not the layout's.
        ReferenceMismatch: they are differences from a model that is not at hand.
        CorruptStream: the bytes are no stream.
    """

    def __init__(
        self,
        record: ArrayRecord,
        layout: Layout | None = None,
        references: Mapping[bytes, Reference] = MappingProxyType({}),
        *,
        sent: Mapping[str, NDArray] = MappingProxyType({}),
        meant: Mapping[str, NDArray] = MappingProxyType({}),
        codecs: Collection[str] | None = None,
        drawn: tuple[int, int] | None = None,
        limits: Limits | None = None,
    ) -> None:
        start = time.perf_counter()
        self.refused: FedszError | None = None
        self.norm: Norm | None = None
        self.limit = Norm(math.inf, math.inf)
        self.clips, self.clipped, self.staleness, self.share = False, 1.0, 0, 1.0
        self.clipping_norm: float | None = None
        self.keeps_whole = self.holds_whole = False
        self.watched: frozenset[str] = frozenset()
        self.floors: frozenset[str] = frozenset()
        self.below: set[str] = set()
        self.start, self.meant = sent, meant
        self.sent_bytes = sum(len(array.data) for array in record.values())
        hashed = hashlib.sha256()
        for array in record.values():
            hashed.update(array.data)
        self.digest = hashed.digest()
        self.record, self._layout = record, layout
        self._reader: Reader | None = None
        self._reference: Reference | None = None
        if is_sealed(record):
            streams = streams_of(record)
            if len(streams) != 1:
                raise CorruptStream(f"a reply of {len(streams)} streams, not one")
            if limits is None and layout is not None:
                limits = Limits.of_model(layout)
            self._reader = Reader(streams[0], limits)
            header = self._reader.header
            if header.reference is not None:
                self._reference = references.get(header.reference)
                require_reference(header.reference, self._reference)
            _check_codecs(header, codecs, drawn)
            self.raw_bytes = header.decoded_bytes
            self.shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        else:
            self.raw_bytes = self.sent_bytes
            self.shapes = dict(layout_of(record).shapes)
        if layout:
            try:
                layout.check(self.shapes)
            except ModelMismatch as err:
                raise ModelMismatch(f"{err}; {IF_MEANT}") from None
        if self._reader:
            self._reader.check()
        self.clock = Stopwatch(time.perf_counter() - start)

    @property
    def seconds(self) -> float:
        """Time spent on checking and decoding so far."""
        return self.clock.seconds

    def __iter__(self) -> Iterator[tuple[str, NDArray]]:
        """Yield name and array, each its receiver's own.

        Raises:
            CorruptStream: an array does not decode, or is not what it was said to be.
            CodecUnavailable: a codec's library is not installed here.
        """
        for name, x in self.unpacked():
            with self.clock:
                own = owned(x)
            yield name, own

    def unpacked(self) -> Iterator[tuple[str, NDArray | CodedTensor]]:
        """Do as iterating does, but leave coded what can be decoded one by one; see `clock`."""
        fitted = ((name, self._fitted(name, x)) for name, x in self._sent())
        while True:
            with self.clock:
                item = next(fitted, None)
                if item is not None and item[0] in self.watched:
                    item = item[0], self._not_below(*item)
            if item is None:
                return
            yield item

    def _not_below(self, name: str, x: NDArray | CodedTensor) -> NDArray | CodedTensor:
        """Return a tensor that is watched, without what it must not have below 0."""
        decoded = x.decode() if isinstance(x, CodedTensor) else x
        if not (decoded < 0).any():
            return x
        self.below.add(name)
        return np.maximum(decoded, decoded.dtype.type(0)) if name in self.floors else x

    @property
    def raised(self) -> frozenset[str]:
        """The names of tensors of which a part counts as 0, and not as what was sent."""
        return self.floors & self.below

    def sent(self, name: str, like: NDArray | CodedTensor) -> NDArray | None:
        """Return the tensor that its sender started from, if it fits one that has come."""
        start = self.start.get(name)
        fits = start is not None and (start.shape, start.dtype) == (like.shape, like.dtype)
        return start if fits else None

    def clip_to(self, norm: float) -> None:
        """Have it clipped as Flower's differential privacy clips: the norm is over all its arrays.

        What `arrays` returns keeps to it then, in float64 and in the arrays' own dtypes.

        Raises:
            RefusedReply: it holds arrays that are no numbers.
        """
        for name, _ in aside_of(self.record).values():
            raise RefusedReply(Refusal.MODEL, f"{name!r} cannot be clipped: it holds no numbers")
        self.clipping_norm = norm

    def measured(self) -> Norm:
        """Return the norm of its step, having decoded all of it; raises as iterating does."""
        return Norm.of((x.dtype, self._energy(name, x)) for name, x in self.unpacked())

    def _energy(self, name: str, x: NDArray | CodedTensor) -> float:
        start, exact = self.sent(name, x), self.clipping_norm is not None
        with self.clock:
            if isinstance(x, CodedTensor):
                if not exact:
                    return x.open(start).energy
                x = x.decode()
            if exact and start is None:
                why = f"{name!r} cannot be clipped: its start is not known"
                raise RefusedReply(Refusal.MODEL, why)
            return energy(x, start, double=exact)

    def judge(self, norm: Norm) -> None:
        """Take the norm of its step, and set `clipped` or refuse it if that is above the limit.

        Clipping moves floats towards the model that their sender started from. So each lies between
        what it was and what it became: a running variance stays above 0. Without that model, all
        of the update is refused. So it is where its whole numbers and bools are too large: they can
        be counters, masks or bytes, and what lies between two of them can be none. But where they
        may not move at all, they stay as they were sent.

        Raises:
            RefusedReply: all of it must be left out.
        """
        self.norm = norm
        norm.require_finite()
        if self.keeps_whole:
            norm = norm._replace(whole=0.0)
        limit, clips = self.limit, self.clips
        if self.clipping_norm is not None:
            most = self.clipping_norm * (1 - MARGIN)
            Norm(0.0, norm.whole).require_within(Norm(0.0, most))
            limit, clips = Norm(math.sqrt(most**2 - norm.whole**2), most), True
        counts = norm
        if clips and self.start and norm.floats * LEAST_SCALE < limit.floats:
            counts = norm._replace(floats=min(norm.floats, limit.floats))
        if clips and norm.whole > limit.whole == 0 and self._knows_whole:
            counts = counts._replace(whole=0.0)
        counts.require_within(limit)
        self.holds_whole = self.keeps_whole or counts.whole < norm.whole
        self.clipped = counts.floats / norm.floats if norm.floats else 1.0

    @property
    def scale(self) -> float:
        """What the step of its floats counts times: less if clipped, stale, or of too many.

        Stale ones by 1 / sqrt(1 + s), as in FedBuff (Nguyen et al., AISTATS 2022, section 5).
        """
        return self.clipped * self.share / math.sqrt(1 + self.staleness)

    def scale_of(self, dtype: np.dtype) -> float:
        """Return what the step of a tensor counts times."""
        if dtype.kind in WHOLE:
            return 0.0 if self.holds_whole else 1.0
        return self.scale

    @property
    def _knows_whole(self) -> bool:
        """Whether all its whole numbers have a start that can take their place."""
        whole = {name: x for name, x in self.start.items() if x.dtype.kind in WHOLE}
        return all(self.shapes.get(name) == x.shape for name, x in whole.items())

    def arrays(self) -> dict[str, NDArray]:
        """Return all arrays, in the sender's order; raises as iterating and `judge` do.

        They may be read-only, and to make Flower Arrays of them takes no copy; see `framed`.
        """
        decoded = {}
        for name, x in self.unpacked():
            with self.clock:
                decoded[name] = owned(x, framed)
        self.judge(Norm.of((x.dtype, self._energy(name, x)) for name, x in decoded.items()))
        self.forget_meant_of_step(decoded)
        if self.scale < 1 or self.holds_whole:
            with self.clock:
                for name, x in decoded.items():
                    start = self.sent(name, x)
                    if start is None:
                        continue
                    if x.dtype.kind not in WHOLE:
                        decoded[name] = scaled_step(x, start, self.scale)
                    elif self.holds_whole:
                        decoded[name] = start.copy()
        for name in self.meant.keys() & decoded.keys():
            x = decoded[name]
            start, base = self.sent(name, x), self.base(name, x)
            if start is not None and base is not None:
                with self.clock, np.errstate(over="ignore", invalid="ignore"):
                    moved = np.asarray(x - start) + base
                    decoded[name] = np.maximum(moved, 0) if name in self.floors else moved
        return {name: decoded.pop(name) for name in self.shapes}

    def forget_meant_of_step(self, decoded: Mapping[str, NDArray] | None = None) -> None:
        """Have it count as it is if its sender has replied with its step in place of a model.

        Args:
            decoded: all of it, if that is at hand.
        """
        if not self.meant or self._reference is not None:
            return  # a difference is from what was sent
        arrays = dict(self) if decoded is None else decoded
        known = {name: x for name, x in arrays.items() if self.sent(name, x) is not None}
        if is_step(known, Reference(self.start)):
            self.meant = {}

    def base(self, name: str, like: NDArray | CodedTensor) -> NDArray | None:
        """Return what the step of a tensor counts from, if that is not what its sender had."""
        base = self.meant.get(name)
        fits = base is not None and (base.shape, base.dtype) == (like.shape, like.dtype)
        return base if fits else None

    def _fitted(self, name: str, x: NDArray | CodedTensor) -> NDArray | CodedTensor:
        if self._layout is None or x.dtype == self._layout.dtypes[name]:
            return x
        return self._layout.cast(name, x.decode() if isinstance(x, CodedTensor) else x)

    def _sent(self) -> Iterator[tuple[str, NDArray | CodedTensor]]:
        if self._reader:
            yield from unpack(self._reader, self._reference)
            return
        for name, shape in layout_of(self.record).shapes.items():
            x = from_array(name, self.record[name])
            if x.shape != shape:
                raise CorruptStream(f"array {name!r} has another shape than it says")
            yield name, x

    def replaced(self, record: ArrayRecord) -> ReceivedUpdate:
        """Return an update of plain arrays that somebody has put in the place of these."""
        other = ReceivedUpdate(record, sent={**self.start, **self.meant})
        other.staleness, other.share = self.staleness, self.share
        return other

    def release(self) -> None:
        """Free what was sent, the sender's record too; the numbers stay."""
        self.record.clear()  # circles of references would keep the bytes until a collection
        self.forget()

    def forget(self) -> None:
        """Keep nothing of what was sent but the numbers."""
        self.record, self._reader, self._reference = ArrayRecord(), None, None
        self.shapes, self.start, self.meant = {}, {}, {}


def _check_codecs(
    header: Header, allowed: Collection[str] | None, drawn: tuple[int, int] | None
) -> None:
    used = {coded_by(payload, header) for payload in header.payloads}
    if allowed is not None and not used <= set(allowed):
        have = f"{', '.join(sorted(used - set(allowed)))}; may be {', '.join(sorted(allowed))}"
        raise RefusedReply(Refusal.CODEC, f"it is packed by {have}")
    for chain in header.chains:
        if drawn is not None and (chain.seed, chain.round) != drawn:
            raise RefusedReply(Refusal.CODEC, f"chain {chain.text} of another seed or round")
