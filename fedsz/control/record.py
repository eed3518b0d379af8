"""The record of a round: what was sent, how it went, and how the next one is to be sent.

`RoundRecord` is the one list of what there is to say of a round. The server makes it, policies
decide by it, a line of rounds.jsonl holds it, and result tables and reports take their columns from
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from fedsz.core.settings import Settings

VERSION: Final = 1  # of the JSON line and of the sweep's table


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How one round is sent.

    Attributes:
        config: for all clients.
        codecs: by client (its node id as text), its codec where it is not the config's; "raw" sends
            the update as it is.
        why: one line for people, with the numbers that decided.
    """

    config: Settings
    codecs: dict[str, str] = {}
    why: str = ""


class ClientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One client's update in one round.

    Attributes:
        node: its node id, as text.
        client: its name.
        bandwidth: of its way to the server, in bits a second; 0 where it is not known.
        raw_bytes: of its update, before compression.
        sent_bytes: of what it sent.
        encode_seconds: it took to compress, as it reports.
        decode_seconds: the server took to decompress.
        energy_fraction: of its update, 1 - |v - v'|^2 / |v|^2 with v the update and v' what it
            decodes to, as the client reports; None if it does not.
        residual_ratio: the norm of its residual over the norm of its step, as the client reports;
            None without error feedback.
        moved: whether training changed any tensor that may be lossy, as the client reports.
        weight: of its update in the average, after the limit of one client's share; 0 if the
            update has no weight.
        digest: SHA-256 of what it sent, in hexadecimal. The clients of a round stand in the order
            in which their updates were added up.
        scale: what its step counted times; below 1 if its norm was above the limit, or it is stale.
        staleness: how many models are newer than the one that it started from; 0 in rounds that
            wait for their replies.
    """

    node: str
    bandwidth: float
    raw_bytes: int
    sent_bytes: int
    encode_seconds: float
    decode_seconds: float
    energy_fraction: float | None = None
    residual_ratio: float | None = None
    moved: bool = True
    weight: float = 0.0
    digest: str = ""
    scale: float = 1.0
    staleness: int = 0
    client: str = ""


class Failure(msgspec.Struct, frozen=True):
    """A client whose reply a round went on without.

    Attributes:
        client: its name.
        reason: why, for people.
        kind: why, a `fedsz.flower.refusal.Refusal`; "" if unknown.
    """

    client: str
    reason: str
    kind: str = ""


def count_failures(
    failures: Iterable[Failure], before: Mapping[str, Mapping[str, int]] = MappingProxyType({})
) -> dict[str, dict[str, int]]:
    """Return how often each client failed, by its name and the kind, added to those ``before``."""
    totals = {client: Counter(kinds) for client, kinds in before.items()}
    for failure in failures:
        totals.setdefault(failure.client, Counter())[failure.kind] += 1
    return {client: dict(kinds) for client, kinds in totals.items()}


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What crossed a Grid, counted exactly.

    Attributes:
        replies: updates that were decoded.
        failures: messages that got no usable reply.
        raw_up, sent_up: bytes of the updates, before and after compression.
        raw_down, sent_down: bytes of the model, once for each client it went to.
        wire_up, wire_down: bytes of gRPC messages either way; 0 on a Grid that does not count them.
        encode_seconds: the clients' time to compress, added up, as they report it.
        decode_seconds: the server's time to decode.
        max_error: the largest error as a share of its bound, as the clients report it.
        tensors, lossy: how many an update has, and how many of them were lossy; likewise, the
            medians of the clients'.
        energy_fraction, residual_ratio: medians of the clients'; of two in the middle, the better,
            since one of two may lie.
        raw_other, sent_other: bytes of arrays in replies that were not for training, such as those
            to evaluate messages; not among the above.
        clients: what each update took.

    Examples:
        >>> from fedsz.flower import Traffic
        >>> Traffic(replies=2, raw_up=8_000_000, sent_up=400_000).ratio
        20.0
    """

    replies: int = 0
    failures: list[Failure] = []
    raw_up: int = 0
    sent_up: int = 0
    raw_down: int = 0
    sent_down: int = 0
    wire_up: int = 0
    wire_down: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    max_error: float = 0.0
    tensors: int = 0
    lossy: int = 0
    energy_fraction: float | None = None
    residual_ratio: float | None = None
    raw_other: int = 0
    sent_other: int = 0
    clients: list[ClientRecord] = []

    @property
    def ratio(self) -> float | None:
        """Raw over sent bytes of the updates; None if there were none."""
        return self.raw_up / self.sent_up if self.sent_up else None

    @property
    def is_zero(self) -> bool:
        """Whether there are updates, and clients say that none of them changes anything."""
        return bool(self.clients) and not any(client.moved for client in self.clients)


class RoundRecord(Traffic, frozen=True, kw_only=True, tag_field="event", tag="round"):
    """One round that is over.

    Attributes:
        version: of this record.
        round: from 1; 0 is the model before any training, when nothing has been sent.
        accuracy: of the averaged model on held-out data, in [0, 1]; None where it was not measured.
        loss: its mean cross-entropy there, in nats; None where it is not finite, or not measured.
        diverged: whether a metric was measured and is not finite.
        uncounted: why the round does not count, and its model is that of the round before; "" if it
            counts.
        seconds: since the round before.
        train_seconds: the clients' time to train, added up, as they report it.
        test_seconds: the server's time to test the averaged model.
        decision: how this round was sent; None in round 0.
        spread: by lossy tensor, its elements and the root mean square of this round's averaged
            update; empty unless the policy asks for it.
        sensitivity: by lossy tensor, the rise of the held-out loss, in nats, over the mean squared
            error of its elements, as `fedsz.training.sensitivity` measures it; likewise.
        epsilon: what the run has spent of differential privacy; None where it has none.
        delta: that this is at; likewise.
        clipping_norm: that each update was clipped to; likewise.
        ended: why the run ends after this round, if that is sooner than was asked for.
    """

    version: int = VERSION
    round: int
    accuracy: float | None = None
    loss: float | None = None
    diverged: bool = False
    uncounted: str = ""
    seconds: float = 0.0
    train_seconds: float = 0.0
    test_seconds: float = 0.0
    decision: Decision | None = None
    spread: dict[str, tuple[int, float]] = {}
    sensitivity: dict[str, float] = {}
    epsilon: float | None = None
    delta: float | None = None
    clipping_norm: float | None = None
    ended: str = ""


class Totals(msgspec.Struct, kw_only=True):
    """Sums over the rounds of a run, from round 1 on.

    Attributes:
        rounds: how many there were.
        seconds: that they took, with round 0.
        max_error: the largest of all; the others are sums of the fields of `Traffic`.
    """

    rounds: int = 0
    seconds: float = 0.0
    replies: int = 0
    raw_up: int = 0
    sent_up: int = 0
    wire_up: int = 0
    raw_down: int = 0
    sent_down: int = 0
    max_error: float = 0.0

    def add(self, record: RoundRecord) -> None:
        """Take in a round."""
        self.seconds += record.seconds
        if record.round:
            self.rounds += 1
            self.max_error = max(self.max_error, record.max_error)
            for name in ("replies", "raw_up", "sent_up", "wire_up", "raw_down", "sent_down"):
                setattr(self, name, getattr(self, name) + getattr(record, name))


def as_builtins(record: RoundRecord) -> dict[str, Any]:
    """Return a record as JSON has it, with its ratio for those who read the file by hand."""
    return {**msgspec.to_builtins(record), "ratio": record.ratio}
