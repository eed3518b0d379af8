"""What server and clients agree on before a secure sum: a ring, weights and scales.

Of n clients each adds a number from 0 to floor((2^b - 1) / n) in a token of b bits. So the sum of n
that keep to it is below 2^b, and a ring of b bits cannot overflow. An element is rounded to one of
2c + 1 values, c = floor((2^b - 1) / 2n). Numbers that need more go as digits below
floor((2^b - 1) / n) + 1, one in a token.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
import numpy as np

from fedsz.arrays import COMPLEX_DTYPES, DTYPE_NAMES, Buffer, Layout, NDArray
from fedsz.codecs import _stream
from fedsz.errors import ConfigError, CorruptStream, ModelMismatch

MIN_BITS: Final = 2  # of a ring
MAX_BITS: Final = 32
MAX_TENSORS: Final = 1 << 16
MAX_BYTES: Final = 1 << 20  # of a plan
MAX_CLIENTS: Final = 1 << 20
MAX_WEIGHT: Final = (1 << 32) - 1  # of a client
DIGEST_BYTES: Final = 16
EXACT_VALUES: Final = 1 << 24  # that an element of an exact tensor may have, or more

Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_Counted = Annotated[int, msgspec.Meta(ge=1, le=MAX_CLIENTS)]


class TokenPlan(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """The plan of one round; the server makes it, and everybody may know it.

    Attributes:
        layout: `layout_digest` of the model.
        clients: whose tokens may be added up, at most.
        bits: of the ring.
        cap: the largest weight; a client of more counts as one of this.
        scales: of each tensor, in the model's order: the root mean square of the elements that
            clients have to send; of an exact tensor, how far an element may move.

    Raises:
        ConfigError: a scale is not finite or not above 0, or a ring of so many bits is too small
            for the clients.
    """

    layout: Digest
    clients: _Counted
    bits: Annotated[int, msgspec.Meta(ge=MIN_BITS, le=MAX_BITS)]
    cap: Annotated[int, msgspec.Meta(ge=1, le=MAX_WEIGHT)]
    scales: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_TENSORS)]

    def __post_init__(self) -> None:
        if self.most < 1:
            need = bits_for(self.clients, 1)
            raise ConfigError(
                f"values of {self.clients} clients need a ring of {need} bits or more,"
                f" got {self.bits}"
            )
        if not all(0 < scale < math.inf for scale in self.scales):
            raise ConfigError("a scale of a plan must be finite and above 0")

    @property
    def most(self) -> int:
        """The most steps of the grid that an element may have, either way: c above."""
        return ((1 << self.bits) - 1) // (2 * self.clients)

    @property
    def base(self) -> int:
        """What digits are below."""
        return ((1 << self.bits) - 1) // self.clients + 1

    @property
    def spread(self) -> float:
        """The root mean square that elements are to have, in steps of the grid.

        A grid of so many steps in a root mean square clips 1 to 3 % of them: fewer steps lose more
        to rounding, and more lose more to clipping.
        """
        return self.most / (1.0 + 0.65 * math.log2(self.most + 1.0))

    def digits(self, values: int) -> int:
        """Return how many digits a number takes that has so many values."""
        count, room = 1, self.base
        while room < values:
            count, room = count + 1, room * self.base
        return count

    def encode(self) -> bytes:
        """Return the plan as bytes: MessagePack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: Buffer) -> TokenPlan:
        """Return the plan that `encode` has written.

        Raises:
            CorruptStream: the bytes are no plan, or more than `MAX_BYTES`.
        """
        if len(data) > MAX_BYTES:
            raise CorruptStream(f"a plan of {len(data)} bytes; have {MAX_BYTES} at most")
        try:
            return _plans.decode(data)
        except (msgspec.DecodeError, ConfigError) as err:
            raise CorruptStream(f"no plan of a secure sum: {err}") from err

    def about(self, start: Mapping[str, NDArray]) -> bytes:
        """Return what tokens of a plan, of training that begins with a model, are about."""
        return about(self.encode(), start)

    def require(self, layout: Layout) -> None:
        """Raise `ModelMismatch` unless the plan is for a model of this layout."""
        if self.layout != layout_digest(layout) or len(self.scales) != len(layout.shapes):
            raise ModelMismatch("the plan of a secure sum is for another model")


_plans: Final = msgspec.msgpack.Decoder(TokenPlan)  # learned before any thread uses it


def about(encoded: bytes, start: Mapping[str, NDArray]) -> bytes:
    """Return SHA-256 over a plan as bytes and the model that training begins with, in order.

    Updates from other models, or in other steps, must not be added up: the largest would be all
    that is seen of the sum.
    """
    hashed = hashlib.sha256(encoded)
    for name, x in start.items():
        hashed.update(layout_digest(Layout.of({name: x})))
        hashed.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
    return hashed.digest()


def bits_for(clients: int, most: int) -> int:
    """Return the fewest bits of a ring for so many clients' elements in [-most, most]."""
    return (2 * most * clients).bit_length()


def layout_digest(layout: Layout) -> bytes:
    """Return XXH3 (128 bits) over every tensor's name, dtype and shape, in order.

    Raises:
        ConfigError: a tensor is complex, or bytes of any length: such have no sum of tokens.
    """
    hashed = _stream.Xxh3()
    for name, shape in layout.shapes.items():
        dtype = layout.dtypes[name]
        if dtype in COMPLEX_DTYPES:
            raise ConfigError(f"{name!r} is {dtype}: secure sums have no complex numbers")
        head = f"{name}\0{DTYPE_NAMES[dtype]}\0{','.join(map(str, shape))}\0"
        hashed.update(head.encode("utf-8", "surrogatepass"))
    return hashed.digest()
