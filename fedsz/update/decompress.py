"""A stream -> a state_dict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedsz import codecs
from fedsz.arrays import Buffer, NDArray, StateDict, as_tensor
from fedsz.codecs import Codec
from fedsz.errors import ReferenceMismatch
from fedsz.stream import BITS, DIFFERENCE, Limits, Reader, Tensor
from fedsz.update.bounded import narrow
from fedsz.update.coded_tensor import CodedTensor, located
from fedsz.update.difference import moved, wide
from fedsz.update.lossless import base_of, decode_lossless
from fedsz.update.reference import Reference, shown


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
        limits: how much the stream may ask for.

    Returns:
        Names to torch tensors, or numpy arrays; each owns its memory.

    Raises:
        CorruptStream: the bytes are not a stream, or no longer are; nothing has been kept of it.
        ReferenceMismatch: it holds differences from another state_dict, or from one that was not
            given.
        CodecUnavailable: a codec's library is not installed here.
    """
    reader = Reader(blob, limits)
    decoded = dict(decode(reader, Reference.of(reference)))
    arrays = {tensor.name: decoded[tensor.name] for tensor in reader.header.tensors}
    return arrays if as_numpy else {name: as_tensor(x) for name, x in arrays.items()}


def decode(reader: Reader, reference: Reference | None = None) -> Iterator[tuple[str, NDArray]]:
    """Yield name and array of each tensor of a stream.

    Tensors come in the order of their payloads, which is not that of the state_dict.

    Raises:
        CorruptStream: a payload is not what the header says.
        ReferenceMismatch: it is a difference from another state_dict than ``reference``.
        CodecUnavailable: a codec's library is not installed here.
    """
    for name, x in unpack(reader, reference):
        yield name, x.decode() if isinstance(x, CodedTensor) else x


def unpack(
    reader: Reader, reference: Reference | None = None
) -> Iterator[tuple[str, NDArray | CodedTensor]]:
    """Do as `decode`, but leave coded what a codec holds in its own dtype."""
    if reader.header.reference is not None:
        require_reference(reader.header.reference, reference)
    for payload, data, offset in reader.payloads():
        tensors = [reader.header.tensors[i] for i in payload.members]
        with located(offset):
            codec = codecs.of_wire_id(payload.codec_id)
            if payload.bound is None:
                base = reference if payload.transform == BITS else None
                yield from decode_lossless(codec, data, tensors, base)
                continue
            (tensor,) = tensors
            if payload.transform == DIFFERENCE:
                assert reference is not None
                yield tensor.name, _difference(codec, data, offset, tensor, reference)
            elif tensor.dtype in codec.dtypes:
                yield tensor.name, CodedTensor(tensor.dtype, tensor.shape, codec, data, offset)
            else:
                yield tensor.name, narrow(codec.decode(data, tensor.shape), tensor.dtype)


def require_reference(digest: bytes, reference: Reference | None) -> None:
    """Make sure that differences are added to what they refer to.

    Raises:
        ReferenceMismatch: that is not at hand.
    """
    if reference is None:
        raise ReferenceMismatch(f"the stream holds differences from model {shown(digest)}: give it")
    reference.require(digest)


def _difference(
    codec: Codec, data: Buffer, offset: int, tensor: Tensor, reference: Reference
) -> NDArray | CodedTensor:
    base = base_of(tensor, reference)
    if wide(tensor.dtype) in codec.dtypes:
        return CodedTensor(tensor.dtype, tensor.shape, codec, data, offset, base)
    return moved(base, codec.decode(data, tensor.shape))
