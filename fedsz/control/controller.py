"""The list of policies, and the controller that asks some of them before every round."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from fedsz import plugins
from fedsz.control.auto import Auto
from fedsz.control.gate import Gate
from fedsz.control.policy import AUTO, FIXED, Fixed, NextRound, Policy
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.settings import DEFAULT, Settings
from fedsz.errors import ConfigError
from fedsz.spec_strings import chosen

POLICIES: Final[tuple[Policy, ...]] = (Fixed(), Auto(), Gate())


def all_policies() -> tuple[Policy, ...]:
    """Return the policies that can be named: those of the core, and those that are added to it."""
    return (*POLICIES, *plugins.loaded(plugins.POLICIES))


def parsed(text: str, tolerance: float) -> tuple[Policy, ...]:
    """Return the policies that a text names, such as ``"auto+gate"``.

    Raises:
        ConfigError: there is no such policy or setting, or a value is out of its range.
        CodecUnavailable: a codec among the settings is not installed here.
    """
    core = {policy.name for policy in POLICIES}
    return tuple(
        replace(
            chosen("policy", part, POLICIES if part.split(":")[0] in core else all_policies()),
            tolerance=tolerance,
        )
        for part in re.split(r"\+(?!\d)", text)  # a plus before a digit is an exponent's
    )


class Controller:
    """A run's policies and their states.

    A decision takes as long in round 10,000 as in round 10.

    Args:
        policy: a name, or a name with settings, as the command line and config files write them:
            ``"schedule:first=std:4,last=std:1"``; or several joined by ``+``, each of which changes
            the decision of the one before: ``"auto+gate"``.
        base: the run's options; the first policy changes them.
        tolerance: points of accuracy that compression may cost.
        rounds: of the run; None if unknown.
        history: rounds that are over, of a run that is resumed.
        private: see `NextRound`.

    Attributes:
        base: the run's options.
        private: as given; a Grid sets it once a strategy asks for differential privacy.
        next_round: number of the next round; 0 is the model before any training.
        decision: for the next round; None before round 0 is over.

    Raises:
        ConfigError: there is no such policy or setting, a value is out of its range, or a policy
            cannot act on the run's options.
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
        private: bool = False,
    ) -> None:
        if not 0 <= tolerance < math.inf:
            raise ConfigError(f"tolerance must be finite and not below 0, got {tolerance:g}")
        if rounds is not None and rounds < 1:
            raise ConfigError(f"rounds must be at least 1, or None if unknown, got {rounds}")
        self._policies = parsed(policy, tolerance)
        self._states = tuple(one.init() for one in self._policies)
        self.base, self.private, self._rounds = base, private, rounds
        self.next_round = 0
        self.decision: Decision | None = None
        self._decided()  # raises now, and not after the first round
        for record in history:
            self.decide(record)

    @property
    def needs(self) -> frozenset[str]:
        """What the server has to measure of the next round; see `Policy.needs`."""
        return frozenset[str]().union(*(policy.needs for policy in self._policies))

    def decide(self, record: RoundRecord) -> Decision:
        """Add a round that is over, the first is round 0, and return the decision for the next one.

        Equal records give equal decisions.
        """
        self.next_round = record.round + 1
        pairs = zip(self._policies, self._states, strict=True)
        self._states = tuple(policy.observe(state, record) for policy, state in pairs)
        self.decision = self._decided()
        return self.decision

    def _decided(self) -> Decision:
        coming = NextRound(max(self.next_round, 1), self._rounds, self.private)
        decision = Decision(config=self.base)
        for policy, state in zip(self._policies, self._states, strict=True):
            decision = policy.decide(state, decision, coming)
        return decision


def asked_for(policy: str | None, named: Mapping[str, Any], **others: Any) -> tuple[str, Settings]:
    """Return the policy and the settings that a caller asks for.

    Args:
        policy: or None: "fixed" if a setting is named, else "auto".
        named: settings that "auto" would choose; None for each that the caller does not name.
        others: settings that no policy depends on.

    Raises:
        ConfigError: a value is out of its range or does not exist.
        CodecUnavailable: a codec's library is not installed here.
    """
    asked = {name: value for name, value in named.items() if value is not None}
    config = Settings.of(**{"error_bound": DEFAULT.error_bound, **others, **asked})
    return policy or (FIXED if asked else AUTO), config
