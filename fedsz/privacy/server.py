"""The server of one secure sum: it collects, passes on, and adds up what it cannot read."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

import numpy as np

from fedsz.errors import AbortedRound, ConfigError, CorruptStream
from fedsz.privacy import keys
from fedsz.privacy.graph import Assumptions, Plan, plan
from fedsz.privacy.identity import CertificateVerifier
from fedsz.privacy.messages import (
    ID_BYTES,
    MOST_BYTES,
    NOTHING,
    ROUND_BYTES,
    SPARE_BYTES,
    Advert,
    Consent,
    Consents,
    MaskedInput,
    Members,
    Message,
    Revealed,
    SealedShares,
    Survivors,
    Terms,
    decode,
    encode,
)
from fedsz.privacy.ring import Ring, Tokens

M = TypeVar("M", bound=Message)
_NAMED: Final = 5  # clients in a message


class Stage(Enum):
    """What clients are asked for, in this order."""

    ADVERTS = "public keys"
    SHARES = "sealed shares"
    INPUTS = "masked tokens"
    CONSENTS = "signatures of the survivors"
    REVEALED = "shares of secrets"
    OVER = "nothing"


class Total(NamedTuple):
    """What a round is for: the sum, and whose it is.

    Attributes:
        tokens: the sum modulo 2^bits, in the ring's dtype.
        survivors: whose tokens are in it, ascending.
    """

    tokens: Tokens
    survivors: tuple[int, ...]


class SecureServer:
    """A round, from the first message to the sum.

    Send what `open` and then each `advance` returns, and give `receive` what comes back. Clients of
    which nothing came when `advance` is called have dropped out. After the last stage, `total` is
    the sum. The server keeps one array of its size, whatever the number of clients.

    Attributes:
        members: whoever has advertised keys, once the first stage is over.
        suspects: in how many shares that are garbage a client has had a part, as the one whose
            share it is or as the one who was to have it. One of both has lied.
        total: the sum, once the round is over.

    Args:
        tokens: how many numbers each client adds.
        bits: of the ring, 1 to 32; the sum must be below 2^bits, or it is known modulo that.
        assumed: what the round withstands.
        verifier: checks signatures, if keys are signed.

    Raises:
        ConfigError: there are no such rings or arrays, or keys are signed and nobody checks that.
    """

    def __init__(
        self,
        tokens: int,
        bits: int,
        assumed: Assumptions | None = None,
        verifier: CertificateVerifier | None = None,
    ) -> None:
        assumed = assumed or Assumptions()
        if tokens < 1:
            raise ConfigError(f"a secure sum has at least one token, got {tokens}")
        if assumed.signed and verifier is None:
            raise ConfigError("signed keys need a verifier")
        self._ring, self._verifier = Ring(bits), verifier
        self._terms = Terms(secrets.token_bytes(ROUND_BYTES), bits, tokens, assumed)
        self.stage = Stage.ADVERTS
        self.about = NOTHING  # what tokens must be about, in `SecureClient.mask`
        self._asked: set[int] = set()
        self.members = Members(self._terms, verifier)
        self._shared: dict[int, dict[int, bytes]] = {}  # by receiver, then by sender
        self._sharers: set[int] = set()
        self._survivors: set[int] = set()
        self._total = np.zeros(0, self._ring.dtype)
        self.total: Total | None = None
        self._consents: dict[int, bytes] = {}
        self.suspects = Counter[int]()
        self._own: dict[int, dict[int, int]] = {}  # shares, by whose they are, then by place
        self._mask: dict[int, dict[int, int]] = {}

    def open(self, clients: Iterable[int]) -> dict[int, bytes]:
        """Return what to send to whom first.

        Raises:
            AbortedRound: no plan fits their number.
        """
        self._asked = set(clients)
        planned(len(self._asked), self._terms.assumed)
        return dict.fromkeys(self._asked, encode(self._terms))

    def receive(self, client: int, data: bytes | memoryview) -> None:
        """Take a client's answer.

        Raises:
            CorruptStream: it is none to what was asked, or comes twice; the client has dropped out.
        """
        if client not in self._asked:
            raise CorruptStream(f"client {client} has not been asked for {self.stage.value}")
        self._asked.discard(client)
        takes: dict[Stage, Callable[[int, bytes | memoryview], None]] = {
            Stage.ADVERTS: self._take_advert,
            Stage.SHARES: self._take_shares,
            Stage.INPUTS: self._take_input,
            Stage.CONSENTS: self._take_consent,
            Stage.REVEALED: self._take_revealed,
        }
        takes[self.stage](client, data)

    def advance(self) -> dict[int, bytes]:
        """End a stage, and return what to send to whom next; nothing after the last.

        Raises:
            AbortedRound: too few clients are left. The round is over, and its secrets are safe.
        """
        asks: dict[Stage, Callable[[], tuple[Stage, dict[int, bytes]]]] = {
            Stage.ADVERTS: self._ask_for_shares,
            Stage.SHARES: self._ask_for_inputs,
            Stage.INPUTS: self._ask_about_survivors,
            Stage.CONSENTS: self._ask_to_reveal,
            Stage.REVEALED: self._add_up,
        }
        ended, self.stage = self.stage, Stage.OVER  # which it stays if too few are left
        self._asked = set()
        if ended is Stage.OVER:
            raise AbortedRound("the round is over")
        self.stage, sent = asks[ended]()
        self._asked = set(sent)
        return sent

    def _read(self, data: bytes | memoryview, kind: type[M], most: int = MOST_BYTES) -> M:
        message = decode(data, kind, most)
        if message.round_id != self._terms.round_id:
            raise CorruptStream(f"{kind.__name__} of another round")
        return message

    def _take_advert(self, client: int, data: bytes | memoryview) -> None:
        advert = self._read(data, Advert)
        if advert.client != client:
            raise CorruptStream(f"client {client} has sent keys of client {advert.client}")
        for public in (advert.cipher, advert.mask):
            keys.check_public(public)
        self.members.add(advert)

    def _ask_for_shares(self) -> tuple[Stage, dict[int, bytes]]:
        members = self.members
        planned(len(members.adverts), self._terms.assumed)
        return Stage.SHARES, dict.fromkeys(members.adverts, encode(members.roster))

    def _take_shares(self, client: int, data: bytes | memoryview) -> None:
        message = self._read(data, SealedShares)
        if message.shares.keys() != set(self.members.neighbours(client)):
            raise CorruptStream(f"client {client} has not sent one share for each neighbour")
        for other, sealed in message.shares.items():
            self._shared.setdefault(other, {})[client] = sealed
        self._sharers.add(client)

    def _ask_for_inputs(self) -> tuple[Stage, dict[int, bytes]]:
        threshold, left = self.members.plan.threshold, set(self._sharers)
        near = {client: left.intersection(self.members.neighbours(client)) for client in left}
        while few := {c for c in left if len(near[c] & left) < threshold}:
            left -= few  # they would refuse, and be missed by others
        self._sharers = left
        self._require(len(left), "clients have shared their secrets")
        self._total = np.zeros(self._terms.tokens, self._ring.dtype)
        sent = {}
        for client in left:
            shares = {other: s for other, s in self._shared[client].items() if other in left}
            sent[client] = encode(SealedShares(self._terms.round_id, shares))
        return Stage.INPUTS, sent

    def _take_input(self, client: int, data: bytes | memoryview) -> None:
        near = self._sharers.intersection(self.members.neighbours(client))
        nbytes = self._ring.packed_size(self._terms.tokens)
        message = self._read(data, MaskedInput, nbytes + SPARE_BYTES + ID_BYTES * len(near))
        if message.unopened:
            accused = near.intersection(message.unopened)
            self.suspects.update(accused)
            self.suspects[client] += len(accused)
            said = ", ".join(map(str, message.unopened[:_NAMED]))
            raise CorruptStream(f"client {client} says that shares do not open, of {said}")
        if message.about != self.about:
            raise CorruptStream(f"client {client} has masked tokens of another plan or model")
        self._ring.unpack_add(message.tokens, self._total)
        self._survivors.add(client)

    def _ask_about_survivors(self) -> tuple[Stage, dict[int, bytes]]:
        self._require(len(self._survivors), "clients have sent their tokens")
        stage = Stage.CONSENTS if self._terms.assumed.signed else Stage.REVEALED
        return stage, dict.fromkeys(self._survivors, encode(self._survived))

    def _take_consent(self, client: int, data: bytes | memoryview) -> None:
        signature = self._read(data, Consent).signature
        said = self.members.consent(self._survived.clients, self.about)
        assert self._verifier is not None
        self._verifier.check(self.members.adverts[client].certificate, said, signature)
        self._consents[client] = signature

    def _ask_to_reveal(self) -> tuple[Stage, dict[int, bytes]]:
        if len(self._consents) < (needed := self.members.plan.consents):
            raise AbortedRound(f"{len(self._consents)} signatures of the survivors, not {needed}")
        consents = Consents(self._terms.round_id, self._consents)
        return Stage.REVEALED, dict.fromkeys(self._consents, encode(consents))

    def _take_revealed(self, client: int, data: bytes | memoryview) -> None:
        message, place = self._read(data, Revealed), self.members.places[client]
        near = self._sharers.intersection(self.members.neighbours(client))
        if message.own.keys() != near & self._survivors:
            raise CorruptStream(f"client {client} has not revealed one share of each own mask")
        if message.mask.keys() != near - self._survivors:
            raise CorruptStream(f"client {client} has not revealed one share of each mask key")
        for shares, known in ((message.own, self._own), (message.mask, self._mask)):
            for other, share in shares.items():
                known.setdefault(other, {})[place] = int.from_bytes(share, "little")

    def _add_up(self) -> tuple[Stage, dict[int, bytes]]:
        """Take all masks off the sum."""
        members, round_id = self.members, self._terms.round_id
        own = {
            client: self._recovered(
                client,
                self._own,
                lambda secret: keys.commitment(secret, round_id),
                members.adverts[client].commitment,
            )
            for client in self._survivors
        }
        near = {
            gone: self._survivors.intersection(members.neighbours(gone))
            for gone in self._sharers - self._survivors
        }
        private = {
            gone: self._recovered(gone, self._mask, keys.public_key, members.adverts[gone].mask)
            for gone, others in near.items()
            if others
        }
        if lost := [client for client, secret in (own | private).items() if secret is None]:
            raise AbortedRound(f"a secret cannot be recovered, of {len(lost)} clients")
        for secret in own.values():
            assert secret is not None
            self._ring.add_mask(self._total, keys.own_seed(secret, round_id), subtract=True)
        for gone, secret in private.items():
            assert secret is not None
            for client in near[gone]:
                theirs = members.adverts[client].mask
                seed = keys.pair_seed(secret, theirs, round_id, self.about)
                self._ring.add_mask(self._total, seed, subtract=client < gone)
        self._ring.reduce(self._total)
        self.total = Total(self._total, self._survived.clients)
        return Stage.OVER, {}

    def _recovered(
        self,
        owner: int,
        known: dict[int, dict[int, int]],
        says: Callable[[bytes], bytes],
        said: bytes,
    ) -> bytes | None:
        """Return a client's secret; None if there are too few shares, or one is garbage."""
        threshold, shares = self.members.plan.threshold, known.get(owner, {})
        if len(shares) < threshold:
            return None
        used = dict(sorted(shares.items())[:threshold])
        value = keys.combine(used)
        if not value >> 8 * keys.KEY_BYTES:
            secret = value.to_bytes(keys.KEY_BYTES, "little")
            if says(secret) == said:
                return secret
        places = self.members.places
        self.suspects.update({owner, *(client for client in places if places[client] in used)})
        return None

    @cached_property
    def _survived(self) -> Survivors:
        return Survivors(self._terms.round_id, tuple(sorted(self._survivors)))

    def _require(self, count: int, what: str) -> None:
        if count < (least := self.members.plan.least):
            raise AbortedRound(f"{count} {what}; the round needs {least}")


def planned(clients: int, assumed: Assumptions) -> Plan:
    """Return the plan of so many clients; raise `AbortedRound` if none fits."""
    try:
        return plan(clients, assumed)
    except ConfigError as err:
        raise AbortedRound(str(err)) from err
