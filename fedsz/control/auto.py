"""`auto`: the points of accuracy that compression may cost, and nothing else to choose.

Updates go as differences with error feedback, within a multiple of the root mean square of what
they are: each client's of its own step, the server's of its own, so that neither a server's
optimiser nor the scale of a tensor misleads it. What feedback holds back is late, not lost, and a
bound of K steps makes it some K / sqrt(3) rounds late. That costs as much as training so many
rounds less: much while a model takes off, little late in a long run. So the bound starts at half
of what ten rounds can afford, and beyond them grows with the rounds that are over. That of updates
grows by half at most: what clients hold back is noise in the model, too, which is as harmful in
round 60 as in round 15. What a client holds back waits until it is asked again: where few of many
are asked, only those rounds count that a client took part in. As long as a model has learned
nothing, what is late holds up its start, and bounds stay fine. Where clients report that they are
further behind, or the metric falls, it tightens. docs/choosing.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedsz.bounds import ErrorBound
from fedsz.control.accuracy import Accuracy
from fedsz.control.record import Decision, RoundRecord
from fedsz.control.rule import AUTO, Past, Rule, because
from fedsz.update.config import DELTA_EF

# What a tolerance allows: from so many points on, the bounds of updates and of the model's way
# down, both in root mean squares of the step that they are of.
ALLOWED: Final = (
    (0.0, 0.5, 0.3),
    (0.25, 0.75, 0.45),
    (0.5, 1.0, 0.6),
    (1.0, 1.5, 0.9),
    (2.0, 2.5, 1.5),
)
# The step of a broadcast is rounded down to a power of two times its first (fedsz.update.lattice):
# by half at most, and by this on average.
ROUNDING: Final = math.sqrt(2)
START: Final = 0.5  # of it in the first round,
RAMP: Final = 5  # all of it after so many more,
SHORT: Final = 10  # and beyond so many rounds, in proportion to them,
MOST: Final = 1.5, 10.0  # up to so many times of it: of updates, and of the model
LATE: Final = 1 / math.sqrt(3)  # rounds that a bound of one step makes a client late
SLACK: Final = 1.5  # times as late as that, and it tightens
LEAST: Final = 0.25  # of the bound that it would be otherwise
# Until so large a gain since round 0, of accuracy or of the loss as a share of itself, a model has
# learned nothing, and after the first round takes no more of what is allowed than HELD, up to round
# PATIENCE: a tuned model may never gain that much.
LEARNED: Final = 0.03
HELD: Final = 0.25
PATIENCE: Final = 10
# Tightens where the metric falls, and comes back, also where the loss never gets better again since
# the model overfits. That it stays where it is is no reason: what is late holds nothing up.
GUARD: Final = Accuracy(up=1.5, down=2.0, low=0.5, high=1.0, patience=1_000_000, ease=1.1)


@dataclass(frozen=True)
class Auto(Rule):
    """Decides everything by the tolerance."""

    name = AUTO

    def refine(self, decision: Decision, past: Past, /) -> Decision:
        """Return a decision that leaves nothing of ``decision`` but its codecs and factors."""
        _, up, down = max(row for row in ALLOWED if row[0] <= past.tolerance)
        turn = min(turns(past.history) + 1, past.next_round)
        rarely = f" in turn {turn:.3g} of a client" if turn < past.next_round else ""
        held, unlearned = held_until_learned(past.history)
        grown = min(share_of_allowed(turn), MOST[0], held)
        grown_down = min(share_of_allowed(past.next_round), MOST[1], held)
        behind, late = eased_by_lag(past.history)
        # Rounded, for people and for machines whose last bits differ.
        shares = up * grown, ROUNDING * down * grown_down
        bounds = [ErrorBound.step(float(f"{k * behind:.4g}")) for k in shares]
        why = f"{grown:.3g} of what {past.tolerance:g} points allow"
        chosen = because(
            decision,
            f"auto: {why}{rarely}{unlearned}{late}",
            update=DELTA_EF,
            error_bound=str(bounds[0]),
            downlink=str(bounds[1]),
            threshold=0,
            rule="shape",
        )
        return GUARD.refine(chosen, past)


def turns(history: Sequence[RoundRecord]) -> float:
    """Return how often those clients replied, on average, who did at all."""
    replied = [link.client or link.node for record in history for link in record.clients]
    return len(replied) / len(set(replied)) if replied else len(history)


def share_of_allowed(number: float) -> float:
    """Return how much of what is allowed round ``number`` takes; from 1."""
    ramp = START + (1 - START) * (number - 1) / RAMP
    return max(min(ramp, 1.0), number / SHORT)


def eased_by_lag(history: Sequence[RoundRecord]) -> tuple[float, str]:
    """Return what bounds are multiplied with, at most 1, by how far clients are behind; and why.

    Clients are further behind than their bound explains where steps shrink faster than residuals
    leave, or a client was away for rounds.
    """
    last = history[-1] if history else None
    if last is None or last.lag is None or last.decision is None:
        return 1.0, ""
    bound = last.decision.config.bound
    if bound.kind != "step":
        return 1.0, ""
    explained = SLACK * LATE * max(1.0, bound.value)
    if last.lag <= explained:
        return 1.0, ""
    return max(explained / last.lag, LEAST), f", clients are {last.lag:.3g} rounds behind"


def held_until_learned(history: Sequence[RoundRecord]) -> tuple[float, str]:
    """Return how much of what is allowed the next round may take, at most; and why."""
    scores = scores_of(history)
    if len(scores) < 2 or scores[0][0] or len(history) > PATIENCE:
        return math.inf, ""
    if max(score for _, score in scores) - scores[0][1] >= LEARNED:
        return math.inf, ""
    return HELD, ", nothing learned yet"


def scores_of(history: Sequence[RoundRecord]) -> list[tuple[int, float]]:
    """Return the measured rounds and their accuracies, or minus the logarithms of their losses.

    Small differences of either are shares: of all examples, or of the loss.
    """
    accuracies = [(o.round, o.accuracy) for o in history if o.accuracy is not None]
    if accuracies:
        return [(number, value) for number, value in accuracies if math.isfinite(value)]
    losses = [(o.round, o.loss) for o in history if o.loss is not None]
    return [(number, -math.log(value)) for number, value in losses if 0 < value < math.inf]
