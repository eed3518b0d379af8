"""How long bytes take on a link: an exact model, without any waiting.

    seconds = latency + 8 bytes / bandwidth

for one message on a link that nothing else uses. `benchmarks/netem.py` compares it with real
processes on emulated links.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from fedsz.errors import ConfigError

BITS: Final = {"bps": 1.0, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9}
SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


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


def bandwidth(text: str) -> float:
    """Read a bandwidth such as ``10mbps``, ``1.5 Gbps`` or ``64kbps``, in bits a second.

    Raises:
        ConfigError: it is none.
    """
    return _quantity(text, BITS, "bandwidth", "10mbps")


def latency(text: str) -> float:
    """Read a time such as ``50ms`` or ``0.2s``, in seconds.

    Raises:
        ConfigError: it is none.
    """
    return _quantity(text, SECONDS, "latency", "50ms")


def _quantity(text: str, units: dict[str, float], what: str, example: str) -> float:
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]+)\s*", text.lower())
    number, unit = match.groups() if match else ("", "")
    try:
        return float(number) * units[unit]
    except (KeyError, ValueError):
        have = ", ".join(units)
        raise ConfigError(f"{text!r} is no {what}; write {example}, in {have}") from None
