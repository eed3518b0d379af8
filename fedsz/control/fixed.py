"""`fixed`: what the run's options say, in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedsz.control.record import Decision
from fedsz.control.rule import Past, Rule

FIXED: Final = "fixed"


@dataclass(frozen=True)
class Fixed(Rule):
    """Changes nothing."""

    name = FIXED

    def refine(self, decision: Decision, _past: Past, /) -> Decision:
        """Return ``decision``."""
        return decision
