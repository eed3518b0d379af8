"""Tensors that a pipeline of methods codes: a sender's side with its state, and a receiver's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fedsz import methods
from fedsz.arrays import Buffer, NDArray, wide
from fedsz.codecs.base import Opened, OpenedArray
from fedsz.core.coders import Coder, hardly_saves
from fedsz.core.lossless import Entry
from fedsz.core.lossy import moved, narrow
from fedsz.errors import CodecError, CodecUnavailable, ConfigError, CorruptStream, UnsupportedStream
from fedsz.methods import Chain, Shared, Sparse, State, TensorSpec, Transform, feedback_of
from fedsz.methods.base import DTYPES, Decoded, dense, is_finite, is_small
from fedsz.methods.payload import read, write
from fedsz.methods.state import by_tensor, flat, misfit
from fedsz.stream import CHAIN, CHAIN_DIFFERENCE, MOST_CHAINS, Tensor
from fedsz.stream import Chain as ChainRecord
from fedsz.stream import Part as Payload


class PipelineCoder(Coder):
    """A pipeline at work on one state_dict.

    Args:
        transform: what codes tensors.
        seed, round, sender: as in `fedsz.methods.Shared`.
        earlier: the state after an earlier round, as `state` returned it.
        scales: by tensor, what bounds of kind ``step`` are multiplied with.

    Attributes:
        misfits: by tensor, why its earlier state is not used.
    """

    def __init__(
        self,
        transform: Transform,
        *,
        seed: int = 0,
        round: int = 0,  # noqa: A002
        sender: int = 0,
        earlier: Mapping[str, NDArray] = MappingProxyType({}),
        scales: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._transform, self._drawn, self._scales = transform, (seed, round, sender), scales
        self._earlier, self._state = by_tensor(earlier), dict[str, State]()
        self.misfits: dict[str, str] = {}

    @property
    def state(self) -> dict[str, NDArray]:
        """What the methods keep for the next round; see `fedsz.methods.state.flat`."""
        return flat({**self._earlier, **self._state})

    def encode(self, entry: Entry) -> Payload | None:
        """Do as `Coder.encode`.

        A tensor stays lossless where the pipeline leaves it alone, where it is empty or not finite,
        where a method cannot code it or would decode it to what is not finite, and where that
        would hardly save anything. The state stays as it was then.

        Raises:
            CodecUnavailable: a codec's library is not installed here.
        """
        base = entry.base
        x = entry.x.astype(wide(entry.x.dtype), copy=False)
        if base is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                x = np.asarray(np.subtract(x, base, dtype=x.dtype))
        transform = self._transform.of(TensorSpec(x.shape, x.dtype, entry.name))
        if transform is None or not x.size or not is_finite(x):
            return None
        payload, chain = self._coded(x, entry, transform)
        if payload is None or chain is None:
            return None
        record = ChainRecord(str(chain), *self._drawn)
        if record not in self.chains:
            self.chains.append(record)
        kind = CHAIN if base is None else CHAIN_DIFFERENCE
        return Payload(self.chains.index(record), payload, None, (entry.i,), kind)

    def feeds_back(self, entry: Entry) -> bool:
        """Do as `Coder.feeds_back`."""
        spec = TensorSpec(entry.x.shape, wide(entry.x.dtype), entry.name)
        return feedback_of(self._transform, spec) is not None

    def decode(self, entry: Entry, part: Payload) -> NDArray:
        """Do as `Coder.decode`."""
        base = entry.base if part.transform == CHAIN_DIFFERENCE else None
        decoder = PipelineDecoder.of(self.chains[part.codec_id], entry.name)
        decoded = decoder.decode(part.data, entry.x.shape, wide(entry.x.dtype))
        return narrow(decoded, entry.x.dtype) if base is None else moved(base, decoded)

    def _coded(
        self, x: NDArray, entry: Entry, transform: Transform
    ) -> tuple[bytes | None, Chain | None]:
        """Return the payload of a finite ``x`` and the chain that decodes it; keep the state."""
        spec = TensorSpec(x.shape, x.dtype, entry.name)
        chain = transform.sent(spec)
        if chain is None:
            return None, None
        shared = Shared(spec, *self._drawn, scale=self._scales.get(entry.name, 0.0))
        before = self._before(spec, transform)
        try:
            chain.require_affordable(spec)
            with np.errstate(over="ignore", invalid="ignore"):
                coded, after = transform.encode(x, before, shared)
                payload = write(chain, coded)
                # Most methods decode some elements to more than they were.
                if not all(map(is_small, (x, *before.values()))):
                    _require_finite(chain.decode(coded, shared))
                    if not all(map(is_finite, after.values())):
                        raise CodecError(f"nothing finite is left of {spec.name!r} to keep")
        except CodecUnavailable:
            raise
        except (CodecError, CorruptStream):
            return None, None
        if hardly_saves(payload, entry.x):
            return None, None
        if after:
            self._state[spec.name] = after
        return payload, chain

    def _before(self, spec: TensorSpec, transform: Transform) -> State:
        """Return the earlier state of a tensor, if it fits, or the state to begin with."""
        first = transform.init(spec)
        earlier = self._earlier.pop(spec.name, None)
        if earlier is None:
            return first
        if why := misfit(earlier, first):
            self.misfits[spec.name] = why
            return first
        self._state[spec.name] = earlier
        return earlier


@dataclass(frozen=True)
class PipelineDecoder:
    """What a pipeline of a stream's header decodes: to `CodedTensor`, a codec.

    Attributes:
        chain: that decodes.
        record: of the header.
        name: of the tensor.
    """

    chain: Chain
    record: ChainRecord
    name: str = ""

    dtypes: ClassVar = DTYPES

    @classmethod
    def of(cls, record: ChainRecord, name: str = "") -> PipelineDecoder:
        """Return that of a header's pipeline; `UnsupportedStream` if it is not known here."""
        return cls(_parsed(record.text), record, name)

    def of_tensor(self, tensor: Tensor) -> PipelineDecoder:
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
        y = dense(self._decoded(payload, shape, dtype))
        if base is not None:
            return moved(base, y)
        return y if y.flags.writeable else y.copy()  # a view of the payload

    def open(
        self, payload: Buffer, shape: Sequence[int], dtype: np.dtype, base: NDArray | None = None
    ) -> Opened:
        """Do as `fedsz.codecs.Codec.open`: what is sparse stays so, unless there is a base."""
        decoded = self._decoded(payload, shape, dtype)
        if isinstance(decoded, Sparse) and base is None:
            return decoded
        return OpenedArray(dense(decoded), base)

    def _decoded(self, payload: Buffer, shape: Sequence[int], dtype: np.dtype) -> Decoded:
        shared = self._shared(shape, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            decoded = self.chain.decode(read(self.chain, payload, shared.spec), shared)
        _require_finite(decoded)
        return decoded

    def _shared(self, shape: Sequence[int], dtype: np.dtype) -> Shared:
        spec = TensorSpec(tuple(shape), wide(dtype), self.name)
        return Shared(spec, self.record.seed, self.record.round, self.record.sender)


@lru_cache(maxsize=MOST_CHAINS)
def _parsed(text: str) -> Chain:
    """Return the pipeline of a header, or raise `UnsupportedStream`."""
    try:
        transform = methods.parse(text, sent=True)
    except ConfigError as err:
        raise UnsupportedStream(f"unknown pipeline {text!r}: {err}") from err
    if not isinstance(transform, Chain):
        raise UnsupportedStream(f"{text!r} is no plain pipeline")
    return transform


def _require_finite(decoded: Decoded) -> None:
    """Raise `CorruptStream` if an element is not finite."""
    if not is_finite(decoded.values if isinstance(decoded, Sparse) else decoded):
        raise CorruptStream("an element that is not finite")
