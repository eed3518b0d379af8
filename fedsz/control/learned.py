"""What a model has gained: since the run began, and lately."""

from __future__ import annotations

import math
import sys
from typing import Final

from fedsz.control.record import RoundRecord

# Until so large a gain since round 0, of accuracy or of the loss as a share of itself, a model has
# learned nothing, and after the first round takes no more than HELD of what that had, up to round
# PATIENCE: a tuned model may never gain that much.
LEARNED: Final = 0.03
HELD: Final = 0.5
PATIENCE: Final = 10

# The n-th score counts for 1 / n in a mean of all, and for so many times that in two others. The
# first of these follows the scores more closely.
RECENT: Final = 4.0, 2.0
FEWEST: Final = 8  # scores whose rise says anything


class Learning:
    """What a model has gained by its accuracy, and by its loss, as a share of itself.

    Attributes:
        waited: the last round after which it had learned nothing; 0 of none.
    """

    def __init__(self) -> None:
        self._rounds = self.waited = 0
        self._has_accuracy = False
        self._accuracy, self._share = Rise(), Rise()

    def observe(self, seen: RoundRecord) -> None:
        """Take in a round."""
        self._rounds += 1
        accuracy, loss = seen.accuracy, math.inf if seen.diverged else seen.loss
        if accuracy is not None:
            self._has_accuracy = True
            if math.isfinite(accuracy):
                self._accuracy.add(seen.round, accuracy)
        if loss is not None and not loss < 0:
            loss = max(loss, sys.float_info.min) if math.isfinite(loss) else math.inf
            self._share.add(seen.round, -math.log(loss))  # differences are shares of it
        if self.held[1]:
            self.waited = seen.round

    @property
    def held(self) -> tuple[float, str]:
        """How much of what the first round had the next may have, at most; and why."""
        scores = self._accuracy if self._has_accuracy else self._share
        if self._rounds > PATIENCE or not scores.are_known or scores.gained >= LEARNED:
            return math.inf, ""
        return HELD, ", nothing learned yet"

    @property
    def pace(self) -> float | None:
        """What it has gained as the rounds doubled, by the metric that says less.

        The loss goes on falling where no answer changes any more, and rises where a model overfits
        that still answers better. None where neither says anything.
        """
        known = [scores.pace for scores in (self._accuracy, self._share)]
        return min((pace for pace in known if pace is not None), default=None)


class Rise:
    """The scores of some rounds, those after round 0 compared with that."""

    def __init__(self) -> None:
        self.are_known = False  # whether there is one of round 0, and another
        self._first = math.nan
        self._best = -math.inf
        self._count = 0  # after round 0
        self._means = dict.fromkeys(RECENT, 0.0)

    @property
    def gained(self) -> float:
        """What the best is above that of round 0."""
        return self._best - self._first

    @property
    def pace(self) -> float | None:
        """What scores gain as their number doubles; None of a few.

        Of scores a + b ln n, a mean in which the n-th counts for a share r / n is less by b / r.
        """
        if self._count < FEWEST:
            return None
        most, less = RECENT
        rise = (self._means[most] - self._means[less]) / (1 / less - 1 / most)
        return math.log(2) * rise if math.isfinite(rise) else None

    def add(self, number: int, score: float) -> None:
        """Take in the score of round ``number``; -inf is no gain."""
        if not number:
            self._first = self._best = score
            return
        self.are_known = not math.isnan(self._first)
        self._best = max(self._best, score)
        if math.isfinite(score):
            self._count += 1
            for recent, mean in self._means.items():
                self._means[recent] = mean + min(1.0, recent / self._count) * (score - mean)
