"""The members of a round: their keys, their neighbours, and what they sign."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Self

from msgspec.structs import replace

from fedsz.errors import ConfigError, CorruptStream
from fedsz.secagg.graph import Plan, neighbours, plan
from fedsz.secagg.identity import Verifier
from fedsz.secagg.keys import PROTOCOL
from fedsz.secagg.messages import Advert, Roster, Terms, encode


class Members:
    """A round's members, which server and clients see alike.

    Args:
        terms: of the round.
        adverts: of all members.

    Raises:
        CorruptStream: they are not of this round, or a client, a key or a signer is there twice.
        ConfigError: no plan fits their number; see `fedsz.secagg.graph.plan`.
    """

    def __init__(self, terms: Terms, adverts: Iterable[Advert]) -> None:
        self._terms = terms
        self.adverts = {advert.client: advert for advert in sorted(adverts, key=_client)}
        self.roster = Roster(terms.round_id, tuple(self.adverts.values()))
        self.plan: Plan = plan(len(self.adverts), terms.assumed)

    @classmethod
    def of(cls, terms: Terms, roster: Roster, verifier: Verifier | None) -> Self:
        """Return the members of a roster that somebody else has made.

        Args:
            terms: of the round.
            roster: as it came.
            verifier: checks signatures; None leaves them.
        """
        check = AdvertCheck(terms, verifier)
        for advert in roster.adverts:
            check(advert)
        try:
            return cls(terms, roster.adverts)
        except ConfigError as err:
            raise CorruptStream(f"a roster that no plan fits: {err}") from err

    @cached_property
    def digest(self) -> bytes:
        """What tells this round, with all its terms and keys, apart from others; 32 bytes."""
        return hashlib.sha256(encode(self._terms) + encode(self.roster)).digest()

    @cached_property
    def places(self) -> dict[int, int]:
        """Where each member's shares are taken, from 1 on."""
        return {client: place for place, client in enumerate(self.adverts, 1)}

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
        """Return what is authenticated with sealed shares, and committed to with each."""
        return self.digest + sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")

    def consent(self, survivors: tuple[int, ...], about: bytes) -> bytes:
        """Return what members sign who have been told of these survivors of a sum about this."""
        ids = b"".join(client.to_bytes(8, "little") for client in survivors)
        return PROTOCOL + b"survivors " + self.digest + about + ids


class AdvertCheck:
    """Checks adverts one by one against those before.

    Args:
        terms: of the round.
        verifier: checks signatures, if keys are to be signed; None leaves them.
    """

    def __init__(self, terms: Terms, verifier: Verifier | None) -> None:
        self._terms = terms
        self._verifier = verifier if terms.assumed.signed else None
        self._seen: set[int | str | bytes] = set()

    def __call__(self, advert: Advert) -> None:
        """Raise `CorruptStream` for an advert that must not count."""
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
        for one in once:
            if one in self._seen:
                raise CorruptStream(f"client {advert.client} repeats what another has said")
            self._seen.add(one)


def statement(terms: Terms, advert: Advert) -> bytes:
    """Return what a client signs of its keys."""
    bare = replace(advert, certificate=b"", signature=b"")
    return PROTOCOL + b"keys " + encode(terms) + encode(bare)


def _client(advert: Advert) -> int:
    return advert.client
