"""Tensors that a pipeline of methods codes: a sender's side with its state, and a receiver's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from fedsz import methods
from fedsz.arrays import Buffer, NDArray, chunks, is_finite, is_small, wide
from fedsz.codecs.base import Opened, OpenedArray
from fedsz.core.coders import Coder, base_of, hardly_saves
from fedsz.core.lossless import Entry
from fedsz.core.lossy import moved, narrow, saturated
from fedsz.core.reference import Reference
from fedsz.errors import CodecError, CodecUnavailable, ConfigError, CorruptStream, UnsupportedStream
from fedsz.methods import Chain, Shared, Sparse, State, TensorSpec
from fedsz.methods.base import DTYPES, Decoded, dense
from fedsz.methods.symbols import read, write
from fedsz.stream import CHAIN, CHAIN_DIFFERENCE, MOST_CHAINS, Tensor
from fedsz.stream import Chain as ChainRecord
from fedsz.stream import Part as Payload

_TENSOR: Final = "/"  # between the name of a state's array and its tensor, in a record


class PipelineCoder(Coder):
    """A pipeline at work on one state_dict.

    Args:
        chain: what codes tensors.
        seed, round, sender: as in `fedsz.methods.Shared`.
        earlier: the state after an earlier round, as `state` returned it.
        scales: by tensor, what bounds of kind ``step`` are multiplied with.

    Attributes:
        misfits: by tensor, why its earlier state is not used.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        seed: int = 0,
        round: int = 0,  # noqa: A002
        sender: int = 0,
        earlier: Mapping[str, NDArray] = MappingProxyType({}),
        scales: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._chain, self._drawn, self._scales = chain, (seed, round, sender), scales
        self._earlier, self._state = by_tensor(earlier), dict[str, State]()
        self.misfits: dict[str, str] = {}

    @property
    def state(self) -> dict[str, NDArray]:
        """What the methods keep for the next round; see `flat`."""
        return flat({**self._earlier, **self._state})

    def encode(self, entry: Entry, reference: Reference | None) -> Payload | None:
        """Do as `Coder.encode`.

        A tensor stays lossless where it is empty or not finite, where a method cannot code it or
        would decode it to what is not finite, and where that would hardly save anything. The state
        stays as it was then.

        Raises:
            CodecUnavailable: a codec's library is not installed here.
        """
        base = base_of(entry, reference)
        x = entry.x.astype(wide(entry.x.dtype), copy=False)
        if base is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                x = np.asarray(np.subtract(x, base, dtype=x.dtype))
        payload = self._coded(x, entry) if x.size and is_finite(x) else None
        if payload is None:
            return None
        record = ChainRecord(str(self._chain.sent), *self._drawn)
        if record not in self.chains:
            self.chains.append(record)
        kind = CHAIN if base is None else CHAIN_DIFFERENCE
        return Payload(self.chains.index(record), payload, None, (entry.i,), kind)

    def decode(self, entry: Entry, part: Payload, reference: Reference | None) -> NDArray:
        """Do as `Coder.decode`."""
        base = base_of(entry, reference) if part.transform == CHAIN_DIFFERENCE else None
        decoder = PipelineDecoder.of(self.chains[part.codec_id], entry.name)
        decoded = decoder.decode(part.data, entry.x.shape, wide(entry.x.dtype))
        return narrow(decoded, entry.x.dtype) if base is None else moved(base, decoded)

    def _coded(self, x: NDArray, entry: Entry) -> bytes | None:
        """Return the payload of a finite ``x``, and keep the state; None if it stays lossless."""
        spec, chain = TensorSpec(x.shape, x.dtype, entry.name), self._chain
        shared = Shared(spec, *self._drawn, scale=self._scales.get(entry.name, 0.0))
        before = self._before(spec)
        try:
            chain.require_affordable(spec)
            with np.errstate(over="ignore", invalid="ignore"):
                coded, after = chain.encode(x, before, shared)
                payload = write(chain, coded)
                # Most methods decode some elements to more than they were.
                if not all(map(is_small, (x, *before.values()))):
                    _require_finite(chain.decode(coded, shared))
                    if not all(map(is_finite, after.values())):
                        raise CodecError(f"nothing finite is left of {spec.name!r} to keep")
        except CodecUnavailable:
            raise
        except (CodecError, CorruptStream):
            return None
        if hardly_saves(payload, entry.x):
            return None
        if after:
            self._state[spec.name] = after
        return payload

    def _before(self, spec: TensorSpec) -> State:
        """Return the earlier state of a tensor, if it fits, or the state to begin with."""
        first = self._chain.init(spec)
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
        decoded = self._decoded(payload, shape, dtype)
        if base is None:
            y = dense(decoded)
            return y if y.flags.writeable else y.copy()  # a view of the payload
        if not isinstance(decoded, Sparse):
            return moved(base, decoded)
        y = base.copy()
        decoded.add(y, 1.0)
        flat_base, flat_y = base.reshape(-1), y.reshape(-1)
        for here in chunks(decoded.indices.size):
            at = decoded.indices[here]
            if not np.isfinite(flat_y[at]).all():
                flat_y[at] = saturated(flat_y[at], np.isfinite(flat_base[at]))
        return y

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


def flat(states: Mapping[str, State]) -> dict[str, NDArray]:
    """Return the arrays of all tensors' states as a record has them."""
    return {f"{key}{_TENSOR}{name}": x for name, s in states.items() for key, x in s.items()}


def by_tensor(record: Mapping[str, NDArray]) -> dict[str, State]:
    """Return the state of each tensor, given a record of `flat`."""
    states: dict[str, dict[str, NDArray]] = {}
    for key, x in record.items():
        own, _, name = key.partition(_TENSOR)
        states.setdefault(name, {})[own] = x
    return dict(states)


def misfit(earlier: State, needed: State) -> str:
    """Return where a state differs from one of the right shapes and dtypes; "" if it fits."""
    have, want = (
        {key: f"{x.dtype} {x.shape}" for key, x in state.items()} for state in (earlier, needed)
    )
    for key in sorted(have.keys() | want.keys()):
        has, needs = have.get(key, "none"), want.get(key, "none")
        if has != needs:
            return f"{key} is {has} and must be {needs}"
    return ""


@lru_cache(maxsize=MOST_CHAINS)
def _parsed(text: str) -> Chain:
    """Return the pipeline of a header, or raise `UnsupportedStream`."""
    try:
        chain = methods.parse_sent(text)
    except ConfigError as err:
        raise UnsupportedStream(f"unknown pipeline {text!r}: {err}") from err
    if chain.wrappers:
        raise UnsupportedStream(f"{text!r} is no plain pipeline")
    return chain


def _require_finite(decoded: Decoded) -> None:
    """Raise `CorruptStream` if an element is not finite."""
    if not is_finite(decoded.values if isinstance(decoded, Sparse) else decoded):
        raise CorruptStream("an element that is not finite")
