"""What server and clients agree on before a secure sum: a ring, scales, and what is sent in turn.

A token of b bits has k places of base B, the largest with B^k <= 2^b. Of n clients each adds a
number from 0 to floor((B - 1) / n) in a place. So the sum of n that keep to it is below B: no place
carries over into the next, and a ring of b bits cannot overflow. A coefficient is rounded to
one of 2c + 1 values, c = floor((B - 1) / 2n), and takes a place. Several in a token take fewer bits
together where 2nc + 1 is far from a power of two: with 4 clients and c = 1, five take 16 bits.
Numbers that need more go as digits below floor((2^b - 1) / n) + 1, one in a token.
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

MAX_BITS: Final = 32  # of a ring
MAX_TOGETHER: Final = 16
MAX_TENSORS: Final = 1 << 16
MAX_BYTES: Final = 1 << 20  # of a plan
MAX_CLIENTS: Final = 1 << 20
MAX_WEIGHT: Final = (1 << 32) - 1  # of a client
DIGEST_BYTES: Final = 16
CLASSES: Final = 17  # of coefficients that were predicted to be as large; see `selection`
LARGEST_FACTOR: Final = 1e3
EXACT_VALUES: Final = 1 << 24  # that an element of an exact tensor may have, or more

Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_Counted = Annotated[int, msgspec.Meta(ge=1, le=MAX_CLIENTS)]
_Factor = Annotated[float, msgspec.Meta(ge=1 / LARGEST_FACTOR, le=LARGEST_FACTOR)]
_Factors = Annotated[tuple[_Factor, ...], msgspec.Meta(min_length=CLASSES, max_length=CLASSES)]
_Word = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class TokenPlan(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """The plan of one round; the server makes it, and everybody may know it.

    Attributes:
        layout: `layout_digest` of the model.
        number: of the round; what is sent in turn depends on it.
        clients: whose tokens may be added up, at most.
        bits: of the ring.
        share: of the coefficients that a round sends, about.
        seed: of turns and dither, the same in all rounds of a run.
        cap: the largest weight; a client of more counts as one of this.
        scales: of each tensor, in the model's order: the root mean square of the coefficients that
            clients have to send; of an exact tensor, how far an element may move.
        together: coefficients in a token: k above.
        dither: whether rounding is dithered, subtractively.
        history: digest of the history whose bases coefficients are of; None for elements as they
            are.
        factors: by class, what the predicted root mean squares of its coefficients were short of;
            only with a history.
        forecast: how many of the history's mean steps the mean takes beforehand, and clients leave
            out; only with a history.
        ahead: whether clients begin to train with what they have not sent yet added to the model.
        even: whether all weigh alike, and only say their weights, up to the cap, for later rounds.
        room: tokens that each client sends, 0 for as many as coefficients take.

    Raises:
        ConfigError: a scale is not finite or not above 0, or a ring of so many bits is too small
            for the clients.
    """

    layout: Digest
    number: _Word
    clients: _Counted
    bits: Annotated[int, msgspec.Meta(ge=2, le=MAX_BITS)]
    share: Annotated[float, msgspec.Meta(gt=0, le=1)]
    seed: _Word
    cap: Annotated[int, msgspec.Meta(ge=1, le=MAX_WEIGHT)]
    scales: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_TENSORS)]
    together: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOGETHER)] = 1
    dither: bool = False
    history: Digest | None = None
    factors: _Factors = CLASSES * (1.0,)
    forecast: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    ahead: bool = False
    even: bool = False
    room: Annotated[int, msgspec.Meta(ge=0, le=1 << 34)] = 0

    def __post_init__(self) -> None:
        if self.most < 1:
            need = bits_for(self.clients, 1, self.together)
            raise ConfigError(
                f"{self.together} coefficients of {self.clients} clients need a ring of {need} bits"
                f" or more, got {self.bits}"
            )
        if not all(0 < scale < math.inf for scale in self.scales):
            raise ConfigError("a scale of a plan must be finite and above 0")

    @property
    def place(self) -> int:
        """What the sum in a coefficient's place is below: B above."""
        low, high = 1, 1 << self.bits
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if middle**self.together <= 1 << self.bits else (low, middle - 1)
            )
        return low

    @property
    def most(self) -> int:
        """The most steps of the grid that a coefficient may have, either way: c above."""
        return (self.place - 1) // (2 * self.clients)

    @property
    def base(self) -> int:
        """What digits are below."""
        return ((1 << self.bits) - 1) // self.clients + 1

    @property
    def spread(self) -> float:
        """The root mean square that coefficients are to have, in steps of the grid.

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


def bits_for(clients: int, most: int, together: int = 1) -> int:
    """Return the fewest bits of a ring for so many clients' coefficients in [-most, most]."""
    sums: int = (2 * most * clients + 1) ** together
    return (sums - 1).bit_length()


def densest(clients: int, most: int = 1) -> tuple[int, int]:
    """Return bits of a ring, and coefficients in a token, that take the fewest bits for each.

    Args:
        clients: whose coefficients are added up, at most.
        most: either way, of each coefficient.
    """
    rings = ((bits_for(clients, most, k), k) for k in range(1, MAX_TOGETHER + 1))
    return min((ring for ring in rings if ring[0] <= MAX_BITS), key=lambda ring: ring[0] / ring[1])


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
