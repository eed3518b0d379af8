"""What codes the tensors of a state_dict that may be lossy: a codec within a bound, or a pipeline.

Coders are values: what a pipeline keeps for the next round goes in with a tensor and comes out with
its payload. `fedsz.core.encode` adds error feedback around either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedsz.arrays import NDArray, is_finite, is_small, wide
from fedsz.codecs import LosslessCodec, of_wire_id
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
from fedsz.methods.base import NOTHING
from fedsz.methods.symbols import write
from fedsz.stream import CHAIN, CHAIN_DIFFERENCE, DIFFERENCE, VALUES, Part
from fedsz.stream import Chain as ChainRecord


class Coded(NamedTuple):
    """A tensor after its coder.

    Attributes:
        part: its payload; None where it has to stay lossless.
        error: the largest one, as a fraction of the bound; 0 without a bound.
        state: what the coder keeps of it for the next round.
    """

    part: Part | None = None
    error: float = 0.0
    state: State = NOTHING


def hardly_saves(payload: bytes, x: NDArray) -> bool:
    """Say whether a payload is so large that its tensor had better stay lossless."""
    return 10 * len(payload) > 9 * x.nbytes


@dataclass(frozen=True)
class CodecCoder:
    """The codec of settings.

    Attributes:
        settings: with the codec and the rule for bounds.
        bounds: by the names of tensors, absolute; they take the place of the settings'. Tensors
            without one stay lossless where the settings' bound is of kind ``step``.
    """

    settings: Settings
    bounds: Mapping[str, float] = field(default_factory=dict)

    def encode(self, entry: Entry, x: NDArray, state: State = NOTHING) -> Coded:
        """Code a tensor, as the difference from its base if it has one; ``state`` is returned.

        It stays lossless where coding it would hardly save anything, and where its bound cannot be
        kept.

        Args:
            entry: the tensor, with its residual.
            x: the same without: a bound by the deviation of the step would grow with the residual.
            state: not used.
        """
        codec, base = self.settings.lossy_codec, entry.base
        if isinstance(codec, LosslessCodec):
            return Coded(encode_lossless([entry], codec), state=state)
        bound = self._bound(entry, x)
        encoded, transform = None, VALUES
        if bound and base is not None:
            encoded, transform = encode_difference(entry.x, base, bound, codec), DIFFERENCE
        if bound and encoded is None:
            encoded, transform = encode_within(entry.x, bound, codec), VALUES
        if encoded is None or hardly_saves(encoded.payload, entry.x):
            return Coded(state=state)
        stated = bound if codec.keeps_bound else encoded.max_error
        part = Part(codec.wire_id, encoded.payload, stated, (entry.i,), transform)
        return Coded(part, encoded.max_error / stated if stated else 0.0, state)

    def decode(self, entry: Entry, part: Part) -> NDArray:
        """Return the tensor as a receiver of its payload decodes it."""
        if part.bound is None:
            return entry.x
        codec, x = of_wire_id(part.codec_id), entry.x
        base = entry.base if part.transform == DIFFERENCE else None
        return CodedTensor(x.dtype, x.shape, codec, part.data, 0, base).decode()

    def _bound(self, entry: Entry, x: NDArray) -> float:
        """Return the absolute bound of a tensor; 0 where it has none."""
        if entry.name in self.bounds or self.settings.bound.kind == "step":
            return self.bounds.get(entry.name, 0.0)
        bound = self.settings.bound_of(entry.name)
        if bound.kind == "std" and entry.base is not None:
            return bound.absolute_of(compared(x, entry.base, deviation=True).deviation)
        return bound.absolute(entry.x)


@dataclass(frozen=True)
class PipelineCoder:
    """A pipeline of methods.

    Attributes:
        chain: what codes tensors.
        seed, round, sender: as in `fedsz.methods.Shared`.
        scales: by tensor, what bounds of kind ``step`` are multiplied with.
    """

    chain: Chain
    seed: int = 0
    round: int = 0
    sender: int = 0
    scales: Mapping[str, float] = field(default_factory=dict)

    @property
    def record(self) -> ChainRecord:
        """The pipeline as the stream's header has it."""
        return ChainRecord(str(self.chain.sent), self.seed, self.round, self.sender)

    def encode(self, entry: Entry, _x: NDArray, state: State = NOTHING) -> Coded:
        """Code a tensor, as the difference from its base if it has one.

        A tensor stays lossless where it is empty or not finite, where a method cannot code it or
        would decode it to what is not finite, and where that would hardly save anything. The state
        stays as it was then.

        Args:
            entry: the tensor, with its residual.
            _x: not used.
            state: of an earlier round; one that does not fit is not used.

        Raises:
            CodecUnavailable: a codec's library is not installed here.
        """
        base, x = entry.base, entry.x.astype(wide(entry.x.dtype), copy=False)
        spec = TensorSpec(x.shape, x.dtype, entry.name)
        first = self.chain.init(spec)
        state = state if alike(state, first) else NOTHING
        if base is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                x = np.asarray(np.subtract(x, base, dtype=x.dtype))
        if not (x.size and is_finite(x)):
            return Coded(state=state)
        try:
            payload, after = self._coded(x, spec, state or first)
        except CodecUnavailable:
            raise
        except (CodecError, CorruptStream):
            return Coded(state=state)
        if hardly_saves(payload, entry.x):
            return Coded(state=state)
        transform = CHAIN if base is None else CHAIN_DIFFERENCE
        return Coded(Part(0, payload, None, (entry.i,), transform), state=after)

    def decode(self, entry: Entry, part: Part) -> NDArray:
        """Return the tensor as a receiver of its payload decodes it."""
        codec, x = PipelineDecoder.of(self.record, entry.name), entry.x
        return CodedTensor(x.dtype, x.shape, codec, part.data, 0, entry.base).decode()

    def _coded(self, x: NDArray, spec: TensorSpec, before: State) -> tuple[bytes, State]:
        """Return the payload of a finite ``x``, and the state after it."""
        chain, scale = self.chain, self.scales.get(spec.name, 0.0)
        shared = Shared(spec, self.seed, self.round, self.sender, scale=scale)
        chain.require_affordable(spec)
        with np.errstate(over="ignore", invalid="ignore"):
            coded, after = chain.encode(x, before, shared)
            payload = write(chain, coded)
            # Most methods decode some elements to more than they were.
            if not all(map(is_small, (x, *before.values()))):
                require_finite(chain.decode(coded, shared))
                if not all(map(is_finite, after.values())):
                    raise CodecError(f"nothing finite is left of {spec.name!r} to keep")
        return payload, after


Coder = CodecCoder | PipelineCoder


def alike(state: State, other: State) -> bool:
    """Say whether two states have arrays of the same names, shapes and dtypes."""
    mine, others = ({key: (x.shape, x.dtype) for key, x in s.items()} for s in (state, other))
    return mine == others
