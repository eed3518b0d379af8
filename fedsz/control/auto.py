"""`auto`: the points of accuracy that compression may cost, and nothing else to choose.

Updates go as differences with error feedback. The first round has a bound in standard deviations of
each tensor's step. From then on one absolute bound serves all tensors and rounds, a multiple of
the largest step's root mean square: as fine as any where steps are large and what is lost delays
all that follows, and ever coarser beside steps that shrink. A bound in standard deviations spends
as many bytes on those, and one that starts coarse loses the early rounds (docs/choosing.md has the
measurements). Where the held-out metric falls behind the bound tightens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedsz.bounds import ErrorBound
from fedsz.control.accuracy import Accuracy
from fedsz.control.record import Decision, RoundRecord
from fedsz.control.rule import SPREAD, Past, Rule, because
from fedsz.update.config import DELTA_EF

# What a tolerance allows: from so many points on, the bounds of updates and of the model's way
# down, both in root mean squares of the first averaged step.
ALLOWED: Final = (
    (0.0, 0.5, 0.25),
    (0.25, 0.8, 0.4),
    (0.5, 1.2, 0.6),
    (1.0, 2.0, 1.0),
    (2.0, 3.0, 1.5),
)
FIRST: Final = ErrorBound.std(1.0)  # of updates, before any step is known
FIRST_DOWN: Final = ErrorBound.std(0.5)
GUARD: Final = Accuracy(up=1.5, down=2.0, low=0.5, high=1.0)  # tightens, and comes back


@dataclass(frozen=True)
class Auto(Rule):
    """Decides everything by the tolerance."""

    name = "auto"
    needs = frozenset({SPREAD})

    def refine(self, decision: Decision, past: Past, /) -> Decision:
        """Return a decision that leaves nothing of ``decision`` but its codecs and factors."""
        _, up, down = max(row for row in ALLOWED if row[0] <= past.tolerance)
        step = largest_step(past.history)
        if step:
            # Rounded, for people and for machines whose last bits differ.
            bounds = tuple(ErrorBound.abs(float(f"{k * step:.4g}")) for k in (up, down))
            told = f"auto: {up:g} and {down:g} of a step of {step:.3g}"
        else:
            bounds = FIRST, FIRST_DOWN
            told = "auto: no step known yet"
        chosen = because(
            decision,
            told,
            update=DELTA_EF,
            error_bound=str(bounds[0]),
            downlink=str(bounds[1]),
            threshold=0,
            rule="parameters",
        )
        return GUARD.refine(chosen, past) if step else chosen


def largest_step(history: Sequence[RoundRecord]) -> float:
    """Return the largest root mean square of an averaged step; 0 while none is known.

    The first is, as a rule; where training starts slowly, a later one.
    """
    steps = [0.0]
    for row in history:
        count = sum(n for n, _ in row.spread.values())
        if count:
            steps.append(math.sqrt(sum(n * s * s for n, s in row.spread.values()) / count))
    return max(step for step in steps if math.isfinite(step))
