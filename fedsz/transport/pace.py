"""How fast bytes may pass, on a link that is to stay free for others."""

from __future__ import annotations

import threading
import time


class Pace:
    """Holds up whoever passes bytes, so that no more pass than so many bits a second.

    Args:
        bits: a second; infinite for no limit.
        closed: ends all waiting when set.
    """

    def __init__(self, bits: float, closed: threading.Event) -> None:
        self._seconds_per_byte = 8 / bits
        self._closed = closed
        self._free = 0.0  # when the bytes so far have passed

    def passed(self, nbytes: int) -> None:
        """Note that bytes have passed; return when the next ones may."""
        now = time.monotonic()
        self._free = max(self._free, now) + nbytes * self._seconds_per_byte
        self._closed.wait(self._free - now)
