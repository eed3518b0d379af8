"""compress and decompress: partition -> codecs -> stream, and back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from fedsz import codecs
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, LosslessCodec
from fedsz.codecs.base import Buffer
from fedsz.coded import Coded, located
from fedsz.errors import ReferenceMismatch
from fedsz.lossless import Rest, base_of, decode_lossless, encode_lossless
from fedsz.partition import NDArray, StateDict, as_array, as_tensor, is_lossy
from fedsz.settings import (
    DEFAULT_CODEC,
    DEFAULT_ERROR_BOUND,
    DEFAULT_LOSSLESS,
    DEFAULT_THRESHOLD,
    Settings,
)
from fedsz.stream import BITS, DIFFERENCE, DTYPE_IDS, VALUES, Limits, Part, Reader, Tensor, write
from fedsz.update.difference import encode_difference, moved, wide
from fedsz.update.reference import Reference, shown
from fedsz.within import encode_within, narrow

# Smaller lossless tensors share a payload: a hundred BatchNorm vectors pack better together, and
# a payload of its own costs each of them some 30 bytes.
SHARED_BELOW: Final = 1 << 16  # bytes


@dataclass(frozen=True)
class Report:
    """What compressing one state_dict cost and did.

    Attributes:
        raw_bytes: size of the tensors.
        nbytes: size of the stream.
        seconds: wall time.
        max_error: the largest error, as a share of its tensor's bound (0 to 1).
    """

    raw_bytes: int
    nbytes: int
    seconds: float
    max_error: float


def compress(
    state_dict: StateDict,
    error_bound: ErrorBound | float | str = DEFAULT_ERROR_BOUND,
    *,
    codec: str | Codec = DEFAULT_CODEC,
    lossless: str | Codec = DEFAULT_LOSSLESS,
    threshold: int = DEFAULT_THRESHOLD,
    rule: str = "paper",
    reference: Reference | StateDict | None = None,
) -> bytes:
    """Return a state_dict as one self-describing stream.

    Args:
        state_dict: names to torch tensors or numpy arrays, of any shape; not changed.
        error_bound: the largest error of an element: a float (of each tensor's value range), or
            an `ErrorBound`.
        codec: for the tensors that may be lossy; a name such as ``"uniform"``, one with settings
            such as ``"zfp:precision=14"``, or what `fedsz.codecs.get` returned. A lossless one
            makes the whole stream lossless.
        lossless: for everything else.
        threshold: tensors of up to this many elements stay lossless.
        rule: which other tensors stay lossless; see `fedsz.partition.is_lossy`.
        reference: a state_dict of the same names, dtypes and shapes that whoever decompresses
            holds too. Tensors that may be lossy are then coded as differences from its; the bound
            stays one for the tensors themselves, of their own range, but for ``std``, which is of
            the differences. Lossless tensors are coded as differences of their bits, but for
            codec ``"raw"`` and where they are smaller as they are.

    Raises:
        ConfigError: an argument or a tensor that fedsz does not take, or one that the reference
            lacks.
        CodecUnavailable: a codec's library is not installed here.
    """
    settings = Settings(error_bound, codec, lossless, threshold, rule)
    return compress_measured(state_dict, settings, Reference.of(reference))[0]


def compress_measured(
    state_dict: StateDict, settings: Settings, reference: Reference | None = None
) -> tuple[bytes, Report]:
    """Return what `compress` does, and what it measured on the way."""
    start = time.perf_counter()
    tensors: list[Tensor] = []
    parts: list[Part] = []
    shared: dict[int, list[Rest]] = {}  # item size -> tensors of one payload
    raw_bytes, max_error = 0, 0.0
    # One by one: a mapping may make its arrays as they are asked for.
    for i, (name, value) in enumerate(state_dict.items()):
        x = as_array(name, value)
        tensors.append(Tensor(name, DTYPE_IDS[x.dtype], x.shape))
        raw_bytes += x.nbytes
        if is_lossy(name, x, rule=settings.rule, threshold=settings.threshold):
            coded = _encode_weight(i, name, x, settings, reference)
            if coded is not None:
                parts.append(coded[0])
                max_error = max(max_error, coded[1])
                continue
        if x.nbytes >= SHARED_BELOW:
            parts.append(encode_lossless([Rest(i, name, x)], settings.lossless_codec, reference))
        else:
            shared.setdefault(x.itemsize, []).append(Rest(i, name, x))
    parts += (encode_lossless(s, settings.lossless_codec, reference) for s in shared.values())
    differs = any(part.transform != VALUES for part in parts)
    stream = write(tensors, parts, reference.digest if reference and differs else None)
    return stream, Report(raw_bytes, len(stream), time.perf_counter() - start, max_error)


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
    reader = Reader(limits)
    reader.feed(blob)
    header = reader.check_length()
    decoded = dict(decode(reader, Reference.of(reference)))
    arrays = {tensor.name: decoded[tensor.name] for tensor in header.tensors}
    return arrays if as_numpy else {name: as_tensor(x) for name, x in arrays.items()}


def decode(reader: Reader, reference: Reference | None = None) -> Iterator[tuple[str, NDArray]]:
    """Yield name and array of each tensor whose payload has arrived at ``reader``.

    Tensors come in the order of their payloads, which is not that of the state_dict.

    Raises:
        CorruptStream: a payload is not what the header says.
        ReferenceMismatch: it is a difference from another state_dict than ``reference``.
        CodecUnavailable: a codec's library is not installed here.
    """
    for name, x in unpack(reader, reference):
        yield name, x.decode() if isinstance(x, Coded) else x


def unpack(
    reader: Reader, reference: Reference | None = None
) -> Iterator[tuple[str, NDArray | Coded]]:
    """Do as `decode`, but leave coded what a codec holds in its own dtype."""
    if reader.header is not None and reader.header.reference is not None:
        require_reference(reader.header.reference, reference)
    for payload, data, offset in reader.payloads():
        assert reader.header is not None
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
                yield tensor.name, Coded(tensor.dtype, tensor.shape, codec, data, offset)
            else:
                yield tensor.name, narrow(codec.decode(data, tensor.shape), tensor.dtype)


def decode_chunks(
    chunks: Iterable[bytes], limits: Limits | None = None
) -> Iterator[tuple[str, NDArray]]:
    """Yield name and array of each tensor of a stream that arrives in pieces.

    Raises:
        CorruptStream: the bytes are not a stream; what was yielded before stays valid.
    """
    reader = Reader(limits)
    for chunk in chunks:
        reader.feed(chunk)
        yield from decode(reader)
    reader.close()


def _encode_weight(
    i: int, name: str, x: NDArray, settings: Settings, reference: Reference | None
) -> tuple[Part, float] | None:
    """Code a tensor that may be lossy, and say how much of its bound the error takes.

    None where that would hardly save anything, or where the bound cannot be kept.
    """
    codec = settings.lossy_codec
    if isinstance(codec, LosslessCodec):
        return encode_lossless([Rest(i, name, x)], codec, reference), 0.0
    encoded, transform = None, VALUES
    error_bound = settings.bound_of(name)
    if reference:
        encoded = encode_difference(x, reference.tensor(name, x), error_bound, codec)
        transform = DIFFERENCE
    # A bound by the spread of the differences is none for values: what did not move would be lost.
    if encoded is None and not (reference and error_bound.kind == "std"):
        bound = error_bound.absolute(x)
        encoded = encode_within(x, bound, codec) if bound else None
        transform = VALUES
    if encoded is None or 10 * len(encoded.payload) > 9 * x.nbytes:
        return None
    stated = encoded.bound if codec.keeps_bound else encoded.max_error
    share = encoded.max_error / stated if stated else 0.0
    return Part(codec.wire_id, encoded.payload, stated, (i,), transform), share


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
) -> NDArray | Coded:
    base = base_of(tensor, reference)
    if wide(tensor.dtype) in codec.dtypes:
        return Coded(tensor.dtype, tensor.shape, codec, data, offset, base)
    return moved(base, codec.decode(data, tensor.shape))
