"""`gate`: is compressing worth it for this client?

`fedsz.control.transfer_time` has the formula, Eqn 1 of the FedSZ paper.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Final

from fedsz.codecs import Raw
from fedsz.control.policy import NextRound, Policy, changed
from fedsz.control.record import ClientRecord, Decision, RoundRecord
from fedsz.control.transfer_time import UpdateCost
from fedsz.spec_strings import setting

RAW: Final = Raw.name
RECENT: Final = 3  # measurements whose median counts
LISTED: Final = 10_000  # clients that are remembered: a node that restarts is another client


@dataclass(frozen=True)
class Client:
    """Measurements of a client.

    Attributes:
        costs: of its last `RECENT` compressed updates; encoding counts with decoding.
        rates: its last `RECENT` bandwidths, in bits a second.
        raw: the last rounds in a row in which it sent its updates as they are.
    """

    costs: tuple[UpdateCost, ...] = ()
    rates: tuple[float, ...] = ()
    raw: int = 0

    def added(self, codec: str | None, record: ClientRecord) -> Client:
        """Return the client after a round in which it used ``codec``; None is the run's."""
        client = replace(self, raw=self.raw + 1 if codec == RAW else 0)
        coding = record.encode_seconds + record.decode_seconds
        sizes = record.raw_bytes, record.sent_bytes
        if codec != RAW and min(sizes) > 0 and 0 <= coding < math.inf:
            costs = (*self.costs, UpdateCost(*sizes, coding, 0.0))[-RECENT:]
            client = replace(client, costs=costs)
        if 0 < record.bandwidth < math.inf:
            client = replace(client, rates=(*self.rates, record.bandwidth)[-RECENT:])
        return client

    def compresses(self, again: int) -> bool:
        """Say whether it is to compress its next update."""
        if not (self.costs and self.rates) or self.raw >= again:
            return True
        cost = UpdateCost(*map(statistics.median, zip(*map(astuple, self.costs), strict=True)))
        return cost.is_worth(statistics.median(self.rates))


@dataclass(frozen=True)
class Gate(Policy):
    """Lets each client compress where that saves time, and send its updates as they are elsewhere.

    A client is asked to compress until its bandwidth and the time that compressing takes are known.
    After ``again`` rounds without, it compresses once more, to see whether that still holds.

    Attributes:
        again: rounds after which a client that sends its updates as they are is asked again.

    Raises:
        ConfigError: ``again`` is below 1.
    """

    name = "gate"

    again: int = setting(10, 1)

    def init(self) -> Mapping[str, Client]:
        """Return no clients."""
        return {}

    def observe(self, state: Mapping[str, Client], record: RoundRecord, /) -> Mapping[str, Client]:
        """Return the clients by node, the last to reply at the end, at most `LISTED`."""
        codecs = record.decision.codecs if record.decision is not None else {}
        clients = dict(state)
        for seen in record.clients:
            client = clients.pop(seen.node, Client())
            clients[seen.node] = client.added(codecs.get(seen.node), seen)
        return dict(list(clients.items())[-LISTED:])

    def decide(
        self, state: Mapping[str, Client], decision: Decision, _coming: NextRound, /
    ) -> Decision:
        """Return ``decision`` with the codec `RAW` for each client that is not to compress."""
        raw = [node for node, client in sorted(state.items()) if not client.compresses(self.again)]
        reason = f"gate: {len(raw)} of {len(state)} clients send as it is"
        return changed(decision, reason, codecs=dict.fromkeys(raw, RAW))
