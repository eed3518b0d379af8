"""The policies, and the controller that asks one of them before every round.

`POLICIES` is the one list: what `Controller` knows and its messages name. Policies are pure: a
run's record holds what they saw and what they decided, and `replay` decides it again. What they
keep of a round is its numbers: a fleet's records of weeks are gigabytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from fedsz.control.accuracy import Accuracy
from fedsz.control.auto import Auto
from fedsz.control.basis import InBasis
from fedsz.control.dc2 import Dc2
from fedsz.control.gate import Gate
from fedsz.control.layers import Layers
from fedsz.control.record import Decision, RoundRecord
from fedsz.control.rule import AUTO, FIXED, Fixed, NextRound, Rule
from fedsz.control.schedule import Schedule
from fedsz.core.settings import DEFAULT, Settings
from fedsz.errors import ConfigError
from fedsz.spec_strings import chosen

POLICIES: Final[tuple[Rule, ...]] = (
    Fixed(), Auto(), Schedule(), Accuracy(), Dc2(), Layers(), Gate(), InBasis(),
)  # fmt: skip


class Controller:
    """A run's policy: rules that refine one another's decision, and what they know of its rounds.

    A decision takes as long in round 10,000 as in round 10.

    Args:
        policy: a name, or one with settings, as the CLI and config files write them:
            ``"schedule:first=std:4,last=std:1"``; or several joined by ``+``, of which each refines
            the decision of those before: ``"auto+gate"``.
        base: what the run's options say, which the first refines; all there is to "fixed".
        tolerance: points of accuracy that compression may cost, for policies that ask.
        rounds: how many there will be, for policies that ask; None where nobody knows.
        history: rounds that were before, of a run that goes on.

    Attributes:
        base: see above.
        next_round: the number of the round to come; 0 is the model before any training.
        decision: how the round to come is to be sent; None before any round has been seen.

    Raises:
        ConfigError: no such policy or setting, a value it cannot have, or a policy that cannot
            act on what it is given.
        CodecUnavailable: a codec among the settings is not installed here.
    """

    def __init__(
        self,
        policy: str,
        base: Settings,
        *,
        tolerance: float,
        rounds: int | None,
        history: Iterable[RoundRecord] = (),
    ) -> None:
        if not 0 <= tolerance < math.inf:
            raise ConfigError(f"tolerance must be finite and not below 0, got {tolerance:g}")
        if rounds is not None and rounds < 1:
            raise ConfigError(f"rounds must be at least 1, or None if unknown, got {rounds}")
        # A plus before a digit is an exponent's.
        self._rules = [
            replace(chosen("policy", part, POLICIES), tolerance=tolerance)
            for part in re.split(r"\+(?!\d)", policy)
        ]
        self.base, self._rounds = base, rounds
        self.next_round = 0
        self.decided()  # what cannot work at all is said now
        for seen in history:
            self.observe(seen)
        self.decision = self.decided() if self.next_round else None

    @property
    def needs(self) -> frozenset[str]:
        """What has to be measured of the round to come, as `Rule.needs` has it."""
        return frozenset[str]().union(*(rule.needs for rule in self._rules))

    def observe(self, seen: RoundRecord) -> None:
        """Take in the record of a round that is over; the first is round 0, before any training."""
        self.next_round = seen.round + 1
        for rule in self._rules:
            rule.observe(seen)

    def decided(self) -> Decision:
        """Return the decision for the round to come; the same after equal records."""
        coming = NextRound(max(self.next_round, 1), self._rounds)
        decision = Decision(config=self.base)
        for rule in self._rules:
            decision = rule.refine(decision, coming)
        return decision

    def decide(self, done: RoundRecord) -> Decision:
        """Take the round that is over, and return how the next one is to be sent."""
        self.observe(done)
        self.decision = self.decided()
        return self.decision


def asked_for(policy: str | None, named: Mapping[str, Any], **others: Any) -> tuple[str, Settings]:
    """Return the policy and the config that a caller means who names some of what there is.

    Args:
        policy: or None: "fixed" where something is named, else "auto".
        named: fields of the config that "auto" would choose; None for those that are not named.
        others: all other fields that are not to be as by default.

    Raises:
        ConfigError: one of these is out of range or does not exist.
        CodecUnavailable: a codec's library is not installed here.
    """
    asked = {name: value for name, value in named.items() if value is not None}
    config = Settings.of(**{"error_bound": DEFAULT.error_bound, **others, **asked})
    return policy or (FIXED if asked else AUTO), config


def replay(
    controller: Controller, rows: Iterable[RoundRecord]
) -> Iterator[tuple[RoundRecord, Decision]]:
    """Yield each round, and what a new controller decides for it now.

    That differs from the round's own decision where this came from anything but the rounds before.
    ``rows`` are of the run's record, in order, from round 0; those without a decision are left out.
    """
    for row in rows:
        if row.decision is not None:
            yield row, controller.decided()
        controller.observe(row)
