"""inspect: what a stream holds, from its header."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsz import codecs
from fedsz.stream.format import CHAINED, TRANSFORMS, Header, Limits, Payload
from fedsz.stream.reader import Reader


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a stream.

    Attributes:
        name: its key in the state_dict.
        dtype: numpy's (or ml_dtypes') name of its dtype.
        shape: its shape.
        codec: name of the codec of its payload, or the chain of methods that coded it.
        transform: what the codec coded: ``"values"``, ``"delta"`` for their differences from a
            reference's, ``"bits"`` for those of their bits.
        bound: absolute error bound, in the tensor's unit; None if lossless.
        raw_bytes: decoded size.
        nbytes: its share of its payload, by raw size where small tensors share one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    transform: str
    bound: float | None
    raw_bytes: int
    nbytes: float

    @property
    def ratio(self) -> float:
        """Raw over coded size; NaN for an empty tensor."""
        return self.raw_bytes / self.nbytes if self.nbytes else math.nan


@dataclass(frozen=True)
class Info:
    """What the header of a stream says.

    Attributes:
        tensors: in the order of the state_dict.
        raw_bytes: decoded size of all tensors.
        nbytes: size of the whole stream.
        header_bytes: of these, what is not payload.
    """

    tensors: tuple[TensorInfo, ...]
    raw_bytes: int
    nbytes: int
    header_bytes: int

    @property
    def ratio(self) -> float:
        """Raw over coded size."""
        return self.raw_bytes / self.nbytes


def inspect(blob: bytes | bytearray | memoryview, *, limits: Limits | None = None) -> Info:
    """Return what a stream holds, from its header alone: no payload is decoded or checked.

    Args:
        blob: a whole stream.
        limits: how much memory the header may ask for; by default `Limits()`.

    Raises:
        CorruptStream: the header is damaged, or the stream shorter or longer than it says.

    Examples:
        >>> import fedsz, numpy as np
        >>> blob = fedsz.compress({"weight": np.linspace(0, 1, 10_000)}, error_bound=1e-2)
        >>> [(t.name, t.dtype, t.codec, t.bound) for t in fedsz.inspect(blob).tensors]
        [('weight', 'float64', 'uniform', 0.01)]
    """
    header = Reader(blob, limits).header
    infos: dict[int, TensorInfo] = {}
    for payload in header.payloads:
        raw = sum(header.tensors[i].nbytes for i in payload.members)
        for i in payload.members:
            tensor = header.tensors[i]
            infos[i] = TensorInfo(
                tensor.name,
                tensor.dtype.name,
                tensor.shape,
                coded_by(payload, header),
                TRANSFORMS[payload.transform],
                payload.bound,
                tensor.nbytes,
                payload.nbytes * tensor.nbytes / raw if raw else 0.0,
            )
    return Info(
        tuple(infos[i] for i in range(len(infos))),
        header.decoded_bytes,
        len(blob),
        len(blob) - header.payload_bytes,
    )


def coded_by(payload: Payload, header: Header) -> str:
    """Return the name of a payload's codec, or the text of its chain.

    Raises:
        UnsupportedStream: this release does not know the codec.
    """
    if payload.transform in CHAINED:
        return header.chains[payload.codec_id].text
    return codecs.of_wire_id(payload.codec_id).name
