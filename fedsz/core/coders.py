"""What codes the tensors of a state_dict that may be lossy: a codec within a bound, or a pipeline.

`fedsz.core.feedback` adds error feedback around either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from fedsz.arrays import NDArray, is_finite, is_small, wide
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, LosslessCodec, of_wire_id
from fedsz.core.decode import PipelineDecoder, require_finite
from fedsz.core.settings import Settings
from fedsz.core.tensors import (
    CodedTensor,
    Entry,
    compared,
    encode_difference,
    encode_lossless,
    encode_within,
)
from fedsz.errors import CodecError, CodecUnavailable, CorruptStream
from fedsz.methods import Chain, Shared, State, TensorSpec
from fedsz.methods.symbols import write
from fedsz.stream import CHAIN, CHAIN_DIFFERENCE, CHAINED, DIFFERENCE, VALUES, Part
from fedsz.stream import Chain as ChainRecord

_TENSOR: Final = "/"  # between the name of a state's array and its tensor, in a record


class Coder(ABC):
    """Codes the tensors of one state_dict that may be lossy, several at a time.

    Attributes:
        chains: the pipelines that payloads have been coded by, as the stream's header has them.
        errors: the largest error of each tensor with a bound, as a fraction of that.
    """

    def __init__(self) -> None:
        self.chains: list[ChainRecord] = []
        self.errors: list[float] = []

    @property
    def max_error(self) -> float:
        """The largest error so far, as a fraction of its tensor's bound; 0 without bounds."""
        return max(self.errors, default=0.0)

    @property
    def state(self) -> dict[str, NDArray]:
        """What is kept for the next round; see `flat`."""
        return {}

    @abstractmethod
    def encode(self, entry: Entry) -> Part | None:
        """Return the payload of a tensor; None where it has to stay lossless.

        A tensor with a base is coded as the difference from it.
        """

    def decode(self, entry: Entry, part: Part) -> NDArray:
        """Return the tensor as a receiver of its payload decodes it."""
        codec: Codec | PipelineDecoder
        if part.transform in CHAINED:
            codec = PipelineDecoder.of(self.chains[part.codec_id], entry.name)
        elif part.bound is None:
            return entry.x
        else:
            codec = of_wire_id(part.codec_id)
        base = entry.base if part.transform in (DIFFERENCE, CHAIN_DIFFERENCE) else None
        return CodedTensor(entry.x.dtype, entry.x.shape, codec, part.data, 0, base).decode()

    def exact(self, entry: Entry) -> Entry:
        """Return what is to be sent of a tensor that stays lossless: the tensor."""
        return entry


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

    def bound(self, entry: Entry, start: NDArray | None = None) -> ErrorBound | None:
        """Return a tensor's bound; None where nothing moved, or there is no reference.

        Args:
            entry: the tensor.
            start: what it was trained from. A bound by the deviation is of the step from there, if
                the tensor is coded as a difference.
        """
        x = entry.x
        if entry.name in self._bounds:
            return ErrorBound.abs(self._bounds[entry.name])
        if self._bound.kind == "step":
            return None
        bound = self._settings.bound_of(entry.name)
        if bound.kind == "std" and start is not None and entry.base is not None and x.size:
            own = bound.absolute_of(compared(x, start, deviation=True).deviation)
            return ErrorBound.abs(own) if own else bound
        return bound

    def encode(self, entry: Entry, bound: ErrorBound | None = None) -> Part | None:
        """Do as `Coder.encode`.

        A tensor stays lossless where coding it would hardly save anything, and where its bound
        cannot be kept.

        Args:
            entry: the tensor.
            bound: in place of the tensor's own.
        """
        bound = bound or self.bound(entry)
        if bound is None:
            return None
        if isinstance(self.codec, LosslessCodec):
            return encode_lossless([entry], self.codec)
        within = None
        if entry.base is not None:
            within = encode_difference(entry.x, entry.base, bound, self.codec)
        # A bound by the deviation of differences is none for values: what did not move would be
        # lost.
        if within is None and (entry.base is None or bound.kind != "std"):
            absolute = bound.absolute(entry.x)
            within = encode_within(entry.x, absolute, self.codec) if absolute else None
        if within is None or hardly_saves(within.payload, entry.x):
            return None
        stated = within.bound if self.codec.keeps_bound else within.max_error
        if stated:
            self.errors.append(within.max_error / stated)
        transform = DIFFERENCE if within.is_difference else VALUES
        return Part(self.codec.wire_id, within.payload, stated, (entry.i,), transform)


class PipelineCoder(Coder):
    """A pipeline at work on one state_dict.

    Args:
        chain: what codes tensors.
        seed, round, sender: as in `fedsz.methods.Shared`.
        earlier: the state after an earlier round, as `state` returned it.
        scales: by tensor, what bounds of kind ``step`` are multiplied with.
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

    @property
    def state(self) -> dict[str, NDArray]:
        """Do as `Coder.state`."""
        return flat({**self._earlier, **self._state})

    def encode(self, entry: Entry) -> Part | None:
        """Do as `Coder.encode`.

        A tensor stays lossless where it is empty or not finite, where a method cannot code it or
        would decode it to what is not finite, and where that would hardly save anything. The state
        stays as it was then.

        Raises:
            CodecUnavailable: a codec's library is not installed here.
        """
        base = entry.base
        x = entry.x.astype(wide(entry.x.dtype), copy=False)
        if base is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                x = np.asarray(np.subtract(x, base, dtype=x.dtype))
        payload = self._coded(x, entry) if x.size and is_finite(x) else None
        if payload is None:
            return None
        self.chains[:] = [ChainRecord(str(self._chain.sent), *self._drawn)]
        kind = CHAIN if base is None else CHAIN_DIFFERENCE
        return Part(0, payload, None, (entry.i,), kind)

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
                    require_finite(chain.decode(coded, shared))
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
        if not alike(earlier, first):
            return first
        self._state[spec.name] = earlier
        return earlier


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


def alike(state: State, other: State) -> bool:
    """Say whether two states have arrays of the same names, shapes and dtypes."""
    mine, others = ({key: (x.shape, x.dtype) for key, x in s.items()} for s in (state, other))
    return mine == others
