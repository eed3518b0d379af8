"""The policies, and the controller that asks one of them before every round.

`POLICIES` is the one list: what `get` knows and its messages name. Policies are pure: a run's
record holds what they saw and what they decided, and `replay` decides it again.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fedsz.control.accuracy import Accuracy
from fedsz.control.auto import Auto
from fedsz.control.dc2 import Dc2
from fedsz.control.gate import Gate
from fedsz.control.layers import Layers
from fedsz.control.record import Decision, RoundRecord
from fedsz.control.rule import FIXED, Fixed, Past, Rule
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


class Controller:
    """A run's policy, what it has seen, and what it has decided for the round to come.

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
        self._policy = get(policy, base, tolerance=tolerance, rounds=rounds)
        self.base = base
        self._remembers = policy != FIXED  # a fleet's records of weeks are megabytes
        self._history = list(history)
        self.needs = self._policy.needs
        self.decision = self._policy.decide(self._history) if self._history else None

    @property
    def next_round(self) -> int:
        """The number of the round to come; 0 is the model before any training."""
        return self._history[-1].round + 1 if self._history else 0

    def decide(self, done: RoundRecord) -> Decision:
        """Take the round that is over, and return how the next one is to be sent."""
        self._history = [*self._history, done] if self._remembers else [done]
        self.decision = self._policy.decide(self._history)
        return self.decision
