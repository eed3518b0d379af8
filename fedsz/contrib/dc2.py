"""`dc2`: the controllers of DC2 (Abdelmoniem and Canini, 2021), which keep uploads in their time.

L is the time that a round's slowest upload takes, L' its mean over the rounds so far, L* what it
may take, and rho the share of the update's bytes that is sent:

    DA1 mean    rho -= gain (L - L') / L'
    DA2 aimd    L > L*: rho /= 2, else rho += add
    DA3 aiad    L > L*: rho -= cut, else rho += add
    DA4 trend   rho -= gain (L - L of the round before) / L'
    DA5 band    DA4 while L is within a share ``width`` of L*, DA2 outside

A bound is what there is to steer. By the rate of a uniform quantiser at high resolution, one bit an
element less is twice the bound, so that rho of float32 elements goes with

    bound *= 2 ** (32 (rho - rho'))

which need not be exact: the next step starts from the rho that came of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from fedsz.control.policy import NextRound, Policy, changed, scaled
from fedsz.control.record import Decision, RoundRecord
from fedsz.spec_strings import Choice, setting


class Steps(Choice):
    """Of the sent ratio, see above."""

    MEAN = "mean"
    AIMD = "aimd"
    AIAD = "aiad"
    TREND = "trend"
    BAND = "band"


_BITS: Final = 32  # of an element that is sent as it is
_LEAST: Final = 0.001  # rho that is asked for


@dataclass(frozen=True)
class Uploads:
    """The factor on the bound, and the uploads that it came from.

    Attributes:
        factor: on the bound.
        reason: the last step, for people.
        seconds: of the slowest uploads of all rounds, added up.
        count: rounds whose uploads were timed.
        before: seconds of the last one's slowest upload.
    """

    factor: float = 1.0
    reason: str = "no upload timed"
    seconds: float = 0.0
    count: int = 0
    before: float = 0.0


@dataclass(frozen=True)
class Dc2(Policy):
    """Multiplies the bound of what clients send, so that the slowest upload takes its time.

    Attributes:
        rule: one of `Steps`.
        seconds: what a round's slowest upload may take, L*.
        gain: of DA1 and DA4, in rho.
        add: what rho may grow in a round.
        cut: what DA3 takes off it.
        width: of DA5's band, on either side of L*, as a share of it.
        low, high: limits of what the bound is multiplied with, around 1.

    Raises:
        ConfigError: a setting is out of range.
    """

    name = "dc2"

    rule: Steps = Steps.AIMD
    seconds: float = setting(10.0, 0, above=True)
    gain: float = setting(0.02, 0, above=True)
    add: float = setting(0.01, 0, above=True)
    cut: float = setting(0.02, 0, above=True)
    width: float = setting(0.25, 0, 1, above=True, below=True)
    low: float = setting(0.125, 0, 1, above=True)
    high: float = setting(64.0, 1)

    def init(self) -> Uploads:
        """Return a factor of 1."""
        return Uploads()

    def observe(self, state: Uploads, record: RoundRecord, /) -> Uploads:
        """Take a step, if the round's uploads were timed."""
        latency, rho = upload_seconds(record), sent_ratio(record)
        if latency is None or rho is None:
            return state
        state = replace(state, seconds=state.seconds + latency, count=state.count + 1)
        before = state.before if state.count > 1 else latency
        asked = self.step(rho, latency, before, state.seconds / state.count)
        asked = min(max(asked, _LEAST), 1.0)
        factor = state.factor * math.exp2(_BITS * (rho - asked))
        return replace(
            state,
            factor=min(max(factor, self.low), self.high),
            reason=f"{latency:.3g} s of {self.seconds:.3g} s, ratio {rho:.4g} to be {asked:.4g}",
            before=latency,
        )

    def decide(self, state: Uploads, decision: Decision, _coming: NextRound, /) -> Decision:
        """Return ``decision`` with the bound times the factor."""
        bound = scaled(decision.config.error_bound, state.factor)
        why = f"dc2 {self.rule} x{state.factor:.4g}: {state.reason}"
        return changed(decision, why, error_bound=bound)

    def step(self, rho: float, now: float, before: float, mean: float) -> float:
        """Return the sent ratio to aim at, before limits, after a round of ratio ``rho``.

        Its slowest upload took ``now`` seconds, that of the round before ``before``, and those of
        all rounds ``mean``.
        """
        rule = self.rule
        if rule == Steps.BAND:
            is_near = abs(now - self.seconds) <= self.width * self.seconds
            rule = Steps.TREND if is_near else Steps.AIMD
        if rule == Steps.MEAN:
            return rho - self.gain * (now - mean) / mean
        if rule == Steps.TREND:
            return rho - self.gain * (now - before) / mean
        if now <= self.seconds:
            return rho + self.add
        return rho / 2 if rule == Steps.AIMD else rho - self.cut


def upload_seconds(record: RoundRecord) -> float | None:
    """Return what a round's slowest upload took; None where no link's bandwidth is known."""
    known = [
        8 * client.sent_bytes / client.bandwidth
        for client in record.clients
        if 0 < client.bandwidth < math.inf and client.sent_bytes > 0
    ]
    slowest = max(known, default=0.0)
    return slowest if 0 < slowest < math.inf else None


def sent_ratio(record: RoundRecord) -> float | None:
    """Return the share of a round's bytes that was sent, at most 1; None where none were."""
    return min(record.sent_up / record.raw_up, 1.0) if record.raw_up > 0 < record.sent_up else None
