"""`accuracy`: a closed loop on the held-out metric, looser while it is on track, else tighter.

The metric is the held-out loss where round 0 has one, since it is smoother than the accuracy. A
round is compared with the best before it, and the noise of the metric says which differences mean
something; a round that nobody measured does not count:

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
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fedsz.control.record import Decision, RoundRecord
from fedsz.control.rule import NextRound, Rule, because, scaled
from fedsz.errors import ConfigError
from fedsz.spec_strings import setting

MEMORY: Final = 8  # rounds whose noise counts
LATELY: Final = 3  # rounds that a loss is compared with where there is no accuracy
SURE: Final = 3.0  # standard deviations of a score's noise that it must fall by to be behind
_MEDIAN: Final = 0.6745  # of the magnitude of a normal variable, in standard deviations


@dataclass
class Accuracy(Rule):
    """Multiplies the bounds of both directions with a factor that follows the metric.

    Attributes:
        up: the factor's step while training is on track, at least 1.
        down: its step back when it is not, at least 1.
        low, high: limits of the factor, around 1.
        noise: how many standard deviations of the metric's noise mean something.
        patience: rounds without progress until the bound is tightened.
        confirm: rounds in a row whose accuracy is behind until the bound is tightened.
        ease: the factor's step while it is neither on track nor behind, from 1 to ``up``.
        factor: of the bounds, which no worse last round makes larger.
        told: what the last round said, for people.

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
        super().__post_init__()
        if self.ease > self.up:
            raise ConfigError(f"accuracy ease must be at most up, {self.up:g}; got {self.ease:g}")

        self.factor, self.told = 1.0, "nothing measured"
        self._by_loss: bool | None = None  # whether the metric is the loss; None before any
        self._metric, self._accuracy, self._share = Scores(), Scores(), Scores()
        self._positive = True  # whether all losses are: only then they have shares
        self._since = 0  # rounds since the last that was on track
        self._fallen = 0  # rounds in a row whose accuracy has
        self._least = -math.inf, -math.inf  # what metric and accuracy may be, at least

    def observe(self, seen: RoundRecord, /) -> None:
        """Compare a round with those before, if it was measured."""
        if seen.accuracy is None and seen.loss is None and not seen.diverged:
            return
        is_first = self._by_loss is None
        loss, accuracy = _or_worst(seen.loss, -1), _or_worst(seen.accuracy)
        if self._by_loss is None:
            self._by_loss = math.isfinite(loss) or seen.accuracy is None
        self._positive &= loss < 0
        share = -math.log(-loss) if -math.inf < loss < 0 else -math.inf
        metric = loss if self._by_loss else accuracy
        if seen.replies and not is_first:  # else the model is the same as before
            # From rounds before this one alone, so that a worse round cannot excuse itself.
            self._judge(metric, accuracy, share)
        self._metric.add(metric)
        self._accuracy.add(accuracy)
        self._share.add(share)

    def refine(self, decision: Decision, _coming: NextRound, /) -> Decision:
        """Return ``decision`` with its bounds times the factor."""
        return because(
            decision,
            f"accuracy x{self.factor:.4g}: {self.told}",
            error_bound=scaled(decision.config.error_bound, self.factor),
            downlink=scaled(decision.config.downlink, self.factor),
        )

    def _judge(self, metric: float, accuracy: float, share: float) -> None:
        noise = self.noise * self._metric.noise
        rise = metric - self._metric.best if math.isfinite(metric) else -math.inf
        self._since = 0 if rise > noise else self._since + 1
        is_behind = rise == -math.inf or self._is_behind(metric, noise, accuracy, share)
        if rise > noise:
            factor, verdict = self.factor * self.up, "on track"
        elif is_behind:
            factor, verdict = self.factor / self.down, "behind"
        elif self._since >= self.patience:
            factor, verdict, self._since = self.factor / self.down, "stuck", 0
        else:
            factor, verdict = self.factor * self.ease, "steady"
        self.factor = min(max(factor, self.low), self.high)
        self.told = f"{verdict}, {rise:+.4g} on the best, noise {noise:.4g}"

    def _is_behind(self, metric: float, noise: float, accuracy: float, share: float) -> bool:
        known, tolerance = self._accuracy, self.tolerance / 100
        if max(known.best, accuracy) > -math.inf:
            if not 0 < self._fallen < self.confirm:  # else a fall could excuse the next
                self._least = self._metric.best - noise, known.least(known.best, tolerance)
            fallen = metric < self._least[0] and accuracy < self._least[1]
            self._fallen = self._fallen + 1 if fallen else 0
            return self._fallen >= self.confirm
        if self._positive:
            return share < self._share.least(self._share.lately, tolerance)
        return metric < self._metric.least(self._metric.lately, 0.0)


class Scores:
    """What is known of scores, the larger the better, of which the last are kept.

    Attributes:
        best: of all; -inf where none is finite.
        first: that is finite; likewise.
    """

    def __init__(self) -> None:
        self.best = self.first = -math.inf
        self._last: deque[float] = deque(maxlen=MEMORY)

    @property
    def noise(self) -> float:
        """The standard deviation of the noise in the last scores; 0 if they are too few."""
        return noise_of(self._last)

    @property
    def lately(self) -> float:
        """The best of the first and the last few."""
        return max([self.first, *list(self._last)[-LATELY:]])

    def least(self, reference: float, tolerance: float) -> float:
        """Return what tolerance and noise allow a score to be, compared with ``reference``."""
        return reference - tolerance - SURE * self.noise

    def add(self, score: float) -> None:
        """Take in a score; one that is not finite is -inf."""
        self.best = max(self.best, score)
        if math.isfinite(score):
            self.first = score if self.first == -math.inf else self.first
            self._last.append(score)


def _or_worst(value: float | None, sign: int = 1) -> float:
    return sign * value if value is not None and math.isfinite(value) else -math.inf


def noise_of(values: Iterable[float]) -> float:
    """Return the standard deviation of the noise in the last values; 0 if they are too few."""
    known = [value for value in values if math.isfinite(value)][-MEMORY:]
    seconds = [abs(known[i] - 2 * known[i + 1] + known[i + 2]) for i in range(len(known) - 2)]
    return statistics.median(seconds) / (_MEDIAN * math.sqrt(6)) if seconds else 0.0
