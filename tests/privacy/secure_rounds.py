"""Rounds of secure sums between state machines, in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from fedsz.errors import FedszError
from fedsz.privacy.client import SecureClient
from fedsz.privacy.graph import Assumptions
from fedsz.privacy.messages import decode, encode
from fedsz.privacy.server import SecureServer, Stage

Meddle = Callable[[Stage, int, bytes], bytes]


def changed(data: bytes, kind: type, **fields: object) -> bytes:
    return encode(msgspec.structs.replace(decode(data, kind), **fields))


class Round:
    """A server, its clients, and what each adds.

    Args:
        clients: how many.
        tokens: of each.
        bits: of the ring.
        assumed: what the round withstands.
        seed: of ids, tokens, and who drops out.
        verifier: of signed keys.
        identities: of clients that sign.
    """

    def __init__(
        self,
        clients: int,
        tokens: int = 20,
        bits: int = 13,
        assumed: Assumptions | None = None,
        *,
        seed: int = 0,
        verifier: Any = None,
        identities: Any = None,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        ids = sorted(int(i) for i in self.rng.choice(1 << 40, clients, replace=False))
        signed = identities or [None] * clients
        self.bits = bits
        self.clients = {
            i: SecureClient(i, identity) for i, identity in zip(ids, signed, strict=True)
        }
        self.tokens = {
            i: self.rng.integers(0, 1 << bits, tokens, np.uint64).astype(np.uint32) for i in ids
        }
        self.server = SecureServer(tokens, bits, assumed, verifier)
        self.sent = self.server.open(self.clients)
        self.refusals: dict[int, FedszError] = {}

    def answer(self, client: int, data: bytes) -> bytes:
        """Return what a client answers in this stage."""
        it = self.clients[client]
        if self.server.stage is Stage.INPUTS:
            return it.mask(data, self.tokens[client])
        return it.answer(data)

    def step(
        self, drops: int = 0, meddle: Meddle = lambda _stage, _client, data: data
    ) -> dict[int, bytes]:
        """Go through a stage, in which some drop out; return what clients are sent next.

        ``meddle`` changes answers. What either side refuses, with a `FedszError`, is noted.
        """
        asked = [int(i) for i in self.rng.permutation(sorted(self.sent))][drops:]
        for client in asked:
            try:
                answer = self.answer(client, self.sent[client])
                self.server.receive(client, meddle(self.server.stage, client, answer))
            except FedszError as err:
                self.refusals[client] = err
        self.sent = self.server.advance()
        return self.sent

    def until(self, stage: Stage, drops: Mapping[Stage, int] | None = None) -> Round:
        """Go on until a stage, with so many dropping out before."""
        while self.server.stage is not stage:
            self.step((drops or {}).get(self.server.stage, 0))
        return self

    def plain_sum(self, survivors: tuple[int, ...]) -> Any:
        """Return what the sum must be."""
        total = sum(self.tokens[client].astype(np.uint64) for client in survivors)
        return total % np.uint64(1 << self.bits)
