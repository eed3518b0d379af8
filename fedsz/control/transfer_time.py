"""How long an update takes on a link, and where compressing it pays: Eqn 1 of the FedSZ paper.

    0 < t_C + t_D + 8 S' / B < 8 S / B

with S bytes of an update, S' bytes of what is sent in its place, B the link's bandwidth in bits a
second, and t_C and t_D the seconds that compressing and decompressing take. Solved for B:
compressing pays below B = 8 (S - S') / (t_C + t_D). A latency is the same on both sides.
"""

from __future__ import annotations

import math


def transfer_seconds(coding_seconds: float, sent_bytes: float, bandwidth: float) -> float:
    """Return t_C + t_D + 8 S' / B, the seconds of an update at a bandwidth in bits a second."""
    return coding_seconds + 8 * sent_bytes / bandwidth


def is_worth(coding_seconds: float, raw_bytes: float, sent_bytes: float, bandwidth: float) -> bool:
    """Say whether Eqn 1 holds at a bandwidth in bits a second."""
    seconds = transfer_seconds(coding_seconds, sent_bytes, bandwidth)
    return 0 < seconds < transfer_seconds(0.0, raw_bytes, bandwidth)


def worth_below(coding_seconds: float, raw_bytes: float, sent_bytes: float) -> float:
    """Return the bandwidth in bits a second below which Eqn 1 holds.

    0 if compressing saves no bytes; infinite if it saves some and takes no time.
    """
    saved = 8 * (raw_bytes - sent_bytes)
    if saved <= 0:
        return 0.0
    return saved / coding_seconds if coding_seconds > 0 else math.inf
