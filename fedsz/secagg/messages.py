"""The messages of a secure sum as bytes, and what a reader must refuse.

A message is a MessagePack array: its name, the round's id, then its fields. Tokens are the last
field of the one message that has any; all others are small. What does not keep to the lengths and
ranges here is refused before anything else looks at it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from fedsz.errors import CorruptStream, LimitExceeded
from fedsz.secagg.graph import Assumptions
from fedsz.secagg.keys import COMMITMENT_BYTES, KEY_BYTES, SEALED_BYTES
from fedsz.secagg.shamir import SHARE_BYTES

VERSION: Final = 2  # of the protocol; clients of the first know no `Terms` with a version
ROUND_BYTES: Final = 32
ABOUT_BYTES: Final = 32
MOST_CLIENTS: Final = 1 << 14
MOST_BYTES: Final = 64 << 20  # of a message without tokens
MOST_TOKENS: Final = 1 << 34
CERTIFICATE_BYTES: Final = 8192  # at most
SIGNATURE_BYTES: Final = 1024

NOTHING: Final = bytes(ABOUT_BYTES)  # that tokens are about, where nobody says

ID_BYTES: Final = 9  # of a client, at most
SPARE_BYTES: Final = 256  # of a message with tokens, beside these and ids


def _exactly(count: int) -> msgspec.Meta:
    return msgspec.Meta(min_length=count, max_length=count)


RoundId = Annotated[bytes, _exactly(ROUND_BYTES)]
ClientId = Annotated[int, msgspec.Meta(ge=0)]  # MessagePack has none above 2^64 - 1
About = Annotated[bytes, _exactly(ABOUT_BYTES)]
Key = Annotated[bytes, _exactly(KEY_BYTES)]
Share = Annotated[bytes, _exactly(SHARE_BYTES)]
Sealed = Annotated[bytes, _exactly(2 * SHARE_BYTES + SEALED_BYTES)]
Commitment = Annotated[bytes, _exactly(COMMITMENT_BYTES)]
Signature = Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)]
Certificate = Annotated[bytes, msgspec.Meta(max_length=CERTIFICATE_BYTES)]
_AtMostAll = msgspec.Meta(max_length=MOST_CLIENTS)


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Any message; all are of one round."""

    round_id: RoundId


class Terms(Message, frozen=True, array_like=True, tag=True):
    """What the server opens a round with.

    Attributes:
        bits: of the ring.
        tokens: how many numbers each client adds.
        assumed: what the round withstands; degree and threshold follow from it.
        version: of the protocol. All have one, or their shares would not be understood.
    """

    bits: Annotated[int, msgspec.Meta(ge=1, le=32)]
    tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    assumed: Assumptions
    version: int = 1


class Advert(Message, frozen=True, array_like=True, tag=True):
    """A client's public keys.

    Attributes:
        client: its id.
        cipher, mask: public keys, for shares and for masks.
        commitment: to the seed of its own mask.
        certificate, signature: who says so; both empty if keys are not signed.
    """

    client: ClientId
    cipher: Key
    mask: Key
    commitment: Commitment
    certificate: Certificate = b""
    signature: Signature = b""


class Roster(Message, frozen=True, array_like=True, tag=True):
    """Everybody's keys, for everybody."""

    adverts: Annotated[tuple[Advert, ...], _AtMostAll]


class SealedPair(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A share of each of a client's two secrets, for one neighbour.

    Attributes:
        sealed: both, of its own mask's seed and of its mask key.
        commitments: to each, by which the server knows it when it is revealed.
    """

    sealed: Sealed
    commitments: tuple[Commitment, Commitment]


class SealedShares(Message, frozen=True, array_like=True, tag=True):
    """Shares for one's neighbours, by whom they are for; from the server, by whom they are of."""

    shares: Annotated[dict[ClientId, SealedPair], _AtMostAll]


class MaskedInput(Message, frozen=True, array_like=True, tag=True):
    """Tokens with all masks, as `fedsz.secagg.packing` packs them.

    Attributes:
        about: a digest of what the tokens are of, which all must agree on.
        unopened: of whom shares did not open, or were others than what was committed to.
        tokens: packed; none if fewer opened than the threshold, for nobody could take the mask off.
    """

    about: About
    unopened: Annotated[tuple[ClientId, ...], _AtMostAll]
    tokens: memoryview


class Survivors(Message, frozen=True, array_like=True, tag=True):
    """Whose masked tokens are in the sum, ascending."""

    clients: Annotated[tuple[ClientId, ...], _AtMostAll]


class Consent(Message, frozen=True, array_like=True, tag=True):
    """A signature of the survivors."""

    signature: Signature


class Consents(Message, frozen=True, array_like=True, tag=True):
    """The signatures of all survivors that have sent one."""

    signatures: Annotated[dict[ClientId, Signature], _AtMostAll]


class Revealed(Message, frozen=True, array_like=True, tag=True):
    """One share of each neighbour.

    Attributes:
        own: of the seeds of survivors' own masks.
        mask: of the private mask keys of those that dropped out.
    """

    own: Annotated[dict[ClientId, Share], _AtMostAll]
    mask: Annotated[dict[ClientId, Share], _AtMostAll]


M = TypeVar("M", bound=Message)
_encoder: Final = msgspec.msgpack.Encoder()
# msgspec learns a type on its first use. Another thread that uses it meanwhile ends the process.
_decoders: Final[dict[type[Message], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in Message.__subclasses__()
}


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview, kind: type[M], most: int = MOST_BYTES) -> M:
    """Return the message of this kind that ``data`` is.

    Raises:
        CorruptStream: it is another one, or none.
        LimitExceeded: it has more than ``most`` bytes.
    """
    if len(data) > most:
        what = f"a message {kind.__name__} of {len(data)} bytes; limit {most}"
        raise LimitExceeded(what)
    try:
        message: M = _decoders[kind].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise CorruptStream(f"not a message {kind.__name__}: {err}") from err
    return message
