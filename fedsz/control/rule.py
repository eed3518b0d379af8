"""What every policy is made of: rules, each refining the decision of those before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

from fedsz.bounds import ErrorBound
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.settings import STAGGERED, is_bound
from fedsz.spec_strings import NO_SETTING, check_settings

FIXED: Final = "fixed"  # takes what it is given
AUTO: Final = "auto"  # asks for a tolerance and nothing else
SPREAD: Final = "spread"
SENSITIVITY: Final = "sensitivity"
STEP: Final = "step"  # which servers that average by themselves need not measure
DEFAULT_TOLERANCE: Final = 0.5  # points of accuracy


class NextRound(NamedTuple):
    """The round that is decided on.

    Attributes:
        number: from 1.
        rounds: how many there will be; None where nobody knows.
    """

    number: int
    rounds: int | None


@dataclass
class Rule(ABC):
    """One policy of the list, and what it knows of a run's rounds.

    Its settings are the fields of the dataclass. All that it knows of the rounds before is what it
    has observed; its ``__post_init__`` begins with nothing. So equal records give equal decisions,
    also after a restart. What it knows grows with the clients and tensors of the run, and not with
    its rounds.

    Attributes:
        tolerance: points of accuracy (hundredths) that compression may cost; of the run, and no
            setting.
    """

    name: ClassVar[str]

    tolerance: float = field(default=DEFAULT_TOLERANCE, kw_only=True, metadata=NO_SETTING)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting out of its range; begin with no round."""
        check_settings(self)

    @property
    def needs(self) -> frozenset[str]:
        """What the server must measure next for it: of `SPREAD`, `SENSITIVITY` and `STEP`."""
        return frozenset()

    def observe(self, seen: RoundRecord, /) -> None:  # noqa: B027 - few look at no round
        """Take in the record of a round that is over; the first is round 0, before any training."""

    @abstractmethod
    def refine(self, decision: Decision, coming: NextRound, /) -> Decision:
        """Return the decision for the next round, given the one of the rules before.

        Raises:
            ConfigError: the rule cannot act on this kind of decision.
        """


@dataclass
class Fixed(Rule):
    """Changes nothing: what the run's options say, in every round."""

    name = FIXED

    def refine(self, decision: Decision, _coming: NextRound, /) -> Decision:
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
    if not is_bound(bound):
        return bound
    prefix = STAGGERED if bound.startswith(STAGGERED) else ""
    return f"{prefix}{ErrorBound.of(bound.removeprefix(prefix)).scaled(factor)}"
