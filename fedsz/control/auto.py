"""`auto`: the points of accuracy that compression may cost, and nothing else to choose.

Updates go as differences with error feedback, within a multiple of the root mean square of what
they are: each client's of its own step, the server's of its own, so that neither a server's
optimiser nor the scale of a tensor misleads it. What feedback holds back is not lost, but the model
lacks it: by a bound of K steps some K / sqrt(3) of each client's, of which hardly anything points
along the mean step. It is noise, and not late (benchmarks/noise_or_lag.py), and costs most while a
model takes off. So the bound starts at a part of what ten rounds can afford, and beyond them grows
with the rounds that are over. That of updates doubles at most: the noise is as harmful in round 60
as in round 15. So is what is rounded off of the model, whose bound grows by a third. Neither grows
where a model goes on to gain much, or nobody knows; that of the model halves by round 20 then, at
most. Clients begin ahead of the model, by part of what they hold back, so that a bound costs less.
Beyond ten rounds `uniform` shrinks what it codes, too: that leaves less of it, but all of it late,
which costs more than it saves while a model takes off. What a client holds back waits until it is
asked again: where few of many are asked, only those rounds count that a client took part in, and
the model's bound is a third of what it is where all are. As long as a model has learned nothing,
what is held back holds up its start, and bounds stay fine; on the downlink, rounds count from
there. On it lattices are staggered once steps are small, so that the bound is of what clients hold
on average. Where clients report that they are further behind, or the metric falls, it tightens. So
it does where the server steps otherwise than by the mean of its clients' steps: by momentum, or by
Adam. docs/results/savings.md has the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from fedsz.bounds import ErrorBound
from fedsz.codecs.uniform import Uniform
from fedsz.control.accuracy import Accuracy
from fedsz.control.learned import PATIENCE, Learning
from fedsz.control.record import Decision, RoundRecord
from fedsz.control.rule import AUTO, STEP, NextRound, Rule, because
from fedsz.core.settings import DELTA_EF, STAGGERED, Settings

# What a tolerance allows: from so many points on, bounds of so many root mean squares of a step,
# that of a client or of the server.
ALLOWED: Final = ((0.0, 0.9), (0.25, 1.35), (0.5, 1.8), (1.0, 2.7), (2.0, 4.5))
# The step of a broadcast is rounded down to a power of two times its first (fedsz.core.grid):
# by half at most, and by this on average.
ROUNDING: Final = math.sqrt(2)
START: Final = 1 / 3, 1 / 6  # of it in the first round: of updates, and of the model;
RAMP: Final = 5  # all of it after so many more,
SHORT: Final = 10  # and beyond so many rounds, in proportion to them,
MOST: Final = 2.0, 4 / 3  # up to so many times of it: of updates, and of the model,
# and no further where a model gains more than so many times the tolerance as the rounds double:
PACE: Final = 4.0
LEARNING: Final = 1.0, 0.5  # then to so much of it at least;
FURTHER: Final = 8.0  # the model's as far as this where clients take part in few rounds,
FEW: Final = 1 / 3  # but to so much of that: a round's clients, being few, make up for less.
SHRINK: Final = 0.25  # of `uniform` after those, unless it has one
LATE: Final = 1 / math.sqrt(3)  # steps that a client holds back within a bound of one
SLACK: Final = 1.5  # times as late as that, and it tightens
LEAST: Final = 0.25  # of the bound that it would be otherwise
# Where in two of the first rounds, or in all so far, a server's model is so far from the mean of
# replies, as a part of how far these have moved, it steps by momentum, say, or by Adam: what is
# late goes on for long then, or rounding is scaled up with the steps. Bounds are narrower. Medians
# and trimmed means are nearer, and lose nothing.
EARLY: Final = 4
ODD: Final = 2
APART: Final = 0.45
OTHERWISE: Final = 0.5, 1 / 6  # of them: of updates, and of the model
# Tightens where the metric falls for two rounds in a row, for single rounds do so in uncompressed
# runs, too. And comes back, also where the loss never gets better again since the model overfits.
# That it stays where it is is no reason: what is held back holds nothing up.
GUARD: Final = Accuracy(
    up=1.5, down=2.0, low=0.5, high=1.0, patience=1_000_000, ease=1.1, confirm=2
)


@dataclass
class Auto(Rule):
    """Decides everything by the tolerance.

    It sees who has replied how often, what the model has learned, and how late clients are.
    """

    name = AUTO

    def __post_init__(self) -> None:
        self._guard = replace(GUARD, tolerance=self.tolerance)
        self._learning, self._server = Learning(), ServerStep()
        self._rounds = self._replies = 0
        self._replied: set[str] = set()
        self._last: RoundRecord | None = None

    @property
    def needs(self) -> frozenset[str]:
        """The server's step, in the first rounds."""
        return frozenset() if self._server.is_known else frozenset({STEP})

    def observe(self, seen: RoundRecord, /) -> None:
        """Take in a round."""
        self._guard.observe(seen)
        self._learning.observe(seen)
        self._server.observe(seen)
        self._rounds += 1
        self._replies += len(seen.clients)
        self._replied.update(client.client or client.node for client in seen.clients)
        self._last = seen

    def refine(self, decision: Decision, coming: NextRound, /) -> Decision:
        """Return a decision that leaves nothing of ``decision`` but its codecs and factors.

        Beyond ten rounds `uniform` shrinks, unless it says by how much itself.
        """
        tolerance, number = self.tolerance, coming.number
        _, allowed = max(row for row in ALLOWED if row[0] <= tolerance)
        turn = min(self._turns + 1, number)
        often = turn / number
        most, learning = self._most(number, often)
        rarely = f" in turn {turn:.3g} of a client" if turn < number else ""
        held, unlearned = self._learning.held
        whens = turn, number - self._learning.waited
        grown, grown_down = (
            min(share_of_allowed(when, start), limit, held * start)
            for when, start, limit in zip(whens, START, most, strict=True)
        )
        codec = shrinking(decision.config) if turn > SHORT else decision.config.codec
        behind, late = eased_by_lag(self._last)
        parts, other = self._server.allows
        shares = grown, ROUNDING * grown_down * (FEW + (1 - FEW) * often)
        # Rounded, for people and for machines whose last bits differ.
        bounds = [
            ErrorBound.step(float(f"{allowed * share * part * behind:.4g}"))
            for share, part in zip(shares, parts, strict=True)
        ]
        why = f"{grown:.3g} of what {tolerance:g} points allow{learning}"
        chosen = because(
            decision,
            f"auto: {why}{rarely}{unlearned}{late}{other}",
            update=DELTA_EF,
            ahead=True,
            codec=codec,
            error_bound=str(bounds[0]),
            downlink=f"{STAGGERED}{bounds[1]}",
            threshold=0,
            rule="shape",
        )
        return self._guard.refine(chosen, coming)

    def _most(self, number: int, often: float) -> tuple[tuple[float, float], str]:
        """Return how far bounds may grow, of updates and of the model; and why no further.

        Args:
            number: of the round.
            often: the share of rounds that a client takes part in.
        """
        pace, afforded = self._learning.pace, math.inf
        if number > SHORT and (pace is None or pace > 0):
            afforded = PACE * self.tolerance / 100 / pace if pace else 1.0
        up, down = (
            max(least, min(most, afforded)) for least, most in zip(LEARNING, MOST, strict=True)
        )
        if down < 1:  # by and by: each time that a step on the lattice halves costs a bit
            down **= min(1.0, (number - SHORT) / SHORT)
        learning = f", still gaining {100 * pace:.2g} points" if pace and up < MOST[0] else ""
        return (up, min(down / often, FURTHER)), learning

    @property
    def _turns(self) -> float:
        """How often those clients replied, on average, who did at all."""
        return self._replies / len(self._replied) if self._replied else self._rounds


def shrinking(config: Settings) -> str:
    """Return a config's codec, with `SHRINK` if it is `uniform` and does not shrink."""
    codec = config.lossy_codec
    if isinstance(codec, Uniform) and not codec.shrink:
        return str(replace(codec, shrink=SHRINK))
    return config.codec


def share_of_allowed(number: float, start: float) -> float:
    """Return how much of what is allowed round ``number`` takes, from 1; the first takes start."""
    ramp = start + (1 - start) * (number - 1) / RAMP
    return max(min(ramp, 1.0), number / SHORT)


def eased_by_lag(last: RoundRecord | None) -> tuple[float, str]:
    """Return what bounds are multiplied with, at most 1, by how far clients are behind; and why.

    Clients are further behind than their bound explains where steps shrink faster than residuals
    leave, or a client was away for rounds.
    """
    if last is None or last.lag is None or last.decision is None:
        return 1.0, ""
    bound = last.decision.config.bound
    if bound.kind != "step":
        return 1.0, ""
    explained = SLACK * LATE * max(1.0, bound.value)
    if not last.lag > explained:  # or no number: a record may come from anywhere
        return 1.0, ""
    return max(explained / last.lag, LEAST), f", clients are {last.lag:.3g} rounds behind"


class ServerStep:
    """Whether a server steps by the mean of its clients' steps."""

    def __init__(self) -> None:
        self._rounds = self._seen = self._odd = 0

    @property
    def is_known(self) -> bool:
        """Whether no further round is to tell more."""
        return self._seen == EARLY or self._rounds == PATIENCE

    @property
    def allows(self) -> tuple[tuple[float, float], str]:
        """What bounds are multiplied with, of updates and of the model; and why."""
        if not (self._odd >= ODD or 0 < self._odd == self._seen):
            return (1.0, 1.0), ""
        return OTHERWISE, ", the server's step is no mean of updates"

    def observe(self, seen: RoundRecord) -> None:
        """Take in a round."""
        if self.is_known:
            return
        self._rounds += seen.round > 0
        if seen.apart is not None:
            self._seen += 1
            self._odd += not seen.apart <= APART
