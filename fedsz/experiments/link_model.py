"""How long bytes take on a link, and what an update costs: an exact model, without any waiting.

    seconds = latency + 8 bytes / bandwidth

for one message on a link that nothing else uses. `benchmarks/netem.py` compares it with real
processes on emulated links.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsz.control.transfer_time import transfer_seconds, worth_below
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


@dataclass(frozen=True)
class UpdateCost:
    """What an update costs, compressed or as it is; `fedsz.control.transfer_time` has Eqn 1."""

    raw_bytes: float  # of the update, S
    sent_bytes: float  # of what is sent, S'
    encode_seconds: float  # t_C
    decode_seconds: float  # t_D

    @property
    def ratio(self) -> float:
        """How many times smaller than the update it is."""
        return self.raw_bytes / self.sent_bytes

    @property
    def coding_seconds(self) -> float:
        """What it takes besides sending: t_C + t_D."""
        return self.encode_seconds + self.decode_seconds

    def seconds(self, bandwidth: float, latency: float = 0.0) -> float:
        """Return what it takes on a link, of bits a second and a latency in seconds."""
        return latency + transfer_seconds(self.coding_seconds, self.sent_bytes, bandwidth)

    @property
    def worth_below(self) -> float:
        """The bandwidth, in bits a second, below which Eqn 1 holds; 0 where it never does."""
        return worth_below(self.coding_seconds, self.raw_bytes, self.sent_bytes)

    def is_worth(self, bandwidth: float) -> bool:
        """Say whether it beats sending the update as it is, at so many bits a second."""
        return bandwidth < self.worth_below
