"""`accuracy`: a closed loop on the held-out metric, looser while it is on track, else tighter.

The metric is the held-out loss where round 0 has one, since it is smoother than the accuracy. A
round is compared with the best before it, and the noise of the metric says which differences mean
something; a round without a measurement does not count:

- *on track*: better than the best by more than the noise. The bound grows by ``up``.
- *behind*: worse by more than the noise, with the accuracy below its own best by more than the
  tolerance and three times its noise, ``confirm`` rounds in a row; or not finite. The bound shrinks
  by ``down``. A loss that grows while the accuracy stays is overfitting, which no bound helps
  against; and the best of many noisy rounds is always better than the last. Where there is no
  accuracy, nothing tells overfitting from harm: then the loss must stay within the same limits of
  the better of round 0 and the last `LATELY` rounds. A point is a hundredth of the loss, and
  nothing where losses are not above 0.
- *stuck*: not on track for ``patience`` rounds. The bound shrinks by ``down``.

Noise is what second differences of the metric leave: they are blind to a steady rise. Those of
independent noise of variance v have the variance 6 v.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fedsz.control.auto import MEMORY, noise_of
from fedsz.control.policy import NextRound, Policy, changed, scaled
from fedsz.control.record import Decision, RoundRecord
from fedsz.errors import ConfigError
from fedsz.spec_strings import setting

LATELY: Final = 3  # rounds that a loss is compared with where there is no accuracy
SURE: Final = 3.0  # standard deviations of a score's noise that it must fall by to be behind


@dataclass(frozen=True)
class Scores:
    """The scores of one metric, the larger the better.

    Attributes:
        best: of all; -inf if none is finite.
        first: the first finite one; likewise.
        last: the last finite ones, at most `MEMORY`.
    """

    best: float = -math.inf
    first: float = -math.inf
    last: tuple[float, ...] = ()

    @property
    def noise(self) -> float:
        """The standard deviation of the noise in the last scores; 0 if they are too few."""
        return noise_of(self.last)

    @property
    def recent_best(self) -> float:
        """The best of the first and the last `LATELY`."""
        return max([self.first, *self.last[-LATELY:]])

    def least(self, reference: float, tolerance: float) -> float:
        """Return the least score that tolerance and noise allow, compared with ``reference``."""
        return reference - tolerance - SURE * self.noise

    def added(self, score: float) -> Scores:
        """Return the scores with one more; -inf if it is not finite."""
        if not math.isfinite(score):
            return self
        first = score if self.first == -math.inf else self.first
        return Scores(max(self.best, score), first, (*self.last, score)[-MEMORY:])


@dataclass(frozen=True)
class Progress:
    """The factor on the bounds, and the scores that it came from.

    Attributes:
        factor: on the bounds.
        reason: the verdict on the last round, for people.
        by_loss: whether the metric is the loss; None before the first measured round.
        metric, accuracy, loss_share: scores; the last are minus the logarithms of losses.
        positive: whether all losses are above 0, so that they have logarithms.
        stalled: rounds since the last that was on track.
        fallen: rounds in a row whose accuracy is behind.
        limits: the least metric and accuracy that were not behind before these.
    """

    factor: float = 1.0
    reason: str = "nothing measured"
    by_loss: bool | None = None
    metric: Scores = field(default_factory=Scores)
    accuracy: Scores = field(default_factory=Scores)
    loss_share: Scores = field(default_factory=Scores)
    positive: bool = True
    stalled: int = 0
    fallen: int = 0
    limits: tuple[float, float] = (-math.inf, -math.inf)


class _Measured(NamedTuple):
    """The scores of one round; -inf for each that is not finite or not measured."""

    metric: float
    accuracy: float
    loss_share: float


@dataclass(frozen=True)
class Accuracy(Policy):
    """Multiplies the bounds of both directions with a factor that follows the metric.

    Attributes:
        up: the factor's step while training is on track, at least 1.
        down: its step back when it is not, at least 1.
        low, high: limits of the factor, around 1.
        noise: how many standard deviations of the metric's noise mean something.
        patience: rounds without progress until the bound is tightened.
        confirm: rounds in a row whose accuracy is behind until the bound is tightened.
        ease: the factor's step while it is neither on track nor behind, from 1 to ``up``.

    Raises:
        ConfigError: a setting is out of range.
    """

    name = "accuracy"

    up: float = setting(1.25, 1)
    down: float = setting(2.0, 1)
    low: float = setting(0.125, 0, 1, above=True)
    high: float = setting(8.0, 1)
    noise: float = setting(1.0, 0, above=True)
    patience: int = setting(3, 1)
    ease: float = setting(1.0, 1)
    confirm: int = setting(1, 1)

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.ease > self.up:
            raise ConfigError(f"accuracy ease must be at most up, {self.up:g}; got {self.ease:g}")

    def init(self) -> Progress:
        """Return a factor of 1."""
        return Progress()

    def observe(self, state: Progress, record: RoundRecord, /) -> Progress:
        """Compare a round with those before, if it was measured."""
        if record.accuracy is None and record.loss is None and not record.diverged:
            return state
        loss, accuracy = _or_worst(record.loss, -1), _or_worst(record.accuracy)
        is_first = state.by_loss is None
        if is_first:
            state = replace(state, by_loss=math.isfinite(loss) or record.accuracy is None)
        now = _Measured(
            loss if state.by_loss else accuracy,
            accuracy,
            -math.log(-loss) if -math.inf < loss < 0 else -math.inf,
        )
        state = replace(state, positive=state.positive and loss < 0)
        if record.replies and not is_first:  # else the model is the same as before
            # From rounds before this one alone, so that a worse round cannot excuse itself.
            state = self._judged(state, now)
        return replace(
            state,
            metric=state.metric.added(now.metric),
            accuracy=state.accuracy.added(now.accuracy),
            loss_share=state.loss_share.added(now.loss_share),
        )

    def decide(self, state: Progress, decision: Decision, _coming: NextRound, /) -> Decision:
        """Return ``decision`` with its bounds times the factor."""
        return changed(
            decision,
            f"accuracy x{state.factor:.4g}: {state.reason}",
            error_bound=scaled(decision.config.error_bound, state.factor),
            downlink=scaled(decision.config.downlink, state.factor),
        )

    def _judged(self, state: Progress, now: _Measured) -> Progress:
        noise = self.noise * state.metric.noise
        rise = now.metric - state.metric.best if math.isfinite(now.metric) else -math.inf
        stalled = 0 if rise > noise else state.stalled + 1
        if rise == -math.inf:
            is_behind = True
        else:
            state, is_behind = self._compared(state, now, noise)
        if rise > noise:
            factor, verdict = state.factor * self.up, "on track"
        elif is_behind:
            factor, verdict = state.factor / self.down, "behind"
        elif stalled >= self.patience:
            factor, verdict, stalled = state.factor / self.down, "stuck", 0
        else:
            factor, verdict = state.factor * self.ease, "steady"
        return replace(
            state,
            factor=min(max(factor, self.low), self.high),
            reason=f"{verdict}, {rise:+.4g} on the best, noise {noise:.4g}",
            stalled=stalled,
        )

    def _compared(self, state: Progress, now: _Measured, noise: float) -> tuple[Progress, bool]:
        """Return the state after a round, and whether the round is behind."""
        known, tolerance = state.accuracy, self.tolerance / 100
        if max(known.best, now.accuracy) > -math.inf:
            limits = state.limits
            if not 0 < state.fallen < self.confirm:  # else a fall could excuse the next
                limits = state.metric.best - noise, known.least(known.best, tolerance)
            is_lower = now.metric < limits[0] and now.accuracy < limits[1]
            fallen = state.fallen + 1 if is_lower else 0
            return replace(state, limits=limits, fallen=fallen), fallen >= self.confirm
        if state.positive:
            shares = state.loss_share
            return state, now.loss_share < shares.least(shares.recent_best, tolerance)
        return state, now.metric < state.metric.least(state.metric.recent_best, 0.0)


def _or_worst(value: float | None, sign: int = 1) -> float:
    return sign * value if value is not None and math.isfinite(value) else -math.inf
