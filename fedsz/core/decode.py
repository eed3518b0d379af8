"""A stream -> a state_dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from fedsz import codecs
from fedsz.arrays import (
    LOSSY_DTYPES,
    NDArray,
    StateDict,
    as_tensor,
    wide,
)
from fedsz.codecs import Codec
from fedsz.core.lossless import base_of, decode_lossless
from fedsz.core.lossy import CodedTensor, located, moved
from fedsz.core.pipeline import PipelineDecoder
from fedsz.core.reference import Reference, like_in, require_reference
from fedsz.stream import BITS, CHAIN_DIFFERENCE, CHAINED, DIFFERENCE, Limits, Reader


def decompress(
    blob: bytes | bytearray | memoryview,
    *,
    reference: Reference | StateDict | None = None,
    as_numpy: bool = False,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """Return the state_dict that a stream holds, in its order.

    Args:
        blob: a whole stream.
        reference: what the stream's differences refer to, if it holds any.
        as_numpy: return numpy arrays (bfloat16 and float8 by ml_dtypes), which needs no torch.
        limits: how much memory the stream may ask for; by default `Limits()`.

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
    arrays = arrays_of(Reader(blob, limits), Reference.of(reference))
    return arrays if as_numpy else {name: as_tensor(x) for name, x in arrays.items()}


def arrays_of(reader: Reader, reference: Reference | None = None) -> dict[str, NDArray]:
    """Return the arrays of a stream by name, in its order; raises as `decode` does."""
    decoded = dict(decode(reader, reference))
    return {tensor.name: decoded[tensor.name] for tensor in reader.header.tensors}


def decode(reader: Reader, reference: Reference | None = None) -> Iterator[tuple[str, NDArray]]:
    """Yield name and array of each tensor of a stream.

    Tensors come in the order of their payloads, which is not that of the state_dict.

    Raises:
        CorruptStream: a payload is not what the header says.
        ReferenceMismatch: it is a difference from another state_dict than ``reference``.
        CodecUnavailable: a codec's library is not installed here.
    """
    for name, x in unpack(reader, reference):
        yield name, owned(x)


def unpack(
    reader: Reader,
    reference: Reference | None = None,
    onto: Mapping[str, NDArray] = MappingProxyType({}),
) -> Iterator[tuple[str, NDArray | CodedTensor]]:
    """Do as `decode`, but leave coded what a codec or a pipeline has coded.

    Arrays that were stored without loss are read-only views of what was unpacked.

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
        CorruptStream, ReferenceMismatch, CodecUnavailable: as `decode`.
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
