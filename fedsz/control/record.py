"""The record of a round: what was sent, how it went, and how the next one is to be sent.

`RoundRecord` is the one list of what there is to say of a round. The server makes it, policies
decide by it, a line of rounds.jsonl holds it, and result tables and reports take their columns from
it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import median_high, median_low
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec

from fedsz.core.protocol import ReplyNote
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
        tensors, lossy: how many its update has, and how many of them were lossy; likewise.
        max_error: its largest error as a share of its bound; likewise.
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
    tensors: int = 0
    lossy: int = 0
    max_error: float = 0.0
    weight: float = 0.0
    digest: str = ""
    scale: float = 1.0
    staleness: int = 0
    client: str = ""

    @classmethod
    def of(cls, note: ReplyNote, **measured: Any) -> Self:
        """Return the record of an update, by its sender's note and the other fields."""
        return cls(
            encode_seconds=note.encode_seconds,
            energy_fraction=note.energy_fraction,
            residual_ratio=note.residual_ratio,
            moved=note.moved != 0,
            tensors=int(note.tensors),
            lossy=int(note.lossy),
            max_error=note.max_error,
            **measured,
        )


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


# The fields of `Traffic` that add up.
SUMS: Final = (
    *("replies", "raw_up", "sent_up", "raw_down", "sent_down", "wire_up", "wire_down"),
    *("encode_seconds", "decode_seconds", "raw_other", "sent_other"),
)


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

    @classmethod
    def of(
        cls, clients: Collection[ClientRecord], failures: Iterable[Failure], **others: Any
    ) -> Self:
        """Return the traffic of a round's updates and failures.

        Args:
            clients: see the class.
            failures: see the class.
            others: bytes of models, of replies that were not for training, and of gRPC messages.
        """
        return cls(
            replies=len(clients),
            failures=list(failures),
            raw_up=sum(client.raw_bytes for client in clients),
            sent_up=sum(client.sent_bytes for client in clients),
            encode_seconds=sum(client.encode_seconds for client in clients),
            decode_seconds=sum(client.decode_seconds for client in clients),
            max_error=max((client.max_error for client in clients), default=0.0),
            clients=list(clients),
            **_medians(clients),
            **others,
        )

    def plus(self, other: Traffic, most: int | None = None) -> Traffic:
        """Return the sum of both, which lists at most the last clients and failures of each."""
        clients, failures = [*self.clients, *other.clients], [*self.failures, *other.failures]
        if most is not None:
            clients = clients[max(0, len(clients) - most) :]
            failures = failures[max(0, len(failures) - most) :]
        return Traffic(
            clients=clients,
            failures=failures,
            max_error=max(self.max_error, other.max_error),
            **_medians(clients),
            **{name: getattr(self, name) + getattr(other, name) for name in SUMS},
        )

    @property
    def ratio(self) -> float | None:
        """Raw over sent bytes of the updates; None if there were none."""
        return self.raw_up / self.sent_up if self.sent_up else None

    @property
    def is_zero(self) -> bool:
        """Whether there are updates, and clients say that none of them changes anything."""
        return bool(self.clients) and not any(client.moved for client in self.clients)


def _medians(clients: Iterable[ClientRecord]) -> dict[str, Any]:
    """Return the fields of `Traffic` that are medians."""

    def median(name: str, of: Callable[[list[Any]], Any]) -> Any:
        known = [value for one in clients if (value := getattr(one, name)) is not None]
        return of(known) if known else None

    return {
        "tensors": median("tensors", median_low) or 0,
        "lossy": median("lossy", median_low) or 0,
        "energy_fraction": median("energy_fraction", median_high),
        "residual_ratio": median("residual_ratio", median_low),
    }


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

    def with_finite_metrics(self) -> Self:
        """Return it as its line of JSON has it: a metric that is not finite is None."""
        metrics = {"accuracy": self.accuracy, "loss": self.loss}
        infinite = [name for name, value in metrics.items() if not math.isfinite(value or 0.0)]
        diverged = self.diverged or bool(infinite)
        return msgspec.structs.replace(self, diverged=diverged, **dict.fromkeys(infinite))


def median_metrics(replies: Iterable[Mapping[str, object]]) -> tuple[float | None, float | None]:
    """Return medians of what looks like accuracy and like loss, each None where no reply has it.

    Systems name no metrics. One with "acc" in its name and a value in [0, 1] is taken for the
    accuracy, one with "loss" in its name for the loss; the first of each in a reply. They steer
    what all clients send, so no weight and no value of one client's moves them far. The loss is
    infinite if more than half of the replies have one that is not finite.

    Args:
        replies: the metrics of each reply, by name.
    """
    accuracies, losses = [], []
    for metrics in replies:
        numbers = {n.lower(): float(x) for n, x in metrics.items() if isinstance(x, int | float)}
        accuracies += [x for n, x in numbers.items() if "acc" in n and 0 <= x <= 1][:1]
        losses += [x for n, x in numbers.items() if "loss" in n][:1]
    return _middle(accuracies), _middle([x if math.isfinite(x) else math.inf for x in losses])


def _middle(values: list[float]) -> float | None:
    """Return the median; of two in the middle the lower one, if their mean is not finite."""
    if not values:
        return None
    middle = statistics.median(values)
    return middle if math.isfinite(middle) else median_low(values)
