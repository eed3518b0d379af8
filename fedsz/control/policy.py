"""When and how hard to compress, decided anew before every round from what is known of the last.

`POLICIES` is the one list: what `get` knows and its messages name. Policies are pure: a run's
record holds what they saw and what they decided, and `replay` decides it again.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from fedsz.control.accuracy import Accuracy
from fedsz.control.auto import Auto
from fedsz.control.dc2 import Dc2
from fedsz.control.fixed import Fixed
from fedsz.control.gate import Gate
from fedsz.control.layers import Layers
from fedsz.control.record import Decision, RoundRecord
from fedsz.control.rule import Past, Rule
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
        rounds: of the run.
    """

    rules: tuple[Rule, ...]
    base: Decision
    tolerance: float
    rounds: int

    @property
    def needs(self) -> frozenset[str]:
        """What the server must measure for it: of `SPREAD` and `SENSITIVITY`."""
        return frozenset[str]().union(*(rule.needs for rule in self.rules))

    def decide(self, history: Sequence[RoundRecord]) -> Decision:
        """Return the decision for the round after ``history``; the same for an equal history.

        Args:
            history: all rounds so far; the first is round 0, before any training.
        """
        past = Past(history, self.tolerance, self.rounds)
        decision = self.base
        for rule in self.rules:
            decision = rule.refine(decision, past)
        return decision


def get(spec: str, base: CompressionConfig, *, tolerance: float, rounds: int) -> Policy:
    """Return the policy that ``spec`` names, with its settings.

    Args:
        spec: a name, or one with settings, as the CLI and config files write them:
            ``"schedule:first=std:4,last=std:1"``; or several joined by ``+``, of which each refines
            the decision of those before: ``"auto+gate"``.
        base: what the run's options say.
        tolerance: points of accuracy that compression may cost.
        rounds: of the run.

    Raises:
        ConfigError: no such policy or setting, a value it cannot have, or a policy that cannot
            act on what it is given.
        CodecUnavailable: a codec among the settings is not installed here.
    """
    if not 0 <= tolerance < math.inf:
        raise ConfigError(f"tolerance must be finite and not below 0, got {tolerance:g}")
    # A plus before a digit is an exponent's.
    rules = tuple(chosen("policy", part, POLICIES) for part in re.split(r"\+(?!\d)", spec))
    policy = Policy(rules, Decision(config=base), tolerance, rounds)
    policy.decide([])  # what cannot work at all is said now
    return policy


def replay(policy: Policy, rows: Sequence[RoundRecord]) -> Iterator[tuple[int, Decision, Decision]]:
    """Yield each round's number, what was decided for it, and what ``policy`` decides now.

    The two differ where a decision came from anything but the rounds before. ``rows`` are of the
    run's record, in order, from round 0; those without a decision are left out.
    """
    for i, row in enumerate(rows):
        if row.decision is not None:
            yield row.round, row.decision, policy.decide(rows[:i])
