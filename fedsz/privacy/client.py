"""A client of secure sums, one stage after another; bytes in, bytes out.

It keeps one round at a time. Whatever it refuses, it forgets the round: so nothing is answered
twice, and of each neighbour no more than one secret's share is ever revealed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, Self

import msgspec
import numpy as np

from fedsz.errors import CorruptStream, RefusedRequest
from fedsz.privacy import keys
from fedsz.privacy.graph import Assumptions, Plan
from fedsz.privacy.identity import Identity
from fedsz.privacy.keys import SHARE_BYTES
from fedsz.privacy.messages import (
    NOTHING,
    Advert,
    Consent,
    Consents,
    MaskedInput,
    Members,
    Message,
    Revealed,
    Roster,
    SealedShares,
    Survivors,
    Terms,
    decode,
    encode,
    statement,
)
from fedsz.privacy.ring import Ring, Tokens


class Demands(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks of a round, whatever the server says.

    Attributes:
        clients: survivors at least, whoever drops out.
        corrupt: share of the members that may collude, at least.
    """

    clients: int = 2
    corrupt: float = Assumptions().corrupt


class _Round(msgspec.Struct, array_like=True, dict=True):
    """All that a client remembers of a round; most of it is secret."""

    expects: str  # the name of the message that comes next
    terms: Terms
    secrets: keys.Secrets
    roster: Roster | None = None
    shares: dict[int, bytes] = {}  # of each neighbour that has sent some: of its own seed, its key
    survivors: tuple[int, ...] = ()
    about: bytes = NOTHING

    @cached_property
    def members(self) -> Members:
        assert self.roster is not None
        found = Members(self.terms, None)  # which were checked when the roster came
        for advert in self.roster.adverts:
            found.add(advert)
        return found


_rounds: Final = msgspec.msgpack.Decoder(_Round)  # learned before any thread uses it


class SecureClient:
    """One client, from round to round.

    Args:
        client_id: by which the server knows it, in [0, 2^64).
        identity: signs its keys, and checks those of others. A client that has one takes part only
            in rounds whose keys are signed, and in no such round without one.
        demands: what it asks of each round.
    """

    def __init__(
        self, client_id: int, identity: Identity | None = None, demands: Demands | None = None
    ) -> None:
        self.client_id, self.demands = client_id, demands or Demands()
        self._identity = identity
        self._round: _Round | None = None

    def to_bytes(self) -> bytes:
        """Return what it remembers, secrets included; b"" between rounds."""
        return b"" if self._round is None else msgspec.msgpack.encode(self._round)

    def restored(self, kept: bytes) -> Self:
        """Go on from what `to_bytes` returned; raise `CorruptStream` for anything else."""
        try:
            self._round = _rounds.decode(kept) if kept else None
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            raise CorruptStream(f"not the state of a secure sum: {err}") from err
        return self

    @property
    def plan(self) -> Plan:
        """What follows from the number of members, once the roster has come.

        Raises:
            RefusedRequest: it has not.
        """
        if self._round is None or self._round.roster is None:
            raise RefusedRequest("this client remembers no roster of a secure sum")
        return self._round.members.plan

    @property
    def bits(self) -> int:
        """Those of the round's ring; raises as `plan`."""
        _ = self.plan
        assert self._round is not None
        return self._round.terms.bits

    def answer(self, data: bytes) -> bytes:
        """Take a message of the server, and return what it asks for.

        `Terms` begin a round, and ask for an `Advert`; any round before is forgotten. A `Roster`
        asks for `SealedShares`, and `Survivors` for a `Consent` if keys are signed. If they are
        not, these ask for `Revealed`, as `Consents` do.

        Raises:
            CorruptStream: it is no message, or is not signed as it should be.
            RefusedRequest: it is not the one that comes next, or asks for what this client does not
                agree to.
            ConfigError: there are too few members, or too many.
        """
        before, self._round = self._round, None
        message = decode(data, Message)
        if isinstance(message, Terms):
            return encode(self._advertise(before, message))
        kept = self._expecting(before, message)
        if isinstance(message, Roster):
            return encode(self._share(kept, message))
        if isinstance(message, Survivors):
            self._check_survivors(kept, message.clients)
            kept.survivors = message.clients
            return encode(_revealed(kept) if self._identity is None else self._consent(kept))
        if isinstance(message, Consents):
            self._check_consents(kept, message)
            return encode(_revealed(kept))
        raise RefusedRequest("sealed shares without a model")

    def _advertise(self, before: _Round | None, terms: Terms) -> Advert:
        if before is not None and before.terms.round_id == terms.round_id:
            raise RefusedRequest("this round has begun already")
        self._check_terms(terms)
        drawn = keys.Secrets.draw()
        advert = Advert(
            terms.round_id,
            self.client_id,
            keys.public_key(drawn.cipher),
            keys.public_key(drawn.mask),
            keys.commitment(drawn.own, terms.round_id),
        )
        if self._identity is not None:
            signature = self._identity.sign(statement(terms, advert))
            shown = self._identity.certificate
            advert = msgspec.structs.replace(advert, certificate=shown, signature=signature)
        self._round = _Round(Roster.__name__, terms, drawn)
        return advert

    def _share(self, kept: _Round, roster: Roster) -> SealedShares:
        members = Members(kept.terms, self._identity)
        for advert in roster.adverts:
            members.add(advert)
        mine = members.adverts.get(self.client_id)
        if mine is None or (mine.cipher, mine.mask, mine.commitment) != (
            keys.public_key(kept.secrets.cipher),
            keys.public_key(kept.secrets.mask),
            keys.commitment(kept.secrets.own, kept.terms.round_id),
        ):
            raise RefusedRequest("the roster has not the keys of this client")
        if (least := members.plan.least) < (wanted := self.demands.clients):
            raise RefusedRequest(f"a sum of {least} clients or more; this one asks for {wanted}")
        near = members.neighbours(self.client_id)
        places = [members.places[other] for other in near]
        own, mask = (
            keys.split(int.from_bytes(secret, "little"), places, members.plan.threshold)
            for secret in (kept.secrets.own, kept.secrets.mask)
        )
        shares = {}
        for other, place in zip(near, places, strict=True):
            both = b"".join(part[place].to_bytes(SHARE_BYTES, "little") for part in (own, mask))
            theirs, about = members.adverts[other].cipher, members.about(self.client_id, other)
            sealed = keys.seal(kept.secrets.cipher, theirs, both, about, kept.terms.round_id)
            shares[other] = sealed
        kept.expects, kept.roster = SealedShares.__name__, members.roster
        self._round = kept
        return SealedShares(kept.terms.round_id, shares)

    def check_shares(self, data: bytes) -> None:
        """Raise what `mask` would of a message that is not the one that comes next."""
        self._expecting(self._round, decode(data, SealedShares))

    def mask(self, data: bytes, tokens: Tokens, about: bytes = NOTHING) -> bytes:
        """Take the neighbours' `SealedShares`, return ``tokens`` as `MaskedInput`.

        Args:
            data: from the server.
            tokens: as many as the terms say, below 2^bits, unsigned and flat.
            about: 32 bytes, a digest of what the tokens are of. Of clients that differ in it, masks
                do not cancel and signatures do not count.

        Raises:
            CorruptStream: these are no shares.
            RefusedRequest: they are not what comes next, or of fewer neighbours than the threshold.

        If a share does not open, that is all that is said, and the round is forgotten.
        """
        before, self._round = self._round, None
        sent = decode(data, SealedShares)
        kept = self._expecting(before, sent)
        members, ring, secrets = kept.members, Ring(kept.terms.bits), kept.secrets
        if len(sent.shares) < members.plan.threshold:
            few, needed = len(sent.shares), members.plan.threshold
            raise RefusedRequest(f"shares of {few} neighbours; the threshold is {needed}")
        if not sent.shares.keys() <= set(members.neighbours(self.client_id)):
            raise RefusedRequest("shares of clients that are no neighbours")
        masked: Tokens = np.array(tokens, ring.dtype)
        unopened = []
        for other, sealed in sent.shares.items():
            theirs, to_me = members.adverts[other].cipher, members.about(other, self.client_id)
            try:
                both = keys.unseal(secrets.cipher, theirs, sealed, to_me, kept.terms.round_id)
                kept.shares[other] = both
            except CorruptStream:
                unopened.append(other)
        if unopened:
            return encode(MaskedInput(kept.terms.round_id, about, tuple(unopened), memoryview(b"")))
        ring.add_mask(masked, keys.own_seed(secrets.own, kept.terms.round_id))
        for other in sent.shares:
            theirs = members.adverts[other].mask
            seed = keys.pair_seed(secrets.mask, theirs, kept.terms.round_id, about)
            ring.add_mask(masked, seed, subtract=other < self.client_id)
        ring.reduce(masked)
        kept.expects, kept.about, self._round = Survivors.__name__, about, kept
        packed = memoryview(ring.pack(masked))
        return encode(MaskedInput(kept.terms.round_id, about, (), packed))

    def _consent(self, kept: _Round) -> Consent:
        assert self._identity is not None
        kept.expects, self._round = Consents.__name__, kept
        signature = self._identity.sign(kept.members.consent(kept.survivors, kept.about))
        return Consent(kept.terms.round_id, signature)

    def _expecting(self, kept: _Round | None, message: Message) -> _Round:
        """Return the round in which a message is the one that comes next."""
        if kept is None:
            raise RefusedRequest("this client remembers no round of a secure sum")
        kind = type(message).__name__
        if message.round_id != kept.terms.round_id:
            raise RefusedRequest(f"{kind} of another round")
        if kind != kept.expects:
            raise RefusedRequest(f"{kind} to a client that waits for {kept.expects}")
        self._check_terms(kept.terms)
        return kept

    def _check_terms(self, terms: Terms) -> None:
        assumed, demands = terms.assumed, self.demands
        if self._identity is not None and not assumed.signed:
            raise RefusedRequest("keys are not signed in this round; this client asks for that")
        if self._identity is None and assumed.signed:
            raise RefusedRequest("this client has no certificate to sign its keys with")
        if assumed.corrupt < demands.corrupt:
            said = f"corrupt is {assumed.corrupt}"
            raise RefusedRequest(f"{said}; this client asks for {demands.corrupt}")

    def _check_survivors(self, kept: _Round, survivors: tuple[int, ...]) -> None:
        members = kept.members
        if len(survivors) < (least := members.plan.least):
            raise RefusedRequest(f"{len(survivors)} survivors; the round needs {least}")
        if list(survivors) != sorted(set(survivors)) or not members.adverts.keys() >= {*survivors}:
            raise RefusedRequest("the survivors are not some of the members, ascending")
        if self.client_id not in survivors:
            raise RefusedRequest("this client is not among the survivors, and has sent its tokens")
        near = set(members.neighbours(self.client_id))
        if not near.intersection(survivors) <= kept.shares.keys():
            raise RefusedRequest("a survivor has sent this client no shares")

    def _check_consents(self, kept: _Round, consents: Consents) -> None:
        members, needed = kept.members, kept.members.plan.consents
        if not consents.signatures.keys() <= {*kept.survivors}:
            raise RefusedRequest("signatures of others than the survivors")
        if len(consents.signatures) < needed:
            few = len(consents.signatures)
            raise RefusedRequest(f"{few} signatures of the survivors; the round needs {needed}")
        said = members.consent(kept.survivors, kept.about)
        assert self._identity is not None
        for client, signature in consents.signatures.items():
            self._identity.check(members.adverts[client].certificate, said, signature)


def _revealed(kept: _Round) -> Revealed:
    """Return one share of each neighbour, and so of one of its two secrets."""
    alive = frozenset(kept.survivors)
    own = {c: both[:SHARE_BYTES] for c, both in kept.shares.items() if c in alive}
    mask = {c: both[SHARE_BYTES:] for c, both in kept.shares.items() if c not in alive}
    return Revealed(kept.terms.round_id, own, mask)
