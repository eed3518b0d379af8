"""The protocol of policies: pure functions from the rounds so far to the settings of the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

from fedsz.bounds import ErrorBound
from fedsz.control.record import Decision, RoundRecord
from fedsz.core.settings import EXACT
from fedsz.spec_strings import NO_SETTING, check_settings

FIXED: Final = "fixed"
AUTO: Final = "auto"
SPREAD: Final = "spread"
SENSITIVITY: Final = "sensitivity"
DEFAULT_TOLERANCE: Final = 0.5  # points of accuracy


class NextRound(NamedTuple):
    """The round to decide on.

    Attributes:
        number: from 1.
        rounds: of the run; None if unknown.
        private: the run is under differential privacy. The decision may depend on ``number`` and
            ``rounds``, and on nothing that was measured of clients or of their models.
    """

    number: int
    rounds: int | None
    private: bool = False


@dataclass(frozen=True)
class Policy(ABC):
    """Decides the settings of a round; policies joined by ``+`` each change the decision before.

    The fields of the dataclass are the settings that users write. A policy keeps nothing itself:
    the state is a value that `init` makes, `observe` replaces and `decide` reads. It is immutable,
    and grows with the clients and tensors of a run, not with its rounds. So equal records give
    equal decisions, also after a restart.

    Attributes:
        tolerance: points of accuracy (hundredths) that compression may cost; the run sets it.

    Raises:
        ConfigError: a setting is out of its range.
    """

    name: ClassVar[str]

    tolerance: float = field(default=DEFAULT_TOLERANCE, kw_only=True, metadata=NO_SETTING)

    def __post_init__(self) -> None:
        """Check the settings."""
        check_settings(self)

    @property
    def needs(self) -> frozenset[str]:
        """What the server has to measure for `observe`: of `SPREAD` and `SENSITIVITY`."""
        return frozenset()

    def init(self) -> Any:
        """Return the state before any round."""
        return None

    def observe(self, state: Any, record: RoundRecord, /) -> Any:
        """Return the state after one more round; the first is round 0, before any training."""
        del record
        return state

    @abstractmethod
    def decide(self, state: Any, decision: Decision, coming: NextRound, /) -> Decision:
        """Return the decision for the next round, given that of the policy before.

        Raises:
            ConfigError: the policy cannot act on this kind of decision.
        """


@dataclass(frozen=True)
class Fixed(Policy):
    """Sends every round by the options of the run."""

    name = FIXED

    def decide(self, _state: None, decision: Decision, _coming: NextRound, /) -> Decision:
        """Return ``decision``."""
        return decision


def changed(
    decision: Decision,
    reason: str,
    *,
    codecs: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> Decision:
    """Return ``decision`` with other settings, and ``reason`` after its reasons.

    Args:
        decision: of the policy before.
        reason: for people, in one line without a semicolon.
        codecs: by client; added to those of ``decision``.
        settings: fields of `fedsz.core.settings.Settings`.

    Raises:
        ConfigError: a setting is out of its range.
    """
    why = f"{decision.why}; {reason}" if decision.why else reason
    config = decision.config.replace(**settings)
    return Decision(config=config, codecs=decision.codecs | dict(codecs), why=why)


def scaled(bound: str, factor: float) -> str:
    """Return the text of an error bound times ``factor``; an exact downlink stays exact."""
    return bound if bound == EXACT else str(ErrorBound.of(bound).scaled(factor))
