"""A stream -> a state_dict."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from fedsz import codecs, methods
from fedsz.arrays import LOSSY_DTYPES, Buffer, NDArray, StateDict, as_tensor, is_finite, wide
from fedsz.codecs import Codec
from fedsz.codecs.base import Opened, OpenedArray
from fedsz.core.reference import Reference, like_in, require_reference
from fedsz.core.tensors import CodedTensor, base_of, decode_lossless, located, moved
from fedsz.errors import ConfigError, CorruptStream, UnsupportedStream
from fedsz.methods import Chain, Shared, Sparse, TensorSpec
from fedsz.methods.base import DTYPES, Decoded, dense
from fedsz.methods.symbols import read
from fedsz.stream import (
    BITS,
    CHAIN_DIFFERENCE,
    CHAINED,
    DIFFERENCE,
    MOST_CHAINS,
    Limits,
    Reader,
    Tensor,
)
from fedsz.stream import Chain as ChainRecord
from fedsz.threads import allow, side_by_side


def decompress(
    blob: bytes | bytearray | memoryview,
    *,
    reference: Reference | StateDict | None = None,
    as_numpy: bool = False,
    limits: Limits | None = None,
    threads: int = 1,
) -> dict[str, Any]:
    """Return the state_dict that a stream holds, in its order.

    Args:
        blob: a whole stream.
        reference: what the stream's differences refer to, if it holds any.
        as_numpy: return numpy arrays (bfloat16 and float8 by ml_dtypes), which needs no torch.
        limits: how much memory the stream may ask for; by default `Limits()`.
        threads: that may decode tensors at a time, 0 for one on each core.

    Returns:
        Names to torch tensors, or numpy arrays; each owns its memory.

    Raises:
        CorruptStream: the bytes are not a stream, or no longer are; nothing has been kept of it.
        ReferenceMismatch: it holds differences from another state_dict, or from one that was not
            given.
        CodecUnavailable: a codec's library is not installed here.

    Examples:
        >>> import fedsz, numpy as np
        >>> before = {"weight": np.ones(2000, np.float32)}
        >>> blob = fedsz.compress({"weight": np.full(2000, 1.5, np.float32)}, reference=before)
        >>> fedsz.decompress(blob, reference=before, as_numpy=True)["weight"][:2]
        array([1.5, 1.5], dtype=float32)
    """
    with allow(threads):
        arrays = arrays_of(Reader(blob, limits), Reference.of(reference))
    return arrays if as_numpy else {name: as_tensor(x) for name, x in arrays.items()}


def arrays_of(reader: Reader, reference: Reference | None = None) -> dict[str, NDArray]:
    """Return the arrays of a stream by name, in its order.

    Raises:
        CorruptStream: a payload is not what the header says.
        ReferenceMismatch: it is a difference from another state_dict than ``reference``.
        CodecUnavailable: a codec's library is not installed here.
    """

    def decode(item: tuple[str, NDArray | CodedTensor]) -> tuple[str, NDArray]:
        return item[0], owned(item[1])

    coded, total = unpack(reader, reference), reader.header.decoded_bytes
    decoded = dict(side_by_side(decode, coded, lambda item: item[1].nbytes, total))
    return {tensor.name: decoded[tensor.name] for tensor in reader.header.tensors}


def unpack(
    reader: Reader,
    reference: Reference | None = None,
    onto: Mapping[str, NDArray] = MappingProxyType({}),
) -> Iterator[tuple[str, NDArray | CodedTensor]]:
    """Yield name and tensor of a stream; what a codec or a pipeline has coded is left coded.

    Tensors come in the order of their payloads, which is not that of the state_dict. Arrays that
    were stored without loss are read-only views of what was unpacked. Raises as `arrays_of`.

    Args:
        reader: of the stream.
        reference: the model that its differences refer to.
        onto: tensors of the reference's dtypes and shapes, to which coded differences are added in
            the place of the reference's.
    """
    if reader.header.reference is not None:
        require_reference(reader.header.reference, reference)
    pipelines = [PipelineDecoder.of(chain) for chain in reader.header.chains]
    for payload, data, offset in reader.payloads():
        tensors = [reader.header.tensors[i] for i in payload.members]
        with located(offset):
            base = None
            codec: Codec | PipelineDecoder
            if payload.transform in CHAINED:
                codec = pipelines[payload.codec_id].of_tensor(tensors[0])
            else:
                codec = codecs.of_wire_id(payload.codec_id)
            if isinstance(codec, Codec) and payload.bound is None:
                bits = reference if payload.transform == BITS else None
                yield from decode_lossless(codec, data, tensors, bits)
                continue
            (tensor,) = tensors
            if payload.transform in (DIFFERENCE, CHAIN_DIFFERENCE):
                assert reference is not None
                base = base_of(tensor, reference)
                base = onto.get(tensor.name, base)
        yield tensor.name, CodedTensor(tensor.dtype, tensor.shape, codec, data, offset, base)


def differences(reader: Reader, names: Container[str]) -> Iterator[tuple[str, NDArray]]:
    """Yield what a stream adds to the tensors of its reference, which is not at hand.

    Args:
        reader: of the stream.
        names: of the tensors, all in float32. Those of them that are not coded as
            differences by a codec are left out.

    Raises:
        CorruptStream, CodecUnavailable: as `arrays_of`.
    """
    for payload, data, offset in reader.payloads():
        if payload.transform == DIFFERENCE:
            (tensor,) = (reader.header.tensors[i] for i in payload.members)
            if tensor.name in names:
                codec = codecs.of_wire_id(payload.codec_id)
                coded = CodedTensor(tensor.dtype, tensor.shape, codec, data, offset)
                yield tensor.name, coded.decode()


def owned(x: NDArray | CodedTensor) -> NDArray:
    """Return what `unpack` has yielded as a writable array, which does not keep the stream alive.

    Raises:
        CorruptStream: a payload is not what the header says.
        CodecUnavailable: a codec's library is not installed here.
    """
    if isinstance(x, CodedTensor):
        return x.decode()
    return x if x.flags.writeable else x.copy()


def decode_onto(
    reader: Reader, reference: Reference, model: Mapping[str, NDArray]
) -> Iterator[tuple[str, NDArray]]:
    """Yield name and array of each tensor of a reply, its step put onto the server's model.

    That is trained - reference + model of floats that both have; other tensors are as they were
    trained. So are those that are one array in both, to the bit.

    Raises:
        CorruptStream, ReferenceMismatch, CodecUnavailable: as `arrays_of`.
    """
    for name, x in unpack(reader, reference, model):
        is_on_model = isinstance(x, CodedTensor) and x.reference is not None
        y = owned(x)
        start, own = like_in(reference.arrays, name, y), like_in(model, name, y)
        is_as_trained = is_on_model or start is own or y.dtype not in LOSSY_DTYPES
        if not (is_as_trained or start is None or own is None):
            with np.errstate(over="ignore", invalid="ignore"):
                y = moved(own, np.subtract(y, start, dtype=wide(y.dtype)))
        yield name, y


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
        require_finite(decoded)
        return decoded

    def _shared(self, shape: Sequence[int], dtype: np.dtype) -> Shared:
        spec = TensorSpec(tuple(shape), wide(dtype), self.name)
        return Shared(spec, self.record.seed, self.record.round, self.record.sender)


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


def require_finite(decoded: Decoded) -> None:
    """Raise `CorruptStream` if an element is not finite."""
    if not is_finite(decoded.values if isinstance(decoded, Sparse) else decoded):
        raise CorruptStream("an element that is not finite")
