"""What a server counts in a round: bytes, failures, and how good clients find the model."""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from fedsz.control.record import ClientRecord, Failure, Traffic


class TrafficCounter:
    """Counts updates, models and failures until they are taken.

    Args:
        most: how many updates and failures it lists, the last ones; None for all. Sums are of all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._sums: Counter[str] = Counter()
        self._max_error = 0.0
        self._failures: deque[Failure] = deque(maxlen=self._most)
        self._clients: deque[ClientRecord] = deque(maxlen=self._most)

    def count(self, **more: float) -> None:
        """Add to sums, by the fields of `Traffic`."""
        self._sums.update(more)

    def received(self, client: ClientRecord) -> None:
        """Count an update."""
        self._clients.append(client)
        self._max_error = max(self._max_error, client.max_error)
        self.count(
            replies=1,
            raw_up=client.raw_bytes,
            sent_up=client.sent_bytes,
            encode_seconds=client.encode_seconds,
            decode_seconds=client.decode_seconds,
        )

    def failed(self, failure: Failure) -> None:
        """Count a message without a usable reply."""
        self._failures.append(failure)

    def take(self, wire_up: int = 0, wire_down: int = 0) -> Traffic:
        """Return what has been counted since the last call, or since the start."""
        traffic = Traffic.of(
            list(self._clients),
            list(self._failures),
            max_error=self._max_error,
            **self._sums,
            wire_up=wire_up,
            wire_down=wire_down,
        )
        self._begin()
        return traffic


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
    return middle if math.isfinite(middle) else statistics.median_low(values)
