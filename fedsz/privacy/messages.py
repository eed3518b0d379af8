"""The messages of a secure sum as bytes, what a reader must refuse, and the members of a round.

A message is a MessagePack array: its name, the round's id, then its fields. Tokens are the last
field of the one message that has any; all others are small. What does not keep to the lengths and
ranges here is refused before anything else looks at it.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from fedsz.errors import CorruptStream, LimitExceeded
from fedsz.privacy.graph import Assumptions, Plan, neighbours, plan
from fedsz.privacy.identity import CertificateVerifier
from fedsz.privacy.keys import COMMITMENT_BYTES, KEY_BYTES, PROTOCOL, SEALED_BYTES, SHARE_BYTES

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
    """

    bits: Annotated[int, msgspec.Meta(ge=1, le=32)]
    tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    assumed: Assumptions


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


class SealedShares(Message, frozen=True, array_like=True, tag=True):
    """A share of each of two secrets, sealed together, for each neighbour.

    Attributes:
        shares: by whom they are for; from the server, by whom they are of.
    """

    shares: Annotated[dict[ClientId, Sealed], _AtMostAll]


class MaskedInput(Message, frozen=True, array_like=True, tag=True):
    """Tokens with all masks, packed.

    Attributes:
        about: a digest of what the tokens are of, which all must agree on.
        unopened: of whom shares did not open.
        tokens: packed; none if a share did not open.
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
_decoder: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(
    Terms | Advert | Roster | SealedShares | MaskedInput | Survivors | Consent | Consents | Revealed
)


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview, kind: type[M], most: int = MOST_BYTES) -> M:
    """Return the message that ``data`` is, of a kind: any for `Message`.

    Raises:
        CorruptStream: it is another one, or none.
        LimitExceeded: it has more than ``most`` bytes.
    """
    if len(data) > most:
        what = f"a message {kind.__name__} of {len(data)} bytes; limit {most}"
        raise LimitExceeded(what)
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise CorruptStream(f"not a message {kind.__name__}: {err}") from err
    if not isinstance(message, kind):
        raise CorruptStream(f"not a message {kind.__name__}: a {type(message).__name__}")
    return message


class Members:
    """A round's members, which server and clients see alike.

    Args:
        terms: of the round.
        verifier: checks signatures, if keys are signed; None leaves them.

    Attributes:
        adverts: by client, in the order in which they were added.
    """

    def __init__(self, terms: Terms, verifier: CertificateVerifier | None) -> None:
        self._terms = terms
        self._verifier = verifier if terms.assumed.signed else None
        self._said: set[int | str | bytes] = set()
        self.adverts: dict[int, Advert] = {}

    def add(self, advert: Advert) -> None:
        """Add a member, before anything below is read.

        Raises:
            CorruptStream: it is not of this round, nobody known has signed it, or a client, a key
                or a signer is there twice.
        """
        if advert.round_id != self._terms.round_id:
            raise CorruptStream(f"keys of client {advert.client} are of another round")
        once: list[int | str | bytes] = [
            advert.client,
            advert.cipher,
            advert.mask,
            advert.commitment,
        ]
        if self._verifier is not None:
            said = statement(self._terms, advert)
            once.append(self._verifier.check(advert.certificate, said, advert.signature))
        if not self._said.isdisjoint(once) or len({*once}) < len(once):
            raise CorruptStream(f"client {advert.client} repeats what another has said")
        self._said.update(once)
        self.adverts[advert.client] = advert

    @cached_property
    def plan(self) -> Plan:
        """What follows from their number.

        Raises:
            ConfigError: no plan fits; see `fedsz.privacy.graph.plan`.
        """
        return plan(len(self.adverts), self._terms.assumed)

    @cached_property
    def roster(self) -> Roster:
        """All of them, by their ids."""
        return Roster(self._terms.round_id, tuple(self.adverts[i] for i in sorted(self.adverts)))

    @cached_property
    def digest(self) -> bytes:
        """What tells this round, with all its terms and keys, apart from others; 32 bytes."""
        return hashlib.sha256(encode(self._terms) + encode(self.roster)).digest()

    @cached_property
    def places(self) -> dict[int, int]:
        """Where each member's shares are taken, from 1 on."""
        return {client: place for place, client in enumerate(sorted(self.adverts), 1)}

    @cached_property
    def _order(self) -> list[int]:
        """The circle of the graph: nobody chooses it, and everybody knows it."""

        def drawn(client: int) -> bytes:
            return hashlib.sha256(self.digest + client.to_bytes(8, "little")).digest()

        return sorted(self.adverts, key=drawn)

    def neighbours(self, client: int) -> list[int]:
        """Return whom a member shares its secrets with."""
        return neighbours(self._order, client, self.plan.degree)

    def about(self, sender: int, receiver: int) -> bytes:
        """Return what is authenticated with sealed shares."""
        return self.digest + sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")

    def consent(self, survivors: tuple[int, ...], about: bytes) -> bytes:
        """Return what members sign who have been told of these survivors of a sum about this."""
        ids = b"".join(client.to_bytes(8, "little") for client in survivors)
        return PROTOCOL + b"survivors " + self.digest + about + ids


def statement(terms: Terms, advert: Advert) -> bytes:
    """Return what a client signs of its keys."""
    bare = replace(advert, certificate=b"", signature=b"")
    return PROTOCOL + b"keys " + encode(terms) + encode(bare)
