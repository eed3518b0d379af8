"""What crosses a Grid, counted exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from flwr.serverapp import Grid

from fedsz.control.record import ClientRecord, Failure, Traffic
from fedsz.control.tally import Tally
from fedsz.flower.admission import Admitted
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.refusal import Refusal, kind_of, told


class TrafficCounter:
    """Counts until somebody takes the sums.

    Replies are looked at when they are settled: by then whoever used them has said how long each
    took to decode, and which was of no use.

    Args:
        grid: that carries the messages. Its ``counters``, ``bandwidths`` and ``client_name`` are
            used where it has them.
        most: how many updates and failures it lists, the last ones; None for all. Sums are of all.
    """

    def __init__(self, grid: Grid, most: int | None = None) -> None:
        self._grid: Any = grid
        self._tally = Tally(most)
        self._wire = self._wire_now()
        self._admitted: list[tuple[Admitted, float]] = []

    def sent(self, raw_bytes: int, sent_bytes: int) -> None:
        """Count a message's arrays, before and after compression."""
        self._tally.sent(raw_bytes, sent_bytes)

    def received(self, reply: Admitted) -> None:
        """Count a reply that has passed admission."""
        bandwidth = getattr(self._grid, "bandwidths", {}).get(reply.node, 0.0)
        self._admitted.append((reply, bandwidth))

    def failed(self, node: int, reason: str, kind: Refusal) -> None:
        """Count a message that got no usable reply."""
        self._tally.failed(Failure(self._name(node), reason, kind))

    def settle(self) -> None:
        """Count the replies so far, which are used by now, and keep none of them."""
        for reply, bandwidth in self._admitted:
            updates = reply.updates.values()
            raw, sent = (sum(getattr(u, n) for u in updates) for n in ("raw_bytes", "sent_bytes"))
            if reply.refused:
                self.failed(reply.node, told(reply.refused), kind_of(reply.refused))
            elif not reply.trains:
                self._tally.received_aside(raw, sent)
            else:
                client = _client_record(reply, self._name(reply.node), bandwidth)
                self._tally.received(client, reply.report)
        self._admitted = []

    def take(self) -> Traffic:
        """Return what has been counted since the last call, or since the start."""
        self.settle()
        wire_up, wire_down = self._wire_now()
        traffic = self._tally.take(wire_up - self._wire[0], wire_down - self._wire[1])
        self._wire = wire_up, wire_down
        return traffic

    def _name(self, node: int) -> str:
        name: str = getattr(self._grid, "client_name", str)(node)
        return name

    def _wire_now(self) -> tuple[int, int]:
        counters = getattr(self._grid, "counters", None)
        if counters is None:
            return 0, 0
        return counters.wire_bytes_received, counters.wire_bytes_sent


def _client_record(reply: Admitted, name: str, bandwidth: float) -> ClientRecord:
    return ClientRecord(
        node=str(reply.node),
        client=name,
        bandwidth=bandwidth,
        raw_bytes=sum(update.raw_bytes for update in reply.updates.values()),
        sent_bytes=sum(update.sent_bytes for update in reply.updates.values()),
        encode_seconds=reply.report.encode_seconds,
        decode_seconds=sum(update.seconds for update in reply.updates.values()),
        kept=reply.report.kept,
        lag=reply.report.lag,
        moved=reply.report.moved != 0,
        weight=reply.weight,
        digest=_digest(list(reply.updates.values())),
        scale=min((update.scale for update in reply.updates.values()), default=1.0),
        staleness=max((update.staleness for update in reply.updates.values()), default=0),
        raised=sorted(frozenset[str]().union(*(u.raised for u in reply.updates.values()))),
    )


def _digest(updates: Sequence[ReceivedUpdate]) -> str:
    """Return the digest of a reply: its update's, and of several that of their digests."""
    if len(updates) == 1:
        return updates[0].digest.hex()
    return hashlib.sha256(b"".join(update.digest for update in updates)).hexdigest()
