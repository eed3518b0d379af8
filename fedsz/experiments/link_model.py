"""How long bytes take on a link: an exact model, without any waiting.

    seconds = latency + 8 bytes / bandwidth

for one message on a link that nothing else uses. `benchmarks/link_rounds.py` compares it with real
processes on emulated links.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsz.errors import ConfigError


@dataclass(frozen=True)
class Link:
    """A way from one machine to another.

    Raises:
        ConfigError: a number is out of range.
    """

    bandwidth: float  # bits a second, > 0; infinite for a link that costs nothing
    latency: float = 0.0  # seconds that a bit is under way, one way, >= 0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ConfigError(f"a bandwidth must be above 0, got {self.bandwidth}")
        if not 0 <= self.latency < math.inf:
            raise ConfigError(f"a latency must be finite and not below 0, got {self.latency}")

    def seconds(self, nbytes: float) -> float:
        """Return how long ``nbytes`` take, from the first bit's start to the last one's arrival."""
        return self.latency + 8 * nbytes / self.bandwidth
