"""What crosses a Grid, counted exactly."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from flwr.serverapp import Grid

from fedsz.control.record import ClientRecord, Failure, Traffic
from fedsz.flower.admission import Admitted
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.refusal import Refusal, kind_of, told


class TrafficCounter:
    """Counts until somebody takes the sums.

    Replies are looked at when the sums are taken: by then whoever used them has said how long each
    took to decode, and which was of no use.

    Args:
        grid: that carries the messages. Its ``counters``, ``bandwidths`` and ``client_name`` are
            used where it has them.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid: Any = grid
        self._wire = self._wire_now()
        self._raw_down = self._sent_down = 0
        self._failures: list[Failure] = []
        self._admitted: list[tuple[Admitted, float]] = []

    def sent(self, raw_bytes: int, sent_bytes: int) -> None:
        """Count a message's arrays, before and after compression."""
        self._raw_down += raw_bytes
        self._sent_down += sent_bytes

    def received(self, reply: Admitted) -> None:
        """Count a reply that has passed admission."""
        bandwidth = getattr(self._grid, "bandwidths", {}).get(reply.node, 0.0)
        self._admitted.append((reply, bandwidth))

    def failed(self, node: int, reason: str, kind: Refusal) -> None:
        """Count a message that got no usable reply."""
        self._failures.append(Failure(self._name(node), reason, kind))

    def take(self) -> Traffic:
        """Return what has been counted since the last call, or since the start."""
        for reply, _ in self._admitted:
            if reply.refused:
                self.failed(reply.node, told(reply.refused), kind_of(reply.refused))
        used = [(reply, bandwidth) for reply, bandwidth in self._admitted if not reply.refused]
        aside = [u for reply, _ in used if not reply.trains for u in reply.updates.values()]
        used = [(reply, bandwidth) for reply, bandwidth in used if reply.trains]
        clients = [
            _client_record(reply, self._name(reply.node), bandwidth) for reply, bandwidth in used
        ]
        reports = [reply.report for reply, _ in used]
        wire_up, wire_down = self._wire_now()
        traffic = Traffic(
            replies=len(clients),
            failures=self._failures,
            raw_up=sum(client.raw_bytes for client in clients),
            sent_up=sum(client.sent_bytes for client in clients),
            raw_down=self._raw_down,
            sent_down=self._sent_down,
            wire_up=wire_up - self._wire[0],
            wire_down=wire_down - self._wire[1],
            encode_seconds=sum(client.encode_seconds for client in clients),
            decode_seconds=sum(client.decode_seconds for client in clients),
            max_error=max((report.max_error for report in reports), default=0.0),
            tensors=int(max((report.tensors for report in reports), default=0)),
            lossy=int(max((report.lossy for report in reports), default=0)),
            kept=_median(report.kept for report in reports),
            lag=_median(report.lag for report in reports),
            raw_aside=sum(update.raw_bytes for update in aside),
            sent_aside=sum(update.sent_bytes for update in aside),
            clients=clients,
        )
        self._wire = wire_up, wire_down
        self._raw_down = self._sent_down = 0
        self._failures, self._admitted = [], []
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
        weight=reply.weight,
        digest=_digest(list(reply.updates.values())),
        scale=min((update.scale for update in reply.updates.values()), default=1.0),
        staleness=max((update.staleness for update in reply.updates.values()), default=0),
    )


def _digest(updates: Sequence[ReceivedUpdate]) -> str:
    """Return the digest of a reply: its update's, and of several that of their digests."""
    if len(updates) == 1:
        return updates[0].digest.hex()
    return hashlib.sha256(b"".join(update.digest for update in updates)).hexdigest()


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
