"""`auto`: the points of accuracy that compression may cost, and nothing else to choose.

Updates go as differences with error feedback, within a bound that knows the size of the step
(``std``), coarse first and fine at last, and finer still where the held-out metric falls behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec

from fedsz.policy.accuracy import Accuracy
from fedsz.policy.decision import Decision
from fedsz.policy.rule import Past
from fedsz.policy.schedule import Schedule
from fedsz.update import DELTA_EF

# What a tolerance allows, in standard deviations of what is sent: from so many points on, the bound
# of updates and of the model's way down, both in the last round.
ALLOWED: Final = (
    (0.0, 1.0, 0.5),
    (0.25, 2.0, 1.0),
    (0.5, 3.0, 1.0),
    (1.0, 4.0, 2.0),
    (2.0, 6.0, 3.0),
)
COARSER_FIRST: Final = 2.0  # the first round's bound, in the last round's
GUARD: Final = Accuracy(up=1.5, down=2.0, low=0.25, high=1.0)  # tightens, and comes back


@dataclass(frozen=True)
class Auto:
    """Decides everything by the tolerance."""

    name: ClassVar[str] = "auto"
    needs: ClassVar[frozenset[str]] = frozenset()

    def refine(self, decision: Decision, past: Past, /) -> Decision:
        """Return a decision that leaves nothing of ``decision`` but its codecs and factors."""
        _, up, down = max(row for row in ALLOWED if row[0] <= past.tolerance)
        start = msgspec.structs.replace(decision, update=DELTA_EF)
        schedule = Schedule(
            first=f"std:{up * COARSER_FIRST:g}",
            last=f"std:{up:g}",
            down_first=f"std:{down * COARSER_FIRST:g}",
            down_last=f"std:{down:g}",
        )
        return GUARD.refine(schedule.refine(start, past), past)
