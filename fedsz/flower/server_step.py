"""What a Grid measures of a server's step: its spread, and whether it is the mean of replies."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from flwr.app import ArrayRecord, Message

from fedsz.arrays import LOSSY_DTYPES, NDArray
from fedsz.core.ahead import is_step
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.step import step_spread
from fedsz.flower.pushes import same_arrays
from fedsz.flower.records import views_of
from fedsz.flower_compat import records_in

Step = tuple[Mapping[str, NDArray], Mapping[str, NDArray]]  # the model before, and the one after
Elements = dict[str, NDArray]  # some, by tensor

LOOK: Final = 1 << 12  # elements of a tensor that tell


def spread_of(steps: Iterable[Step], config: Settings) -> dict[str, tuple[int, float]]:
    """Return the elements and the standard deviation of steps, by tensor that ``config`` codes."""
    found: dict[str, tuple[int, float]] = {}
    for before, after in steps:
        found |= step_spread(before, after, rule=config.rule, threshold=config.threshold)
    return found


class MeanOfReplies:
    """The mean of the replies that a strategy was given, of some elements of each tensor.

    It knows nothing of messages with several ArrayRecords, or of several models, nor of rounds in
    which a reply has no weight. Elements that are not finite tell nothing.
    """

    def __init__(self) -> None:
        self.asks = False  # whether it takes note of replies
        self._lock = threading.Lock()  # some servers receive in a thread for each client
        self._kind = ""  # of the messages that went out
        self._sent: Elements = {}
        self._sums: dict[str, tuple[NDArray, float]] = {}  # of steps, and of their weights

    def begin(self, pushed: Sequence[Message]) -> None:
        """Take note of the model that goes out; of none, the round tells nothing."""
        with self._lock:
            self._sent, self._sums, self.asks = _looked_at(pushed), {}, bool(pushed)
            self._kind = pushed[0].metadata.message_type if pushed else ""

    def add(self, replied: Sequence[Elements], weight: float | None) -> None:
        """Take note of a reply, by ArrayRecord, as the strategy has it; or of none."""
        if not self.asks or not replied:
            return
        with self._lock:
            if len(replied) > 1 or weight is None:
                self._sums, self.asks = {}, False
                return
            for name, step in self._steps(replied[0]).items():
                total, weights = self._sums.get(name, (np.zeros(step.shape), 0.0))
                with np.errstate(over="ignore", invalid="ignore"):
                    self._sums[name] = total + weight * step, weights + weight

    def _steps(self, replied: Elements) -> Elements:
        """Return a reply less the model; as it is if it is a step in place of a model."""
        shapes = {name: x.shape for name, x in self._sent.items()}
        known = {name: x for name, x in replied.items() if shapes.get(name) == x.shape}
        if is_step(known, Reference(self._sent)):
            return {name: _finite(x) for name, x in known.items()}
        with np.errstate(over="ignore", invalid="ignore"):
            return {name: _finite(x - self._sent[name]) for name, x in known.items()}

    def apart(self, pushed: Sequence[Message]) -> float | None:
        """Return how far a model is from that mean, over how far the mean is from the model before.

        None where that is not known, or the model stays as it was; 0 of a server that averages.
        """
        with self._lock:
            if not self._sums or self._kind != pushed[0].metadata.message_type:
                return None
            after, off, moved, stays = _looked_at(pushed), 0.0, 0.0, True
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                for name, (total, weights) in self._sums.items():
                    mean, x = total / weights, after.get(name)
                    if x is not None and x.shape == mean.shape:
                        step = _finite(x - self._sent[name])
                        off += float(np.square(step - mean).sum())
                        moved += float(np.square(mean).sum())
                        stays &= not step.any()
        apart = math.sqrt(off / moved) if moved and off >= 0 and not stays else math.nan
        return apart if math.isfinite(apart) else None


def _looked_at(pushed: Sequence[Message]) -> Elements:
    if not pushed or not all(same_arrays(pushed[0].content, m.content) for m in pushed):
        return {}
    records = list(records_in(pushed[0].content, ArrayRecord).values())
    return some_of(views_of(records[0])) if len(records) == 1 else {}


def some_of(arrays: Mapping[str, NDArray]) -> Elements:
    """Return the first elements of each tensor of floats, in float64."""
    return {
        name: x.reshape(-1)[:LOOK].astype(np.float64)
        for name, x in arrays.items()
        if x.dtype in LOSSY_DTYPES
    }


def _finite(x: NDArray) -> NDArray:
    return np.where(np.isfinite(x), x, 0.0)
