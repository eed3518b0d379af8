"""What crosses between a server and its clients, added up until somebody takes the sums."""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median_high, median_low

from fedsz.control.record import ClientRecord, Failure, Traffic
from fedsz.core.protocol import ReplyNote


class Tally:
    """Counts updates, models and failures.

    Args:
        most: how many updates and failures it lists, the last ones; None for all. Sums are of all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._sums: Counter[str] = Counter()  # by the fields of `Traffic`
        self._max_error = 0.0
        self._failures: deque[Failure] = deque(maxlen=self._most)
        self._clients: deque[tuple[ClientRecord, ReplyNote]] = deque(maxlen=self._most)

    def sent(self, raw_bytes: int, sent_bytes: int) -> None:
        """Count a message's arrays, before and after compression."""
        self._count(raw_down=raw_bytes, sent_down=sent_bytes)

    def received_other(self, raw_bytes: int, sent_bytes: int) -> None:
        """Count the arrays of a reply that was not for training."""
        self._count(raw_other=raw_bytes, sent_other=sent_bytes)

    def received(self, client: ClientRecord, note: ReplyNote) -> None:
        """Count an update, and what its sender says of it."""
        self._clients.append((client, note))
        self._count(
            replies=1,
            raw_up=client.raw_bytes,
            sent_up=client.sent_bytes,
            encode_seconds=client.encode_seconds,
            decode_seconds=client.decode_seconds,
        )
        self._max_error = max(self._max_error, note.max_error)

    def failed(self, failure: Failure) -> None:
        """Count a message without a usable reply."""
        self._failures.append(failure)

    def take(self, wire_up: int = 0, wire_down: int = 0) -> Traffic:
        """Return what has been counted since the last call, or since the start."""
        notes = [note for _, note in self._clients]
        traffic = Traffic(
            **self._sums,
            failures=list(self._failures),
            wire_up=wire_up,
            wire_down=wire_down,
            max_error=self._max_error,
            tensors=int(_median([note.tensors for note in notes], median_low) or 0),
            lossy=int(_median([note.lossy for note in notes], median_low) or 0),
            energy_fraction=_median([note.energy_fraction for note in notes], median_high),
            residual_ratio=_median([note.residual_ratio for note in notes], median_low),
            clients=[client for client, _ in self._clients],
        )
        self._begin()
        return traffic

    def _count(self, **more: float) -> None:
        self._sums.update(more)


class EvaluationMetrics:
    """Medians over clients of what looks like accuracy and like loss.

    Systems name no metrics. One with "acc" in its name and a value in [0, 1] is taken for the
    accuracy, one with "loss" in its name for the loss; the first of each in a reply. They steer
    what all clients send, so no weight and no value of one client's moves them far.
    """

    def __init__(self) -> None:
        self._accuracies: list[float] = []
        self._losses: list[float] = []

    def add(self, metrics: Mapping[str, object]) -> None:
        """Take what a reply says, if it says something."""
        said = {
            name.lower(): float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float)
        }
        accuracy = next((v for name, v in said.items() if "acc" in name and 0 <= v <= 1), None)
        loss = next((v for name, v in said.items() if "loss" in name), None)
        if accuracy is not None:
            self._accuracies.append(accuracy)
        if loss is not None:
            self._losses.append(loss if math.isfinite(loss) else math.inf)

    def take(self) -> tuple[float | None, float | None]:
        """Return accuracy and loss since the last call, each None where no reply had it.

        The loss is infinite if more than half of the replies have one that is not finite.
        """
        medians = _middle(self._accuracies), _middle(self._losses)
        self._accuracies, self._losses = [], []
        return medians


def _median(
    values: Iterable[float | None], median: Callable[[Sequence[float]], float]
) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _middle(values: Sequence[float]) -> float | None:
    if not values:
        return None
    middle = statistics.median(values)
    return middle if math.isfinite(middle) else median_low(values)
