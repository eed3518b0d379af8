"""How long an update takes on a link, and where compressing it pays: Eqn 1 of the FedSZ paper.

    0 < t_C + t_D + 8 S' / B < 8 S / B

with S bytes of an update, S' bytes of what is sent in its place, B the link's bandwidth in bits a
second, and t_C and t_D the seconds that compressing and decompressing take. Solved for B:
compressing pays below B = 8 (S - S') / (t_C + t_D). A latency is the same on both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class UpdateCost:
    """What an update costs, compressed or as it is."""

    raw_bytes: float  # of the update, S
    sent_bytes: float  # of what is sent, S'
    encode_seconds: float  # t_C
    decode_seconds: float  # t_D

    @property
    def plain(self) -> Self:
        """The same update as it is."""
        return replace(self, sent_bytes=self.raw_bytes, encode_seconds=0.0, decode_seconds=0.0)

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
        return latency + self.coding_seconds + 8 * self.sent_bytes / bandwidth

    @property
    def worth_below(self) -> float:
        """The bandwidth, in bits a second, below which Eqn 1 holds; 0 where it never does."""
        return worth_below(self.coding_seconds, self.raw_bytes, self.sent_bytes)

    def is_worth(self, bandwidth: float) -> bool:
        """Say whether it beats sending the update as it is, at so many bits a second."""
        return bandwidth < self.worth_below


def worth_below(coding_seconds: float, raw_bytes: float, sent_bytes: float) -> float:
    """Return the bandwidth in bits a second below which Eqn 1 holds.

    0 if compressing saves no bytes; infinite if it saves some and takes no time.
    """
    saved = 8 * (raw_bytes - sent_bytes)
    if saved <= 0:
        return 0.0
    return saved / coding_seconds if coding_seconds > 0 else math.inf
