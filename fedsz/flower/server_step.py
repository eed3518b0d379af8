"""What a Grid measures of a server's step: its spread, and whether it is the mean of replies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from flwr.app import ArrayRecord, Message

from fedsz.arrays import LOSSY_DTYPES, NDArray
from fedsz.flower.records import views_of
from fedsz.flower_compat import records_in
from fedsz.update.config import CompressionConfig
from fedsz.update.step import step_spread

Step = tuple[Mapping[str, NDArray], Mapping[str, NDArray]]  # the model before, and the one after
Elements = dict[str, NDArray]  # some, by tensor

LOOK: Final = 1 << 12  # elements of a tensor that tell


def spread_of(steps: Iterable[Step], config: CompressionConfig) -> dict[str, tuple[int, float]]:
    """Return the elements and the standard deviation of steps, by tensor that ``config`` codes."""
    found: dict[str, tuple[int, float]] = {}
    for before, after in steps:
        found |= step_spread(before, after, rule=config.rule, threshold=config.threshold)
    return found


class MeanOfReplies:
    """The mean of the replies that a strategy was given, of some elements of each tensor.

    Of messages with several ArrayRecords, and of rounds in which a reply has no weight, it knows
    nothing.
    """

    def __init__(self) -> None:
        self.asks = False  # whether it takes note of replies
        self._sent: Elements = {}
        self._sums: dict[str, tuple[NDArray, float]] = {}  # of steps, and of their weights

    def begin(self, pushed: Sequence[Message]) -> None:
        """Take note of the model that goes out; of none, the round tells nothing."""
        self._sent, self._sums, self.asks = _looked_at(pushed), {}, bool(pushed)

    def add(self, replied: Sequence[Elements], weight: float | None) -> None:
        """Take note of a reply, by ArrayRecord, as the strategy has it; or of none."""
        if not self.asks or not replied:
            return
        if len(replied) > 1 or weight is None:
            self._sums, self.asks = {}, False
            return
        for name, x in replied[0].items():
            if (sent := self._sent.get(name)) is not None and sent.shape == x.shape:
                total, weights = self._sums.get(name, (np.zeros(x.shape), 0.0))
                self._sums[name] = total + weight * (x - sent), weights + weight

    def apart(self, pushed: Sequence[Message]) -> float | None:
        """Return how far a model is from that mean, over how far the mean is from the model before.

        None where that is not known; 0 of a server that averages.
        """
        if not self._sums:
            return None
        after, off, moved = _looked_at(pushed), 0.0, 0.0
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for name, (total, weights) in self._sums.items():
                mean, x = total / weights, after.get(name)
                if x is not None and x.shape == mean.shape:
                    off += float(np.square(x - self._sent[name] - mean).sum())
                    moved += float(np.square(mean).sum())
        apart = math.sqrt(off / moved) if moved and off >= 0 else math.nan
        return apart if math.isfinite(apart) else None


def _looked_at(pushed: Sequence[Message]) -> Elements:
    records = list(records_in(pushed[0].content, ArrayRecord).values()) if pushed else []
    return some_of(views_of(records[0])) if len(records) == 1 else {}


def some_of(arrays: Mapping[str, NDArray]) -> Elements:
    """Return the first elements of each tensor of floats, in float64."""
    return {
        name: x.reshape(-1)[:LOOK].astype(np.float64)
        for name, x in arrays.items()
        if x.dtype in LOSSY_DTYPES
    }
