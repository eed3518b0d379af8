"""`auto`: error bounds from one number, the points of accuracy that compression may cost.

Updates are sent as differences with error feedback. In round r, their bound is K(r) root mean
squares of the client's own step, and that of the model is as many of the server's own step:

    K(r) = K min(1, 1/3 + 2/3 (r - 1) / 5) min(2, max(1, 0.2 / g(r)))

with K = 0.5 + 1.8 t at a tolerance of t points, and g(r) the points that the held-out score has
gained in each of the last eight rounds, plus its standard error. Error feedback adds the rounding
of a round to a later update: a model that gains much in a round loses much by what is late. So the
bound starts low, and grows once a model gains little. The score is the accuracy, or minus the
logarithm of the loss if an app measures no accuracy. Two guards watch it:

1. Until the score has risen by 3 points since round 0, but for ten rounds at most, K(r) is at most
   half of K(1): a model that has not begun to learn is held up by noise.
2. If two measured rounds in a row are below the best by more than the tolerance and the score's
   noise, or one diverges, bounds are halved. They return by a factor of 1.1 a measured round. The
   best is the highest score that two rounds in a row have reached: the highest of many noisy scores
   is always above the next ones. A loss alone does not tell overfitting from a fall.

docs/results/savings.md has the measurements.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fedsz.bounds import ErrorBound
from fedsz.control.policy import AUTO, NextRound, Policy, changed
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.settings import DELTA_EF

# K of a tolerance of 0 points, in root mean squares of a step.
LEAST_STEPS: Final = 0.5
# What each point of tolerance adds to K, so that half a point has 1.4 steps.
STEPS_PER_POINT: Final = 1.8
# The tolerance, in points, beyond which K grows no more.
MOST_POINTS: Final = 2.0
# The share of K in round 1, when steps are largest and noise costs most.
FIRST_SHARE: Final = 1 / 3
# Rounds after the first until the share has risen to all of K: most of a model's gain is then over.
RAMP: Final = 5
# The gain of the score in a round below which K grows: rounding of a few rounds then costs little.
SLOW: Final = 0.002
# The most that K grows by, since the noise of the last rounds stays in the model of any run.
MOST_GROWTH: Final = 2.0

# Guard 1: the rise of the score since round 0 that shows that a model learns.
LEARNED: Final = 0.03
# The most rounds that the guard holds: a model that is tuned further may never gain as much.
PATIENCE: Final = 10
# The share of K(1) that is left to a model that has learned nothing yet.
UNLEARNED_SHARE: Final = 0.5

# Guard 2: measured rounds in a row that must be below the best; uncompressed runs have single ones.
CONFIRM: Final = 2
# Standard deviations of the score's noise that a fall must exceed, beside the tolerance.
SURE: Final = 3.0
# The last scores that the noise and the gain are estimated from.
MEMORY: Final = 8
# The share of their bounds that is left to rounds after a fall.
TIGHTENED: Final = 0.5
# The factor by which that share returns to 1 in each measured round that is no fall.
RECOVERY: Final = 1.1

METRICS: Final = "accuracy", "loss"  # fields of a record, the better one first
_MEDIAN: Final = 0.6745  # of the magnitude of a normal variable, in standard deviations


@dataclass(frozen=True)
class Scores:
    """The held-out scores of a run, the larger the better.

    Attributes:
        metric: "accuracy" or "loss", the first that was measured; "" before that.
        first: of round 0; None if that was not measured, or is not finite.
        highest: of all; -inf before the first.
        best: the highest that two in a row have reached; -inf before these.
        measured: how many rounds after round 0 have a score.
        recent: the last finite scores, at most `MEMORY`.
        below: how many scores in a row, up to the last, are below ``limit``.
        limit: the least score that was no fall when the last one came.
        share: of the bounds that guard 2 leaves, at most 1.
    """

    metric: str = ""
    first: float | None = None
    highest: float = -math.inf
    best: float = -math.inf
    measured: int = 0
    recent: tuple[float, ...] = ()
    below: int = 0
    limit: float = -math.inf
    share: float = 1.0

    @property
    def growth(self) -> float:
        """What K is multiplied with, by how little the score has gained in each of its rounds."""
        if len(self.recent) < MEMORY or self.share < 1 or not self.has_learned:
            return 1.0
        half = MEMORY // 2
        gain = statistics.fmean(self.recent[half:]) - statistics.fmean(self.recent[:half])
        error = noise_of(self.recent) * math.sqrt(2 / half)  # standard, of that difference
        return max(1.0, SLOW / max((gain + error) / half, SLOW / MOST_GROWTH))

    @property
    def has_learned(self) -> bool:
        """Whether the score has risen by `LEARNED` since round 0, or may have for all we know."""
        return not self.measured or self.first is None or self.highest - self.first >= LEARNED

    def added(self, record: RoundRecord, tolerance: float) -> Scores:
        """Return the scores with that of one more round, if it was measured.

        Args:
            record: of the round. A round without replies has the model of the one before.
            tolerance: what a score may fall by, beside its noise.
        """
        metric = self.metric or next((m for m in METRICS if getattr(record, m) is not None), "")
        score = _score(record, metric)
        if score is None or (record.round and not record.replies):
            return self
        last = self.recent[-1] if self.recent else -math.inf
        known = replace(
            self,
            metric=metric,
            highest=max(self.highest, score),
            best=max(self.best, min(score, last)),
            recent=(*self.recent, score)[-MEMORY:] if math.isfinite(score) else self.recent,
        )
        if not record.round:
            return replace(known, first=score if math.isfinite(score) else None)
        # The limit stays over a fall: its first round is no noise that excuses the second.
        noise = SURE * noise_of(self.recent)
        limit = self.limit if self.below else self.best - tolerance - noise
        below = self.below + 1 if score < limit else 0
        below = max(below, CONFIRM) if score == -math.inf else below
        share = TIGHTENED if below >= CONFIRM else min(1.0, RECOVERY * self.share)
        return replace(known, measured=self.measured + 1, below=below, limit=limit, share=share)


@dataclass(frozen=True)
class Auto(Policy):
    """Decides all settings but the codecs, by the tolerance."""

    name = AUTO

    def init(self) -> Scores:
        """Return no scores."""
        return Scores()

    def observe(self, state: Scores, record: RoundRecord, /) -> Scores:
        """Return the scores with that of one more round."""
        return state.added(record, self.tolerance / 100)

    def decide(self, state: Scores, decision: Decision, coming: NextRound, /) -> Decision:
        """Return a decision that keeps nothing of ``decision`` but its codecs and factors."""
        scores = Scores() if coming.private else state
        allowed = LEAST_STEPS + STEPS_PER_POINT * min(self.tolerance, MOST_POINTS)
        share, reason = share_of_steps(coming.number, scores)
        # Four digits, for people and for machines that differ in the last bits.
        bound = str(ErrorBound.step(float(f"{share * allowed:.4g}")))
        return changed(
            decision,
            f"auto: {share:.3g} of the {allowed:.3g} steps of {self.tolerance:g} points{reason}",
            update=DELTA_EF,
            error_bound=bound,
            downlink=bound,
            threshold=0,
            rule="shape",
        )


def share_of_steps(number: int, scores: Scores) -> tuple[float, str]:
    """Return K(r) / K of a round, and which guard makes it small, for people.

    Args:
        number: r, from 1.
        scores: of the rounds before.
    """
    share = min(1.0, FIRST_SHARE + (1 - FIRST_SHARE) * (number - 1) / RAMP)
    share *= scores.growth
    reason = ""
    if number <= PATIENCE and not scores.has_learned:
        share, reason = min(share, UNLEARNED_SHARE * FIRST_SHARE), ", nothing learned yet"
    if scores.share < 1:
        reason += f", x{scores.share:.3g} since the score fell"
    return share * scores.share, reason


def noise_of(scores: Sequence[float]) -> float:
    """Return the standard deviation of the noise in scores; 0 if they are fewer than three.

    It is estimated from second differences, which are blind to a steady rise. For independent noise
    of variance v they have the variance 6 v. Their median magnitude ignores single jumps.
    """
    triples = zip(scores, scores[1:], scores[2:], strict=False)
    second = [abs(a - 2 * b + c) for a, b, c in triples]
    return statistics.median(second) / (_MEDIAN * math.sqrt(6)) if second else 0.0


def _score(record: RoundRecord, metric: str) -> float | None:
    """Return a round's score, -inf if it is not finite; None if it was not measured.

    A loss below 0 has no logarithm, and counts as not measured.
    """
    value = getattr(record, metric) if metric else None
    if record.diverged:
        return -math.inf
    if value is None or (metric == "loss" and value < 0):
        return None
    score = float(value) if metric == "accuracy" else -math.log(max(value, sys.float_info.min))
    return score if math.isfinite(score) else -math.inf
