"""Tensors that a chain of methods codes: a sender's side with its state, and a receiver's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from fedsz import methods
from fedsz.arrays import Buffer, NDArray, wide
from fedsz.codecs.base import Opened, OpenedArray
from fedsz.core.encoder import Encoder, hardly_saves
from fedsz.core.lossless import Entry
from fedsz.core.lossy import moved, narrow, saturated
from fedsz.core.reference import Reference
from fedsz.errors import CodecError, CodecUnavailable, ConfigError, CorruptStream, UnsupportedStream
from fedsz.methods import History, Shared, Sparse, State, TensorSpec, Transform, with_history
from fedsz.methods.base import DTYPES, NOTHING, Decoded, Planes, dense, is_finite, is_small
from fedsz.methods.combinators import Chain, Coded
from fedsz.methods.compressed_sum import CompressedSums
from fedsz.methods.eigen import basis_for, require_history
from fedsz.methods.feedback import RESIDUAL
from fedsz.methods.payload import read, write
from fedsz.methods.state import SHIFT, by_tensor, flat, misfit, path_of, restored
from fedsz.stream import CHAIN, CHAIN_DIFFERENCE, MOST_CHAINS, Tensor
from fedsz.stream import Chain as ChainRecord
from fedsz.stream import Part as Payload


class ChainEncoder(Encoder):
    """A chain at work on one state_dict.

    Args:
        transform: what codes tensors. Where it is a `Difference`, the reference that tensors are
            coded from has been moved already, see `fedsz.core.shift`.
        seed, round, sender: as in `fedsz.methods.Shared`.
        kept: what an earlier encoder left, see `left`.
        sent: the model that tensors were trained from, to measure how much of them arrives.
        history: what `fedsz.methods.eigen` takes bases from, if the receiver has it, too.
        scales: by tensor, what bounds of kind ``step`` are multiplied with.
    """

    def __init__(
        self,
        transform: Transform,
        *,
        seed: int = 0,
        round: int = 0,  # noqa: A002
        sender: int = 0,
        kept: Mapping[str, NDArray] = MappingProxyType({}),
        sent: Reference | None = None,
        history: History | None = None,
        scales: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._history, self._scales = history, scales
        self._kept, self._state = by_tensor(kept), dict[str, State]()
        super().__init__(dict.fromkeys(self._kept, "no chain codes it"))
        self._transform = with_history(transform, history)
        self._drawn, self._sent = (seed, round, sender), sent

    @property
    def left(self) -> dict[str, NDArray]:
        """What the sender keeps for the next round, but for shifts; see `state.flat`."""
        return flat(self._state)

    def encode(self, entry: Entry, reference: Reference | None) -> Payload | None:
        """Do as `Encoder.encode`.

        A tensor stays lossless where the chain leaves it alone, where it is empty or not finite,
        where the chain cannot code it or would decode it to what is not finite, and where that
        would hardly save anything. Of a finite one, feedback keeps what it has for the next round
        then.

        Raises:
            ConfigError: the reference lacks it.
            CodecUnavailable: a codec's library is not installed here.
        """
        base = None if reference is None else reference.tensor(entry.name, entry.x)
        x = entry.x.astype(wide(entry.x.dtype), copy=False)
        if base is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                x = np.asarray(np.subtract(x, base, dtype=x.dtype))
        spec = TensorSpec(x.shape, x.dtype, entry.name)
        how = self._transform.of(spec)
        chain = how.sent(spec) if how else None
        shared = Shared(
            spec,
            *self._drawn,
            b"" if reference is None else reference.digest,
            basis_for(chain, self._history, spec) if chain else None,
            self._scales.get(entry.name, 0.0),
        )
        coded = self._coded(x, entry.x, shared) if x.size and is_finite(x) else None
        arriving = entry.x
        if coded is not None and (self._sent is not None or x.dtype != entry.x.dtype):
            decoded = dense(coded.decoded(shared))
            arriving = narrow(decoded, entry.x.dtype) if base is None else moved(base, decoded)
            self._keep_rounding(entry.name, decoded, arriving, base)
        if self._sent is not None and x.size:
            sent = self._sent.tensor(entry.name, entry.x)
            self._measure(entry, sent, self._meant(entry, arriving), arriving)
        if coded is None:
            return None
        record = ChainRecord(coded.chain.told, *self._drawn)
        if record not in self.records:
            self.records.append(record)
        transform = CHAIN if reference is None else CHAIN_DIFFERENCE
        return Payload(self.records.index(record), coded.payload, None, (entry.i,), transform)

    def _coded(self, x: NDArray, tensor: NDArray, shared: Shared) -> _Sent | None:
        """Return what is sent of a tensor by a finite ``x``, and keep what that leaves."""
        spec, transform = shared.spec, self._transform.of(shared.spec)
        chain = transform.sent(spec) if transform else None
        if transform is None or chain is None:
            return None
        coded, before = None, self._before(spec, transform)
        try:
            chain.require_affordable(spec)
            with np.errstate(over="ignore", invalid="ignore"):
                made = transform.encode(x, before, shared)
            after = made.state
            coded = _Sent(chain, made, write(chain, made.planes))
            # Most parts decode some elements to more than they were.
            if not all(map(is_small, (x, *before.values()))):
                _require_finite(coded.decoded(shared))
                if not all(map(is_finite, after.values())):
                    raise CodecError(f"nothing finite is left of {spec.name!r} to keep")
        except CodecUnavailable:
            raise
        except (CodecError, CorruptStream):
            coded, after = None, before
        if coded and hardly_saves(coded.payload, tensor):
            coded, after = None, restored(after, before, RESIDUAL)
        if after:
            self._state[spec.name] = after
        return coded

    def _keep_rounding(
        self, name: str, decoded: NDArray, arriving: NDArray, base: NDArray | None
    ) -> None:
        """Add to what feedback has left out what a narrower dtype rounds off."""
        state = self._state.get(name, NOTHING)
        path = path_of(state, RESIDUAL)
        if path is None or decoded.dtype == arriving.dtype:
            return
        difference = arriving if base is None else np.subtract(arriving, base, dtype=decoded.dtype)
        rounded = decoded - difference.astype(decoded.dtype, copy=False)
        self._state[name] = {**state, path: state[path] + rounded}

    def _meant(self, entry: Entry, arriving: NDArray) -> NDArray:
        """Return what was to arrive of a tensor: what does, and what feedback left out."""
        state = self._state.get(entry.name, NOTHING)
        path = path_of(state, RESIDUAL)
        if path is None:
            return entry.x
        return np.asarray(np.add(arriving, state[path], dtype=state[path].dtype))

    def _before(self, spec: TensorSpec, transform: Transform) -> State:
        """Return what has been kept of a tensor, if it fits, or the state to begin with."""
        first = transform.init(spec)
        if self.misfits.pop(spec.name, None) is None:
            return first
        kept = {path: x for path, x in self._kept[spec.name].items() if path != SHIFT}
        if why := misfit(kept, first):
            self.misfits[spec.name] = why
            return first
        return kept


class _Sent(NamedTuple):
    """A tensor's payload, and what it was made of."""

    chain: Chain
    made: Coded
    payload: bytes

    def decoded(self, shared: Shared) -> Decoded:
        """Return what a receiver decodes, which is not decoded again where that is known."""
        if self.made.decoded is not None:
            return self.made.decoded
        with np.errstate(over="ignore", invalid="ignore"):
            return self.chain.decode(self.made.planes, shared)


@dataclass(frozen=True)
class ChainDecoder:
    """What a chain of a stream's header decodes: to `CodedTensor`, a codec.

    Attributes:
        chain: that decodes.
        record: of the header.
        reference: the model that tensors are differences from, if any.
        name: of the tensor.
    """

    chain: Chain
    record: ChainRecord
    reference: Reference | None = None
    name: str = ""

    dtypes: ClassVar = DTYPES

    @classmethod
    def of(cls, record: ChainRecord, reference: Reference | None) -> ChainDecoder:
        """Return that of a header's chain.

        Raises:
            UnsupportedStream: this release does not know it.
            ReferenceMismatch: it is of another history of broadcasts than the reference has.
        """
        chain = _parsed(record.text)
        require_history(chain, reference.history if reference else None)
        return cls(chain, record, reference)

    def of_tensor(self, tensor: Tensor) -> ChainDecoder:
        """Return that of one tensor; `LimitExceeded` if that takes too much for its size."""
        self.chain.require_affordable(self._shared(tensor.shape, tensor.dtype).spec)
        return replace(self, name=tensor.name)

    def decode(
        self, payload: Buffer, shape: Sequence[int], dtype: np.dtype, base: NDArray | None = None
    ) -> NDArray:
        """Do as `fedsz.codecs.Codec.decode`; without a base, of ``dtype`` or float32.

        Raises:
            CorruptStream: the payload holds something else.
            CodecUnavailable: a codec's library is not installed here.
        """
        decoded = self._decoded(payload, shape, dtype)
        if base is None:
            y = dense(decoded)
            return y if y.flags.writeable else y.copy()  # a view of what was sent
        if not isinstance(decoded, Sparse):
            return moved(base, decoded)
        y = base.copy()
        decoded.add(y, 1.0)
        before, after = (z.reshape(-1)[decoded.indices] for z in (base, y))
        if not np.isfinite(after).all():
            y.reshape(-1)[decoded.indices] = saturated(after, np.isfinite(before))
        return y

    def open(
        self, payload: Buffer, shape: Sequence[int], dtype: np.dtype, base: NDArray | None = None
    ) -> Opened:
        """Do as `fedsz.codecs.Codec.open`: what is sparse stays so, unless there is a base."""
        decoded = self._decoded(payload, shape, dtype)
        if isinstance(decoded, Sparse) and base is None:
            return decoded
        return OpenedArray(dense(decoded), base)

    def open_compressed(
        self, payload: Buffer, shape: Sequence[int], dtype: np.dtype, sums: CompressedSums
    ) -> Opened | None:
        """Decode all but the linear parts, whose values are to be added to one of ``sums``.

        None where there are no such parts, or where their values do not tell their norm.

        Raises:
            CorruptStream, CodecUnavailable: as `decode`.
            CodecError: the tensor has more elements than these parts decode.
        """
        head, tail = self.chain.split()
        shared = self._shared(shape, dtype)
        total = sums.of(head, shared) if head.parts else None
        if total is None:
            return None
        shared = shared.of(head.specs({}, shared.spec)[-1])
        return total.open(_finite(tail, read(tail, payload, shared.spec), shared))

    def _decoded(self, payload: Buffer, shape: Sequence[int], dtype: np.dtype) -> Decoded:
        shared = self._shared(shape, dtype)
        return _finite(self.chain, read(self.chain, payload, shared.spec), shared)

    def _shared(self, shape: Sequence[int], dtype: np.dtype) -> Shared:
        spec = TensorSpec(tuple(shape), wide(dtype), self.name)
        drawn = self.record.seed, self.record.round, self.record.sender
        if self.reference is None:
            return Shared(spec, *drawn)
        basis = basis_for(self.chain, self.reference.history, spec)
        return Shared(spec, *drawn, self.reference.digest, basis)


@lru_cache(maxsize=MOST_CHAINS)
def _parsed(text: str) -> Chain:
    """Return a chain of a header, or raise `UnsupportedStream`."""
    try:
        transform = methods.parse(text, sent=True)
    except ConfigError as err:
        raise UnsupportedStream(f"unknown chain {text!r}: {err}") from err
    if not isinstance(transform, Chain):
        raise UnsupportedStream(f"{text!r} is no plain chain")
    return transform


def _finite(chain: Chain, planes: Planes, shared: Shared) -> Decoded:
    """Return what planes decode to by a chain, or raise `CorruptStream` if it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        decoded = chain.decode(planes, shared)
    _require_finite(decoded)
    return decoded


def _require_finite(decoded: Decoded) -> None:
    """Raise `CorruptStream` if an element is not finite."""
    if not is_finite(decoded.values if isinstance(decoded, Sparse) else decoded):
        raise CorruptStream("an element that is not finite")
