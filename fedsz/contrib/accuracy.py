"""`accuracy`: a closed loop on the held-out score, looser while it is on track, else tighter.

Score, noise and fall are those of `fedsz.control.auto`: the score is the accuracy, or minus the
logarithm of the loss if an app measures no accuracy. Of rounds with replies that are measured:

- *on track*: above all scores before by more than their noise. The bound grows by ``up``.
- *behind*: below the best by more than the tolerance and the noise, for the second round in a row,
  or not finite. The bound shrinks by ``down``.
- *stuck*: not on track for ``patience`` rounds. The bound shrinks by ``down``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedsz.control.auto import CONFIRM, Scores, noise_of
from fedsz.control.policy import NextRound, Policy, changed, scaled
from fedsz.control.record import Decision, RoundRecord
from fedsz.spec_strings import setting


@dataclass(frozen=True)
class Progress:
    """The factor on the bounds, and the scores that it came from.

    Attributes:
        factor: on the bounds.
        reason: the verdict on the last round, for people.
        scores: of the rounds so far.
        stalled: rounds since the last that was on track.
    """

    factor: float = 1.0
    reason: str = "nothing measured"
    scores: Scores = field(default_factory=Scores)
    stalled: int = 0


@dataclass(frozen=True)
class Accuracy(Policy):
    """Multiplies the bounds of both directions with a factor that follows the score.

    Attributes:
        up: the factor's step while training is on track, at least 1.
        down: its step back when it is not, at least 1.
        low, high: limits of the factor, around 1.
        patience: rounds without progress until the bound is tightened.

    Raises:
        ConfigError: a setting is out of range.
    """

    name = "accuracy"

    up: float = setting(1.25, 1)
    down: float = setting(2.0, 1)
    low: float = setting(0.125, 0, 1, above=True)
    high: float = setting(8.0, 1)
    patience: int = setting(3, 1)

    def init(self) -> Progress:
        """Return a factor of 1."""
        return Progress()

    def observe(self, state: Progress, record: RoundRecord, /) -> Progress:
        """Compare a round with those before, if it was measured."""
        before, scores = state.scores, state.scores.added(record, self.tolerance / 100)
        if scores.measured == before.measured or not before.recent:  # nothing to compare
            return replace(state, scores=scores)
        rise, noise = scores.highest - before.highest, noise_of(before.recent)
        stalled = 0 if rise > noise else state.stalled + 1
        if rise > noise:
            factor, verdict = state.factor * self.up, "on track"
        elif scores.below >= CONFIRM:
            factor, verdict = state.factor / self.down, "behind"
        elif stalled >= self.patience:
            factor, verdict, stalled = state.factor / self.down, "stuck", 0
        else:
            factor, verdict = state.factor, "steady"
        factor = min(max(factor, self.low), self.high)
        reason = f"{verdict}, {rise:+.4g} on the best, noise {noise:.4g}"
        return Progress(factor, reason, scores, stalled)

    def decide(self, state: Progress, decision: Decision, _coming: NextRound, /) -> Decision:
        """Return ``decision`` with its bounds times the factor."""
        return changed(
            decision,
            f"accuracy x{state.factor:.4g}: {state.reason}",
            error_bound=scaled(decision.config.error_bound, state.factor),
            downlink=scaled(decision.config.downlink, state.factor),
        )
