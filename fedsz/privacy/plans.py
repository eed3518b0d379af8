"""What server and clients agree on before a secure sum, and the mean update that a sum says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np

from fedsz.arrays import COMPLEX_DTYPES, DTYPE_NAMES, Buffer, Layout, NDArray
from fedsz.codecs import _stream
from fedsz.errors import ConfigError, CorruptStream

MIN_BITS: Final = 2  # of a ring
MAX_BITS: Final = 32
MAX_BYTES: Final = 1 << 20  # of a plan
DIGEST_BYTES: Final = 16

Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
# Of a norm, a multiplier or a scale: squares, products and quotients of two of them are floats.
Positive = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]
Bits = Annotated[int, msgspec.Meta(ge=MIN_BITS, le=MAX_BITS)]


class SumPlan(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, tag=True
):
    """The plan of one round; the server makes it, and everybody may know it.

    Attributes:
        layout: `layout_digest` of the model.
        bits: of the ring.
    """

    layout: Digest
    bits: Bits

    def encode(self) -> bytes:
        """Return the plan as bytes: MessagePack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Return the plan that `encode` has written.

        Raises:
            CorruptStream: the bytes are no such plan, or more than `MAX_BYTES`.
        """
        if len(data) > MAX_BYTES:
            raise CorruptStream(f"a plan of {len(data)} bytes; have {MAX_BYTES} at most")
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.DecodeError, ConfigError) as err:
            raise CorruptStream(f"no plan of a secure sum: {err}") from err

    def about(self, start: Mapping[str, NDArray]) -> bytes:
        """Return SHA-256 over the plan and the model that training begins with, in order.

        Updates from other models, or in other steps, must not be added up: the largest would be all
        that is seen of the sum.
        """
        hashed = hashlib.sha256(self.encode())
        for name, x in start.items():
            hashed.update(layout_digest(Layout.of({name: x})))
            hashed.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
        return hashed.digest()


@dataclass(frozen=True)
class Sum:
    """What a sum of tokens says.

    Attributes:
        step: the mean update by tensor, in float32 or float64; 0 everywhere if all weights are 0.
        weight: the sum of the clients' weights.
        scales: by tensor, of the next round's grids; none if these do not follow from the sum.
    """

    step: dict[str, NDArray]
    weight: int
    scales: dict[str, float]


def layout_digest(layout: Layout) -> bytes:
    """Return XXH3 (128 bits) over every tensor's name, dtype and shape, in order.

    Raises:
        ConfigError: a tensor is complex, or bytes of any length: such have no sum of tokens.
    """
    hashed: Any = _stream.Xxh3()
    for name, shape in layout.shapes.items():
        dtype = layout.dtypes[name]
        if dtype in COMPLEX_DTYPES:
            raise ConfigError(f"{name!r} is {dtype}: secure sums have no complex numbers")
        head = f"{name}\0{DTYPE_NAMES[dtype]}\0{','.join(map(str, shape))}\0"
        hashed.update(head.encode("utf-8", "surrogatepass"))
    digest: bytes = hashed.digest()
    return digest
