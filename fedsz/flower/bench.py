"""The bench: clients that keep failing are not asked for some rounds, twice as many each time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

PATIENCE: Final = 3  # rounds that a client may fail in a row
LONGEST: Final = 64  # rounds on the bench


class Bench(msgspec.Struct, array_like=True):
    """Which clients sit out the round to come.

    A client that has failed in `PATIENCE` rounds in a row sits out one. If it then fails again, it
    sits out two, then four, up to `LONGEST`. A reply that counts clears its record. If all clients
    that were asked would sit out, none does: a run waits for nobody else.

    Attributes:
        now: the round.
        failed: by node, how many rounds in a row it has failed.
        until: by node, the round that it is asked again in.
    """

    now: int = 0
    failed: dict[int, int] = {}
    until: dict[int, int] = {}

    def end_round(self, answered: Collection[int], failed: Collection[int]) -> None:
        """Take the nodes that were asked in a round: those that replied, those that failed."""
        self.now += 1
        for node in answered:
            self.failed.pop(node, None)
            self.until.pop(node, None)
        for node in failed:
            self.failed[node] = times = self.failed.get(node, 0) + 1
            if times >= PATIENCE:
                rounds = min(2 ** min(times - PATIENCE, LONGEST), LONGEST)
                self.until[node] = self.now + rounds
        self.until = {node: end for node, end in self.until.items() if end > self.now}
        if failed and not answered:
            for node in failed:
                self.until.pop(node, None)

    def why(self, node: int) -> str:
        """Return why a node sits out this round; "" if it does not."""
        if node not in self.until:
            return ""
        left = self.until[node] - self.now
        return f"it failed {self.failed[node]} rounds in a row, and is asked again in {left}"
