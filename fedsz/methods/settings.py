"""Counts of elements, as settings of methods."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsz.errors import ConfigError


@dataclass(frozen=True)
class Count:
    """A number of elements, such as ``64``, or a share of a tensor's, such as ``1%`` or ``0.01``.

    Raises:
        ConfigError: it is neither, not above 0, or a share above all.
    """

    text: str

    def __post_init__(self) -> None:
        text = str(self.text)
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = math.nan
        share = text.endswith("%") or number < 1
        most = 100.0 if text.endswith("%") else math.inf
        if not 0 < number <= most or math.isinf(number) or not (share or number.is_integer()):
            raise ConfigError(f"must be a number of elements or a share such as 1%, got {text!r}")
        if not text.endswith("%"):
            text = f"{100 * number:.15g}%" if share else str(int(number))
        object.__setattr__(self, "text", text)

    def of(self, size: int) -> int:
        """Return how many of ``size`` elements that is: all at most, and one at least."""
        number = float(self.text.removesuffix("%"))
        wanted = round(number / 100 * size) if self.text.endswith("%") else int(number)
        return min(size, max(wanted, 1))

    def times(self, factor: float) -> Count:
        """Return ``factor`` times as many, all at most."""
        number = factor * float(self.text.removesuffix("%"))
        share = self.text.endswith("%")
        return Count(f"{min(number, 100):.15g}%" if share else str(max(round(number), 1)))

    def __str__(self) -> str:
        """Return it as users write it."""
        return self.text
