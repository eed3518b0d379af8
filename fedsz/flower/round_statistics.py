"""Round statistics: what crosses a Grid, the record of each round, and its line in the log."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid

from fedsz.control.controller import Controller
from fedsz.control.record import (
    ClientRecord,
    Decision,
    Failure,
    RoundRecord,
    Traffic,
    median_metrics,
)
from fedsz.core.protocol import ReplyNote
from fedsz.errors import FedszError
from fedsz.flower.refusal import Refusal, kind_of, reason
from fedsz.flower.update import SealedRecord, Update
from fedsz.flower_compat import records_in
from fedsz.formatting import size

# Flower shows what is logged below its own logger, also from inside of an app.
logger = logging.getLogger("flwr.fedsz")
limits = logging.getLogger(__name__)  # of each update that was scaled down
security = logging.getLogger("fedsz.security")  # heard by the user of a command

LISTED: Final = 10_000  # updates and failures of many rounds; they may never be taken
SMALLER: Final = 1.05  # a ratio below is none that a line names
SHOWN: Final = 3  # failures that a line names


@dataclass(eq=False)
class CountedReply:
    """A reply that counts; the receiver of sealed records may refuse it after all.

    Attributes:
        node: of its sender.
        note: of its sender.
        trains: whether it goes into an average.
        weight: in that average.
        parts: by key, its arrays.
        withdrawn: why it does not count although it has passed, if so.
    """

    node: int
    note: ReplyNote
    trains: bool
    weight: float
    parts: Mapping[str, Update | SealedRecord]
    withdrawn: FedszError | None = None

    @property
    def updates(self) -> list[Update]:
        """Its arrays."""
        return [p.received if isinstance(p, SealedRecord) else p for p in self.parts.values()]

    @property
    def refused(self) -> FedszError | None:
        """Why it does not count after all, if so."""
        sealed = (part for part in self.parts.values() if isinstance(part, SealedRecord))
        return self.withdrawn or next((p.refused for p in sealed if p.refused), None)


class RoundStatistics:
    """Counts what crosses a Grid, makes the record of each round, and has the next one decided.

    Args:
        grid: that carries the messages. Its ``counters``, ``bandwidths`` and ``client_name`` are
            used where it has them.
        controller: decides how each round is sent.
        on_round: called with the record of each round; what it raises is logged.
        logs: whether rounds are logged, and their sum is there for `take_traffic`. A server that
            ends its rounds itself does neither: what is never taken would grow for weeks.

    Attributes:
        controller: as given.
        decision: how messages are sent now.
        replies: those of this round that count, as far as they have not been refused.
        measured: accuracy and loss of the model that goes out next, where an app has said them.
    """

    def __init__(
        self,
        grid: Grid,
        controller: Controller,
        *,
        logs: bool,
        on_round: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        self._grid: Any = grid
        self._on_round = on_round
        self.measured: tuple[float | None, float | None] = None, None
        # What has been counted since `_count`, and what has been added up before that.
        self._clients: list[ClientRecord] = []
        self._failures: list[Failure] = []
        self._bytes = Counter[str]()  # by the fields of `Traffic`
        self._of_round, self._untaken = Traffic(), Traffic()
        self._wire = self._wire_now()
        self._logs = logs
        self.replies: list[CountedReply] = []
        self._ended: RoundRecord | None = None  # the last round, while its model is evaluated
        self.controller, self.decision = controller, Decision(config=controller.base)
        self._evaluated: list[Mapping[str, object]] = []  # metrics of replies to evaluate messages
        self._last = time.monotonic()
        if controller.decision is not None:
            self._use(controller.decision)

    def _use(self, decision: Decision) -> None:
        """Send by a decision from now on.

        Raises:
            CodecUnavailable: a codec that it names is not installed here.
        """
        if decision == self.decision:
            return
        for codec in (decision.config.codec, *decision.codecs.values()):
            decision.config.replace(codec=codec).require()
        self.decision = decision

    def end(self, measured: Mapping[str, Any]) -> RoundRecord:
        """Return the record of the round whose replies are in.

        The next one is decided by `decide`, once the model has been evaluated.

        Args:
            measured: fields of the record that no Grid can know.
        """
        self._count()
        traffic, self._of_round, now = self._of_round, Traffic(), time.monotonic()
        record = RoundRecord(
            **msgspec.structs.asdict(traffic),
            round=self.controller.next_round,
            seconds=now - self._last,
            decision=self.controller.decision,
            **measured,
        )
        self._last, self._ended = now, record.with_finite_metrics()
        if record.round:
            if self._logs:
                log_round(record)
            try:
                if self._on_round is not None:
                    self._on_round(self._ended)
            except Exception:
                logger.exception("on_round failed on round %d", record.round)
        return self._ended

    def decide(self) -> None:
        """Have the next round decided, by the rounds before and the metrics of their models."""
        if self._ended is None:
            if self.controller.next_round:
                return  # decided already
            self.end({})  # round 0: the model before any training
        assert self._ended is not None
        record, evaluated = self._ended, median_metrics(self._evaluated)
        accuracy, loss = evaluated if self.measured == (None, None) else self.measured
        if record.accuracy is None and record.loss is None and not record.diverged:
            record = msgspec.structs.replace(record, accuracy=accuracy, loss=loss)
            record = record.with_finite_metrics()
        self._ended, self.measured, self._evaluated = None, (None, None), []
        self._use(self.controller.decide(record))

    def take_traffic(self) -> Traffic:
        """Return the sum of all rounds since the last call, or since the start; see `LISTED`."""
        self._count()
        traffic, self._untaken = self._untaken, Traffic()
        return traffic

    def sent(self, raw_bytes: int, sent_bytes: int) -> None:
        """Count a message's arrays, before and after compression."""
        self._bytes.update(raw_down=raw_bytes, sent_down=sent_bytes)

    def received(self, reply: CountedReply) -> None:
        """Take note of a reply that has passed; it is counted once its user has decoded it."""
        self.replies.append(reply)

    def failed(self, node: int, why: str, kind: Refusal) -> None:
        """Count a message that got no usable reply."""
        self._failures.append(Failure(self._name(node), why, kind))

    def evaluated(self, reply: Message) -> None:
        """Take the metrics of a reply to an evaluate message."""
        metrics: dict[str, object] = {}
        for record in records_in(reply.content, MetricRecord).values():
            metrics |= dict(record)
        self._evaluated.append(metrics)

    def _count(self) -> None:
        """Count the replies so far, which are decoded by now, and keep none of them."""
        for reply in self.replies:
            raw, sent = (
                sum(getattr(u, n) for u in reply.updates) for n in ("raw_bytes", "sent_bytes")
            )
            if reply.refused:
                self.failed(reply.node, reason(reply.refused), kind_of(reply.refused))
            elif not reply.trains:
                self._bytes.update(raw_other=raw, sent_other=sent)
            else:
                self._clients.append(self._client_record(reply, raw, sent))
        before, self._wire = self._wire, self._wire_now()
        wire = {name: now - before[name] for name, now in self._wire.items()}
        traffic = Traffic.of(self._clients, self._failures, **self._bytes, **wire)
        self.replies, self._clients, self._failures, self._bytes = [], [], [], Counter()
        self._of_round = self._of_round.plus(traffic)
        if self._logs:
            self._untaken = self._untaken.plus(traffic, LISTED)

    def _client_record(self, reply: CountedReply, raw: int, sent: int) -> ClientRecord:
        updates = reply.updates
        digests = [update.digest for update in updates]
        joined = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()
        return ClientRecord.of(
            reply.note,
            node=str(reply.node),
            client=self._name(reply.node),
            bandwidth=getattr(self._grid, "bandwidths", {}).get(reply.node, 0.0),
            raw_bytes=raw,
            sent_bytes=sent,
            decode_seconds=sum(update.clock.seconds for update in updates),
            weight=reply.weight,
            digest=joined.hex(),
            scale=min((update.scale for update in updates), default=1.0),
            staleness=max((update.staleness for update in updates), default=0),
        )

    def _name(self, node: int) -> str:
        name: str = getattr(self._grid, "client_name", str)(node)
        return name

    def _wire_now(self) -> dict[str, int]:
        """Return the bytes of gRPC messages so far, by the fields of `Traffic`."""
        counters = getattr(self._grid, "counters", None)
        if counters is None:
            return {}
        up, down = counters.wire_bytes_received, counters.wire_bytes_sent
        return {"wire_up": up, "wire_down": down}


def log_round(record: RoundRecord) -> None:
    """Log a round: how much was sent, how much of it arrived, and which clients failed."""
    parts = []
    if record.replies or record.failures or not record.raw_other:
        parts += [f"{record.replies} replies", _sent("up", record.raw_up, record.sent_up)]
    parts.append(_sent("down", record.raw_down, record.sent_down))
    if record.raw_other:
        parts.append(_sent("replies that do not train", record.raw_other, record.sent_other))
    if record.energy_fraction is not None:
        parts.append(f"{record.energy_fraction:.0%} of the updates' energy arrived")
    failed = [f"{failure.client}: {failure.reason}" for failure in record.failures]
    if failed:
        more = f" and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
        parts.append(f"without {'; '.join(failed[:SHOWN])}{more}")
    logger.info("fedsz: round %d: %s", record.round, ", ".join(parts))
    _log_limits(record.clients)


def _sent(direction: str, raw: int, sent: int) -> str:
    ratio = raw / sent if sent else 1.0
    smaller = f" ({ratio:.1f}x smaller)" if ratio >= SMALLER else ""
    return f"{direction} {size(sent)} of {size(raw)}{smaller}"


def _log_limits(clients: Sequence[ClientRecord]) -> None:
    """Log each update that was scaled down, and warn where most of a round's weight was."""
    scaled = [client for client in clients if client.scale < 1 and not client.staleness]
    for client in scaled:
        name = client.client or client.node
        limits.warning("client %s: its norm is above the limit: scaled by %.2g", name, client.scale)
    weight, whole = (sum(client.weight for client in part) for part in (scaled, clients))
    if 2 * weight > whole:
        security.warning(
            "%d of %d updates, with most of the round's weight, move further than their limit and"
            " are scaled down to it: either they are hostile, or too many others hardly move; see"
            " --max-update-norm",
            len(scaled),
            len(clients),
        )
