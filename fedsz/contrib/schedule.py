"""`schedule`: a bound that moves from one value to another over the rounds, coarse to fine.

Early updates point roughly in the right direction whatever is cut off them, and later rounds make
up for it; nothing makes up for what the last ones lose.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsz.bounds import ErrorBound
from fedsz.control.policy import NextRound, Policy, changed
from fedsz.control.record import Decision
from fedsz.core.settings import EXACT
from fedsz.errors import ConfigError


@dataclass(frozen=True)
class Schedule(Policy):
    """Moves the bounds of both directions, each from a first to a last by equal factors.

    Attributes:
        first, last: of what clients send, in the first round and in the last, ``std:4``; where one
            is empty it is the bound of the policy before, in each round.
        down_first, down_last: the same for the model that they are sent. All empty leaves it alone.

    Raises:
        ConfigError: no end is given, a bound does not exist, or the number of rounds is unknown.
    """

    name = "schedule"

    first: str = ""
    last: str = ""
    down_first: str = ""
    down_last: str = ""

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        for end in (self.first, self.last, self.down_first, self.down_last):
            if end:
                ErrorBound.of(end)

    def decide(self, _state: None, decision: Decision, coming: NextRound, /) -> Decision:
        """Return ``decision`` with the bounds of this round of the schedule."""
        if not (self.first or self.last or self.down_first or self.down_last):
            raise ConfigError("schedule needs an end: first=, last=, down_first= or down_last=")
        if coming.rounds is None:
            raise ConfigError("schedule needs the number of rounds: FedSZGrid(rounds=...)")
        share = min((coming.number - 1) / (coming.rounds - 1), 1.0) if coming.rounds > 1 else 1.0
        up = _between(self.first, self.last, decision.config.error_bound, share)
        down = _between(self.down_first, self.down_last, decision.config.downlink, share)
        reason = f"schedule at {share:.0%}: {up} up, {down} down"
        return changed(decision, reason, error_bound=up, downlink=down)


def _between(first: str, last: str, otherwise: str, share: float) -> str:
    """Return the bound at a share of the way; ``otherwise`` where neither end is."""
    if not (first or last):
        return otherwise
    if EXACT in (first or otherwise, last or otherwise):
        raise ConfigError("schedule needs both ends of a downlink that is exact without it")
    start, end = ErrorBound.of(first or otherwise), ErrorBound.of(last or otherwise)
    if start.kind != end.kind:
        raise ConfigError(f"schedule goes from {start} to {end}: both must be of one kind")
    return str(ErrorBound(start.kind, start.value ** (1 - share) * end.value**share))
