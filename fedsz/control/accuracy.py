"""`accuracy`: a closed loop on the held-out metric, looser while it is on track, else tighter.

The metric is the held-out loss where round 0 has one, since it is smoother than the accuracy. A
round is compared with the best before it, and the noise of the metric says which differences mean
something; a round that nobody measured does not count:

- *on track*: better than the best by more than the noise. The bound grows by ``up``.
- *behind*: worse by more than the noise, with the accuracy below its own best by more than the
  tolerance and three times its noise; or not finite. The bound shrinks by ``down``. A loss that
  grows while the accuracy stays is overfitting, which no bound helps against; and the best of many
  noisy rounds is always better than the last.
- *stuck*: not on track for ``patience`` rounds. The bound shrinks by ``down``.

Noise is what second differences of the metric leave: they are blind to a steady rise. Those of
independent noise of variance v have the variance 6 v.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedsz.control.record import Decision, RoundRecord
from fedsz.control.rule import Past, Rule, because, check_positive, scaled
from fedsz.errors import ConfigError

MEMORY: Final = 8  # rounds whose noise counts
SURE: Final = 3.0  # standard deviations of the accuracy's noise that it must fall by to be behind
_MEDIAN: Final = 0.6745  # of the magnitude of a normal variable, in standard deviations


@dataclass(frozen=True)
class Accuracy(Rule):
    """Multiplies the bounds of both directions with a factor that follows the metric.

    Attributes:
        up: the factor's step while training is on track, at least 1.
        down: its step back when it is not, at least 1.
        low, high: limits of the factor, around 1.
        noise: how many standard deviations of the metric's noise mean something.
        patience: rounds without progress until the bound is tightened.
        ease: the factor's step while it is neither on track nor behind, from 1 to ``up``.

    Raises:
        ConfigError: a setting is out of range.
    """

    name = "accuracy"

    up: float = 1.25
    down: float = 2.0
    low: float = 0.125
    high: float = 8.0
    noise: float = 1.0
    patience: int = 3
    ease: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.name, **{key: float(value) for key, value in vars(self).items()})
        steps = 1 <= self.ease <= self.up and self.down >= 1
        if not steps or not self.low <= 1 <= self.high:
            raise ConfigError(
                "accuracy needs 1 <= ease <= up, down of at least 1, and low <= 1 <= high; got "
                f"ease={self.ease:g}, up={self.up:g}, down={self.down:g}, low={self.low:g}, "
                f"high={self.high:g}"
            )

    def refine(self, decision: Decision, past: Past, /) -> Decision:
        """Return ``decision`` with its bounds times the factor."""
        factor, told = self.factor(past.history, past.tolerance)
        return because(
            decision,
            f"accuracy x{factor:.4g}: {told}",
            error_bound=scaled(decision.config.error_bound, factor),
            downlink=scaled(decision.config.downlink, factor),
        )

    def factor(self, history: Sequence[RoundRecord], tolerance: float) -> tuple[float, str]:
        """Return what bounds are multiplied with after ``history``, and why.

        A worse last round never makes it larger.
        """
        history = [o for o in history if o.accuracy is not None or o.loss is not None]
        values = metric(history)
        accuracies = [_or_worst(o.accuracy) for o in history]
        factor, told, since = 1.0, "nothing measured", 0
        for i in range(1, len(values)):
            if not history[i].replies:
                continue  # the model is the same as before
            best, noise = max(values[:i]), self.noise * noise_of(values[:i])
            # From rounds before this one alone, so that a worse round cannot excuse itself.
            rise = values[i] - best if math.isfinite(values[i]) else -math.inf
            least = max(accuracies[:i]) - tolerance / 100 - SURE * noise_of(accuracies[:i])
            short = accuracies[i] < least
            since = 0 if rise > noise else since + 1
            if rise > noise:
                factor, verdict = factor * self.up, "on track"
            elif rise == -math.inf or (rise < -noise and short):
                factor, verdict = factor / self.down, "behind"
            elif since >= self.patience:
                factor, verdict, since = factor / self.down, "stuck", 0
            else:
                factor, verdict = factor * self.ease, "steady"
            factor = min(max(factor, self.low), self.high)
            told = f"{verdict}, {rise:+.4g} on the best, noise {noise:.4g}"
        return factor, told


def metric(history: Sequence[RoundRecord]) -> list[float]:
    """Return a round's held-out metric, the larger the better; -inf where it is not finite.

    It is minus the loss where round 0 has one, else the accuracy.
    """
    by_loss = bool(history) and history[0].loss is not None and math.isfinite(history[0].loss)
    if by_loss:
        return [_or_worst(None if o.loss is None else -o.loss) for o in history]
    return [_or_worst(o.accuracy) for o in history]


def _or_worst(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else -math.inf


def noise_of(values: Sequence[float]) -> float:
    """Return the standard deviation of the noise in the last values; 0 if they are too few."""
    known = [value for value in values if math.isfinite(value)][-MEMORY:]
    seconds = [abs(known[i] - 2 * known[i + 1] + known[i + 2]) for i in range(len(known) - 2)]
    return statistics.median(seconds) / (_MEDIAN * math.sqrt(6)) if seconds else 0.0
