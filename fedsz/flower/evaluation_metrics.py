"""How good clients say the model is, from their replies to evaluate messages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from flwr.app import Message, MetricRecord

from fedsz.flower_compat import records_in


class EvaluationMetrics:
    """Medians over clients of what looks like accuracy and like loss.

    Flower names no metrics. One with "acc" in its name and a value in [0, 1] is taken for the
    accuracy, one with "loss" in its name for the loss; the first of each in a reply. They steer
    what all clients send, so no weight and no value of one client's moves them far.
    """

    def __init__(self) -> None:
        self._accuracies: list[float] = []
        self._losses: list[float] = []

    def add(self, reply: Message) -> None:
        """Take what a reply says, if it says something."""
        said = {
            name.lower(): float(value)
            for record in records_in(reply.content, MetricRecord).values()
            for name, value in record.items()
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
        medians = _median(self._accuracies), _median(self._losses)
        self._accuracies, self._losses = [], []
        return medians


def _median(values: Sequence[float]) -> float | None:
    if not values:
        return None
    middle = statistics.median(values)
    return middle if math.isfinite(middle) else statistics.median_low(values)
