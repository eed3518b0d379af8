"""What every policy is made of: rules, each refining the decision of those before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from fedsz.bounds import ErrorBound
from fedsz.control.record import Decision, RoundRecord
from fedsz.errors import ConfigError
from fedsz.update.config import is_bound

FIXED: Final = "fixed"  # takes what it is given
AUTO: Final = "auto"  # asks for a tolerance and nothing else
SPREAD: Final = "spread"
SENSITIVITY: Final = "sensitivity"


@dataclass(frozen=True)
class Past:
    """What a rule is told of the run.

    Attributes:
        history: all rounds so far; the first is round 0, before any training.
        tolerance: points of accuracy (hundredths) that compression may cost.
        rounds: how many there will be; None where nobody knows.
    """

    history: Sequence[RoundRecord]
    tolerance: float
    rounds: int | None

    @property
    def next_round(self) -> int:
        """The number of the round that is decided on, from 1."""
        return max(self.history[-1].round + 1, 1) if self.history else 1


@dataclass(frozen=True)
class Rule(ABC):
    """One policy of the list. Its settings are the fields of a frozen dataclass.

    A rule keeps no state: what it knows of the rounds before, it works out from the history anew.
    So equal histories give equal decisions, also after a restart.
    """

    name: ClassVar[str]

    @property
    def needs(self) -> frozenset[str]:
        """What the server must measure for it: of `SPREAD` and `SENSITIVITY`."""
        return frozenset()

    @abstractmethod
    def refine(self, decision: Decision, past: Past, /) -> Decision:
        """Return the decision for the next round, given the one of the rules before.

        Raises:
            ConfigError: the rule cannot act on this kind of decision.
        """


@dataclass(frozen=True)
class Fixed(Rule):
    """Changes nothing: what the run's options say, in every round."""

    name = FIXED

    def refine(self, decision: Decision, _past: Past, /) -> Decision:
        """Return ``decision``."""
        return decision


def because(
    decision: Decision,
    reason: str,
    *,
    codecs: Mapping[str, str] = MappingProxyType({}),
    **changes: Any,
) -> Decision:
    """Return ``decision`` with changes of its config, and ``reason`` after those it had.

    ``codecs`` are by client, other ones than the config's, beside those that it has.
    """
    why = f"{decision.why}; {reason}" if decision.why else reason
    config = decision.config.replace(**changes)
    return Decision(config=config, codecs=decision.codecs | dict(codecs), why=why)


def scaled(bound: str, factor: float) -> str:
    """Return an error bound times ``factor``, as it is printed, and any other downlink as it is."""
    return str(ErrorBound.of(bound).scaled(factor)) if is_bound(bound) else bound


def check_positive(owner: str, **settings: float) -> None:
    """Raise `ConfigError`, with the first of them, for settings not above 0 or not finite."""
    for key, value in settings.items():
        if not 0 < value < float("inf"):
            raise ConfigError(f"{owner} {key} must be finite and above 0, got {value:g}")
