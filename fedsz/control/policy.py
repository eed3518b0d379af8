"""The policies, and the controller that asks one of them before every round.

`POLICIES` is the one list: what `get` knows and its messages name. Policies are pure: a run's
record holds what they saw and what they decided, and `replay` decides it again. What they keep of a
round is its numbers: a fleet's records of weeks are gigabytes.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator
from typing import Final

from fedsz.control.accuracy import Accuracy
from fedsz.control.auto import Auto
from fedsz.control.dc2 import Dc2
from fedsz.control.gate import Gate
from fedsz.control.layers import Layers
from fedsz.control.record import Decision, RoundRecord
from fedsz.control.rule import Fixed, NextRound, Rule
from fedsz.control.schedule import Schedule
from fedsz.errors import ConfigError
from fedsz.spec_strings import chosen
from fedsz.update.config import CompressionConfig

DEFAULT_TOLERANCE: Final = 0.5  # points of accuracy

POLICIES: Final[tuple[Rule, ...]] = (
    Fixed(), Auto(), Schedule(), Accuracy(), Dc2(), Layers(), Gate(),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Policy:
    """Decides how the next round's updates are sent, by rules that refine one another's decision.

    Attributes:
        rules: at least one; each refines the decision of those before it.
        base: what the first refines.
        tolerance: points of accuracy that compression may cost.
        rounds: of the run; None where nobody knows.
    """

    rules: tuple[Rule, ...]
    base: Decision
    tolerance: float
    rounds: int | None

    @property
    def needs(self) -> frozenset[str]:
        """What the server must measure for it: of `SPREAD` and `SENSITIVITY`."""
        return frozenset[str]().union(*(rule.needs for rule in self.rules))

    def begin(self) -> PolicyState:
        """Return what it knows before any round."""
        return PolicyState(self)

    def decide(self, history: Iterable[RoundRecord]) -> Decision:
        """Return the decision for the round after ``history``; the same for an equal history.

        Args:
            history: all rounds so far; the first is round 0, before any training.
        """
        state = self.begin()
        for seen in history:
            state.observe(seen)
        return state.decide()


class PolicyState:
    """What a policy knows of a run's rounds; a decision takes as long in round 10,000 as in 10.

    Attributes:
        next_round: the number of the round to come; 0 is the model before any training.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._states = [rule.begin(policy.tolerance) for rule in policy.rules]
        self.next_round = 0

    def observe(self, seen: RoundRecord) -> None:
        """Take in the record of a round that is over."""
        self.next_round = seen.round + 1
        for state in self._states:
            state.observe(seen)

    def decide(self) -> Decision:
        """Return the decision for the round to come."""
        coming = NextRound(max(self.next_round, 1), self._policy.rounds)
        decision = self._policy.base
        for state in self._states:
            decision = state.refine(decision, coming)
        return decision


def get(spec: str, base: CompressionConfig, *, tolerance: float, rounds: int | None) -> Policy:
    """Return the policy that ``spec`` names, with its settings.

    Args:
        spec: a name, or one with settings, as the CLI and config files write them:
            ``"schedule:first=std:4,last=std:1"``; or several joined by ``+``, of which each refines
            the decision of those before: ``"auto+gate"``.
        base: what the run's options say.
        tolerance: points of accuracy that compression may cost.
        rounds: of the run; None where nobody knows.

    Raises:
        ConfigError: no such policy or setting, a value it cannot have, or a policy that cannot
            act on what it is given.
        CodecUnavailable: a codec among the settings is not installed here.
    """
    if not 0 <= tolerance < math.inf:
        raise ConfigError(f"tolerance must be finite and not below 0, got {tolerance:g}")
    if rounds is not None and rounds < 1:
        raise ConfigError(f"rounds must be at least 1, or None if unknown, got {rounds}")
    # A plus before a digit is an exponent's.
    rules = tuple(chosen("policy", part, POLICIES) for part in re.split(r"\+(?!\d)", spec))
    policy = Policy(rules, Decision(config=base), tolerance, rounds)
    policy.begin().decide()  # what cannot work at all is said now
    return policy


def replay(policy: Policy, rows: Iterable[RoundRecord]) -> Iterator[tuple[RoundRecord, Decision]]:
    """Yield each round, and what ``policy`` decides for it now.

    That differs from the round's own decision where this came from anything but the rounds before.
    ``rows`` are of the run's record, in order, from round 0; those without a decision are left out.
    """
    state = policy.begin()
    for row in rows:
        if row.decision is not None:
            yield row, state.decide()
        state.observe(row)


class Controller:
    """A run's policy, and what it has decided for the round to come.

    Args:
        policy: as `get` takes it.
        base: what a policy refines; all there is to "fixed".
        tolerance: points of accuracy that compression may cost, for policies that ask.
        rounds: how many there will be, for policies that ask; None where nobody knows.
        history: rounds that were before, of a run that goes on.

    Attributes:
        base: see above.
        needs: what has to be measured for the policy: of `SPREAD` and `SENSITIVITY`.
        decision: how the round to come is to be sent; None before any round has been seen.

    Raises:
        ConfigError: there is no such policy, or it cannot act on ``base``.
        CodecUnavailable: a codec among its settings is not installed here.
    """

    def __init__(
        self,
        policy: str,
        base: CompressionConfig,
        *,
        tolerance: float,
        rounds: int | None,
        history: Iterable[RoundRecord] = (),
    ) -> None:
        chosen = get(policy, base, tolerance=tolerance, rounds=rounds)
        self.base, self.needs = base, chosen.needs
        self._state = chosen.begin()
        for seen in history:
            self._state.observe(seen)
        self.decision = self._state.decide() if self.next_round else None

    @property
    def next_round(self) -> int:
        """The number of the round to come; 0 is the model before any training."""
        return self._state.next_round

    def decide(self, done: RoundRecord) -> Decision:
        """Take the round that is over, and return how the next one is to be sent."""
        self._state.observe(done)
        self.decision = self._state.decide()
        return self.decision
