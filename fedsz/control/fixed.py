"""`fixed`: what the run's options say, in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from fedsz.control.record import Decision
from fedsz.control.rule import Past

FIXED: Final = "fixed"


@dataclass(frozen=True)
class Fixed:
    """Changes nothing."""

    name: ClassVar[str] = FIXED
    needs: ClassVar[frozenset[str]] = frozenset()

    def refine(self, decision: Decision, _past: Past, /) -> Decision:
        """Return ``decision``."""
        return decision
