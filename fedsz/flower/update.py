"""A client's reply with the arrays of a model: checked, and still encoded.

The server puts the step of a reply onto its own model:

    result = trained - reference + the server's model

so that nothing of the rounding of a broadcast gets into the server's model. A reply to an exact
broadcast, whose reference is the server's model itself, comes as the client has sent it, to the
bit. So do tensors that are no floats, tensors that the reference does not have, and the replies of
apps that send their step in place of a model.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np
from flwr.app import Array, ArrayRecord

from fedsz.arrays import LOSSY_DTYPES, Layout, NDArray, add_scaled, cast, sum_dtype
from fedsz.codecs.base import Opened, OpenedArray
from fedsz.codecs.spread import energy
from fedsz.core.clipping import MARGIN, scaled_step
from fedsz.core.decode import owned, unpack
from fedsz.core.reference import Reference, like_in, require_reference
from fedsz.core.tensors import CodedTensor, moved
from fedsz.errors import FedszError, RefusedReply
from fedsz.flower.records import (
    from_array,
    is_sealed,
    layout_of,
    passthrough_of,
    stream_of,
    to_record,
)
from fedsz.flower.refusal import Refusal, refusing_failures
from fedsz.stream import Limits, Reader
from fedsz.stream.format import Header
from fedsz.stream.inspection import coded_by
from fedsz.threads import side_by_side

Arrays = Mapping[str, NDArray]
NONE: Arrays = MappingProxyType({})


class Stopwatch:
    """Adds up the seconds spent inside of it; for each tensor, so no generator."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self._start = seconds, 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._start


class Term(NamedTuple):
    """What a tensor of an update adds to a sum of models, decoded as far as that can fail.

    Attributes:
        name, dtype: of the tensor.
        shape: of the tensor.
        values: the payload; its energy is that of the step.
        start: what is subtracted from the values, so that they are a step; None for nothing.
        onto: the server's tensor that the step is put onto; None for nothing.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    values: Opened
    start: NDArray | None
    onto: NDArray | None

    def array(self, scale: float = 1.0) -> NDArray:
        """Return the tensor with ``scale`` times its step put onto the server's.

        Integers come as they were sent. So does, without a scale, what starts from the server's
        tensor or from none that is known.
        """
        is_step = scale != 1 or self.start is not self.onto
        if isinstance(self.values, OpenedArray) and (self.dtype.kind in "iub" or not is_step):
            return cast(owned(self.values.x), self.dtype)
        step = np.zeros(self.shape, sum_dtype(self.dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            self.values.add(step, scale)
            if self.start is not None:
                add_scaled(self.start, -scale, step)
        return cast(step if self.onto is None else moved(self.onto, step), self.dtype)

    @property
    def nbytes(self) -> int:
        """Size of the tensor, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def popped(terms: list[Term]) -> Iterator[Term]:
    """Yield terms, last first, none of which stays in the list."""
    while terms:
        yield terms.pop()


@dataclass(frozen=True, eq=False)
class Update:
    """A reply's arrays of one model, still encoded.

    All that can be checked without decoding has been when this exists: structure, names, shapes,
    checksums. Decoding it raises `CorruptStream` or `CodecUnavailable`.

    Attributes:
        record: as it was sent.
        model: the server's own model that steps are put onto; empty where that is not known.
        reference: the model that its sender started from.
        shapes: by name, in the sender's order.
        dtypes: of the result, by name; of other tensors, the sender's.
        raw_bytes, sent_bytes: size of the arrays, and of what was sent.
        digest: SHA-256 of that: the data of its Arrays, in their order.
        is_step: whether the app has sent its step in place of a model.
        weight: in the average.
        scale: what its step counts times.
        norm: the Euclidean norm of its step, of all floats together; None until it is decoded.
        staleness: how many models are newer than the one that its sender started from.
        clock: runs while it is decoded.
    """

    record: ArrayRecord
    model: Arrays
    reference: Reference | None
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype]
    raw_bytes: int
    sent_bytes: int
    digest: bytes
    is_step: bool = False
    weight: float = 1.0
    scale: float = 1.0
    norm: float | None = None
    staleness: int = 0
    clock: Stopwatch = field(default_factory=Stopwatch)
    _reader: Reader | None = None

    @classmethod
    def open(
        cls,
        record: ArrayRecord,
        *,
        model: Arrays = NONE,
        reference: Reference | None = None,
        dtypes: Mapping[str, np.dtype] = MappingProxyType({}),
        is_step: bool = False,
        codecs: Collection[str] | None = None,
        drawn: tuple[int, int] | None = None,
    ) -> Self:
        """Return the arrays of a record that a client sent.

        Args:
            record: from anyone; sealed or plain.
            model: see the class.
            reference: see the class.
            dtypes: see the class.
            is_step: see the class.
            codecs: names of codecs that its stream may use, and texts of pipelines; None for all.
            drawn: the seed and the round that pipelines must draw from; None for any.

        Raises:
            RefusedReply: a codec or pipeline that is not among ``codecs``, or draws otherwise.
            ReferenceMismatch: it holds differences from another model than the reference.
            CorruptStream: the bytes are no stream, or an array beside it has no position.
        """
        clock = Stopwatch()
        with clock:
            passthrough_of(record)  # raises here, and not once others have passed
            sent_bytes = sum(len(array.data) for array in record.values())
            hashed = hashlib.sha256()
            for array in record.values():
                hashed.update(array.data)
            reader = None
            if is_sealed(record):
                limits = Limits.of_model(Layout.of(model)) if model else None
                reader = Reader(stream_of(record), limits)
                header = reader.header
                if header.reference is not None:
                    require_reference(header.reference, reference)
                _check_codecs(header, codecs, drawn)
                raw_bytes = header.decoded_bytes
                shapes = {tensor.name: tensor.shape for tensor in header.tensors}
                reader.check()
            else:
                raw_bytes, shapes = sent_bytes, dict(layout_of(record).shapes)
        digest = hashed.digest()
        about = raw_bytes, sent_bytes, digest, is_step
        return cls(record, model, reference, shapes, dtypes, *about, clock=clock, _reader=reader)

    @property
    def passthrough(self) -> Mapping[int, tuple[str, Array]]:
        """The arrays that no stream holds, by their positions."""
        return passthrough_of(self.record)

    def scaled(self, factor: float) -> Update:
        """Return the same whose step counts ``factor`` times as much."""
        return replace(self, scale=self.scale * factor)

    def weighted(self, weight: float) -> Update:
        """Return the same with another weight in the average."""
        return replace(self, weight=weight)

    def terms(self) -> list[Term]:
        """Decode it as far as that can fail, tensor by tensor."""
        with self.clock:
            return side_by_side(
                lambda item: self._term(*item),
                self._tensors(),
                lambda item: item[1].nbytes,
                self.raw_bytes,
            )

    def measured(self, terms: list[Term] | None = None) -> Update:
        """Return the same with the norm of its step, which takes decoding all of it once."""
        found = self.terms() if terms is None else terms
        total = sum(term.values.energy for term in found if term.dtype.kind not in "iub")
        return replace(self, norm=math.sqrt(total))

    def arrays(self, terms: list[Term] | None = None) -> dict[str, NDArray]:
        """Return all arrays, the step times `scale` put onto the server's model, as sent in order.

        ``terms`` are emptied, which saves memory.
        """
        found = self.terms() if terms is None else terms

        def array(term: Term) -> tuple[str, NDArray]:
            return term.name, term.array(self.scale)

        with self.clock:
            arrays = dict(
                side_by_side(array, popped(found), lambda term: term.nbytes, self.raw_bytes)
            )
        return {name: arrays[name] for name in self.shapes}

    def clipped(
        self, norm: float, *, keeps_integers: bool = False
    ) -> tuple[dict[str, NDArray], Update]:
        """Return all arrays with a step of at most a norm, and the update with the scale that took.

        As Flower's differential privacy clips: the norm is over all arrays, in float64, and holds
        in the arrays' own dtypes.

        Args:
            norm: above 0.
            keeps_integers: whether integers and bools stay those of the server's model, which the
                norm does not count.

        Raises:
            RefusedReply: it holds arrays that are no numbers, or whose start is not known; or its
                integers have a larger norm.
        """
        for name, _ in self.passthrough.values():
            raise RefusedReply(Refusal.MODEL, f"{name!r} cannot be clipped: it holds no numbers")
        arrays, floats, whole = self.arrays(), 0.0, 0.0
        for name, x in arrays.items():
            start = like_in(self.model, name, x)
            if start is None:
                why = f"{name!r} cannot be clipped: its start is not known"
                raise RefusedReply(Refusal.MODEL, why)
            if x.dtype.kind in "iub" and keeps_integers:
                arrays[name] = start
            elif x.dtype.kind in "iub":
                whole += energy(x, start, double=True)
            else:
                floats += energy(x, start, double=True)
        most = norm * (1 - MARGIN)
        if not math.isfinite(floats + whole):
            raise RefusedReply(Refusal.NOT_FINITE, "it holds NaN, infinities or values near them")
        if whole > most**2:
            raise RefusedReply(Refusal.NORM, f"its integers move by more than {norm:g}")
        allowed = math.sqrt(most**2 - whole)
        scale = min(1.0, allowed / math.sqrt(floats)) if floats else 1.0
        if scale < 1:
            for name, x in arrays.items():
                if x.dtype.kind not in "iub":
                    arrays[name] = scaled_step(x, self.model[name], scale)
        return arrays, replace(self, norm=math.sqrt(floats), scale=scale)

    def _tensors(self) -> Iterator[tuple[str, NDArray | CodedTensor]]:
        """Yield the tensors; coded differences are to be added to the server's model."""
        if self._reader is not None:
            known = self.reference.arrays if self.reference is not None else {}
            onto = {n: x for n, x in self.model.items() if like_in(known, n, x) is not None}
            yield from unpack(self._reader, self.reference, onto)
            return
        for name, shape in self.shapes.items():
            x = from_array(name, self.record[name])
            if x.shape != shape:
                raise RefusedReply(
                    Refusal.DAMAGED, f"array {name!r} has another shape than it says"
                )
            yield name, x

    def _term(self, name: str, x: NDArray | CodedTensor) -> Term:
        dtype = self.dtypes.get(name, x.dtype)
        is_native = isinstance(x, CodedTensor) and x.is_native and dtype == x.dtype
        about = name, dtype, x.shape
        if isinstance(x, CodedTensor) and x.reference is not None:
            if is_native:
                return Term(*about, x.open(), None, x.reference)
            return Term(*about, OpenedArray(x.decode(), x.reference), x.reference, x.reference)
        start, onto = self._bases(name, x)
        if isinstance(x, CodedTensor):
            values = x.open(start) if is_native else OpenedArray(x.decode(), start)
        else:
            values = OpenedArray(x, start)
        return Term(*about, values, start, onto)

    def _bases(self, name: str, x: NDArray | CodedTensor) -> tuple[NDArray | None, NDArray | None]:
        """Return what a tensor started from, and what its step is put onto; None for nothing."""
        if self.is_step or x.dtype.kind in "iub":
            return None, None
        own = self.model.get(name)
        if own is None or (own.shape, own.dtype) != (x.shape, x.dtype):
            return None, None
        if x.dtype not in LOSSY_DTYPES:
            return own, own  # which is exact in every broadcast
        start = self.reference.arrays.get(name) if self.reference is not None else None
        if start is None or (start.shape, start.dtype) != (x.shape, x.dtype):
            return None, None
        return start, own


def _check_codecs(
    header: Header, allowed: Collection[str] | None, drawn: tuple[int, int] | None
) -> None:
    used = {coded_by(payload, header) for payload in header.payloads}
    if allowed is not None and not used <= set(allowed):
        have = f"{', '.join(sorted(used - set(allowed)))}; may be {', '.join(sorted(allowed))}"
        raise RefusedReply(Refusal.CODEC, f"it is packed by {have}")
    for chain in header.chains:
        if drawn is not None and (chain.seed, chain.round) != drawn:
            raise RefusedReply(Refusal.CODEC, f"pipeline {chain.text} of another seed or round")


class SealedRecord(ArrayRecord):
    """A reply's arrays on their way to `StreamingFedAvg`: checked, and not decoded to arrays.

    Only a strategy whose own loop runs is given one. To anything else it is an empty record.

    Args:
        update: the arrays that were sent, with norm and scale.
        terms: its tensors; emptied as they are added up.
        clipping_norm: what differential privacy has it clipped to, in place of the rules; it has
            no terms then.

    Attributes:
        received: the update, or as its receiver has made it.
        refused: why its receiver does not count it, if so.
    """

    def __init__(
        self, update: Update, terms: list[Term], clipping_norm: float | None = None
    ) -> None:
        super().__init__()
        self.received, self._terms, self._clipping_norm = update, terms, clipping_norm
        self.refused: FedszError | None = None

    def opened(self) -> tuple[Update, list[Term], float]:
        """Return what is to be added up: the update, its terms, and what their steps count times.

        Raises:
            FedszError: it cannot be clipped.
        """
        if self._clipping_norm is None:
            return self.received, self._terms, self.received.scale
        with refusing_failures():
            arrays, self.received = self.received.clipped(self._clipping_norm)
            model = self.received.model
            like = Update.open(to_record(arrays), model=model, reference=Reference(model))
            return self.received, like.terms(), 1.0

    def release(self) -> None:
        """Free what was sent; circles of references would keep the bytes until a collection."""
        self.received.record.clear()
        self._terms = []
