"""How good clients say the model is, from their replies to evaluate messages."""

from __future__ import annotations

import math
from typing import Final

from flwr.app import Message

EXAMPLES: Final = "num-examples"  # as Flower's strategies weight replies
_MOST_EXAMPLES: Final = 1e12


class EvaluationMetrics:
    """Means over clients, weighted by their examples, of what looks like accuracy and like loss.

    Flower names no metrics. One with "acc" in its name and a value in [0, 1] is taken for the
    accuracy, one with "loss" in its name for the loss; the first of each in a reply.
    """

    def __init__(self) -> None:
        self._accuracies: list[tuple[float, float]] = []
        self._losses: list[tuple[float, float]] = []

    def add(self, reply: Message) -> None:
        """Take what a reply says, if it says something."""
        said = {
            name.lower(): float(value)
            for record in reply.content.metric_records.values()
            for name, value in record.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        weight = min(max(said.get(EXAMPLES, 1.0), 0.0), _MOST_EXAMPLES)
        accuracy = next((v for name, v in said.items() if "acc" in name and 0 <= v <= 1), None)
        loss = next((v for name, v in said.items() if "loss" in name), None)
        if accuracy is not None:
            self._accuracies.append((weight, accuracy))
        if loss is not None:
            self._losses.append((weight, loss))

    def take(self) -> tuple[float | None, float | None]:
        """Return accuracy and loss since the last call, each None where no reply had it."""
        means = _mean(self._accuracies), _mean(self._losses)
        self._accuracies, self._losses = [], []
        return means


def _mean(weighted: list[tuple[float, float]]) -> float | None:
    total = sum(weight for weight, _ in weighted)
    return sum(weight * value for weight, value in weighted) / total if total else None
