"""Ways of updating: what clients send, how exactly, what they are sent, and who decides that."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from fedsz.bounds import ErrorBound
from fedsz.training.options import RunConfig
from fedsz.update.config import EXACT, WEIGHTS

RAW: Final = "raw"
FIXED: Final = "fixed"
AUTO: Final = "auto"  # the policy that asks for a tolerance and nothing else
DIRICHLET: Final = "dirichlet"  # the partitioner that takes a number
DEFAULTS: Final[dict[str, Any]] = {
    field.name: field.default for field in dataclasses.fields(RunConfig)
}


@dataclass(frozen=True)
class Way:
    """What a run does with its updates.

    Attributes:
        update: as `RunConfig` has it.
        codec: as users write it.
        bound: None where no bound steers what is sent.
        downlink: "exact", or an error bound.
        policy: who decides; "fixed" if the above does.
        tolerance: points of accuracy that a policy may cost.
    """

    update: str = WEIGHTS
    codec: str = DEFAULTS["codec"]
    bound: ErrorBound | None = None
    downlink: str = EXACT
    policy: str = FIXED
    tolerance: float = DEFAULTS["tolerance"]

    def __str__(self) -> str:
        """Return it as a sweep's ``ways`` take it, without what is a default."""
        text = self.update if self.codec == DEFAULTS["codec"] else f"{self.update}:{self.codec}"
        if self.codec == RAW:
            text = RAW
        if self.bound:
            text += f"@{self.bound}"
        if self.downlink != EXACT:
            text += f"/{self.downlink}"
        if self.policy == FIXED:
            return text
        points = "" if self.tolerance == DEFAULTS["tolerance"] else f"@{self.tolerance:g}"
        decides = f"{self.policy}{points}"
        return decides if asks_nothing(self.policy) and text == WEIGHTS else f"{text} by {decides}"

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the way of a run by a row of a sweep's table; older ones lack some of it."""
        kind, value = row["bound_kind"], row["bound_value"]
        given = {name: row[name] for name in ("update", "codec", "downlink", "policy", "tolerance")}
        known = {name: value for name, value in given.items() if value is not None}
        return cls(bound=ErrorBound(kind, value or 0.0) if kind else None, **known)

    @property
    def plain(self) -> bool:
        """Whether weights go up, as they do without any of this."""
        return (self.update, self.downlink, self.policy) == (WEIGHTS, EXACT, FIXED)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `RunConfig` that say all this."""
        options = {
            name: getattr(self, name)
            for name in ("update", "codec", "downlink", "policy", "tolerance")
        }
        if self.bound:
            options["error_bound"] = str(self.bound)
        if self.codec == RAW:
            options["lossless"] = RAW
        return options


def asks_nothing(policy: str) -> bool:
    """Say whether a policy chooses bounds with no regard to those that were asked for."""
    return any(part.partition(":")[0] == AUTO for part in policy.split("+"))


def partition_name(partitioner: str, alpha: float | None) -> str:
    """Return how images are shared out, as a sweep's ``partitions`` take it."""
    return f"{partitioner}:{alpha:g}" if partitioner == DIRICHLET and alpha else partitioner
