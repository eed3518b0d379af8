"""The bench: clients that keep failing are not asked for some rounds, twice as many each time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

PATIENCE: Final = 3  # rounds that a client may fail in a row
LONGEST: Final = 64  # rounds on the bench


class BenchState(NamedTuple):
    """What a `Bench` knows: the round, and by node how often it failed and until when it sits."""

    now: int
    failed: dict[int, int]
    until: dict[int, int]


class Bench:
    """Which clients sit out the round to come.

    A client that has failed in `PATIENCE` rounds in a row sits out one. If it then fails again, it
    sits out two, then four, up to `LONGEST`. A reply that counts clears its record. If all clients
    that were asked would sit out, none does: a run waits for nobody else.
    """

    def __init__(self, state: BenchState | None = None) -> None:
        now, failed, until = state or BenchState(0, {}, {})
        self._round = now
        self._failed = dict(failed)  # by node: rounds in a row
        self._until = dict(until)  # by node: the round that it is asked again in

    @property
    def state(self) -> BenchState:
        """What another is made of that goes on from here."""
        return BenchState(self._round, dict(self._failed), dict(self._until))

    def end_round(self, answered: Collection[int], failed: Collection[int]) -> None:
        """Take the nodes that were asked in a round: those that replied, those that failed."""
        self._round += 1
        for node in answered:
            self._failed.pop(node, None)
            self._until.pop(node, None)
        for node in failed:
            self._failed[node] = times = self._failed.get(node, 0) + 1
            if times >= PATIENCE:
                rounds = min(2 ** min(times - PATIENCE, LONGEST), LONGEST)
                self._until[node] = self._round + rounds
        self._until = {node: end for node, end in self._until.items() if end > self._round}
        if failed and not answered:
            for node in failed:
                self._until.pop(node, None)

    def why(self, node: int) -> str:
        """Return why a node sits out this round; "" if it does not."""
        if node not in self._until:
            return ""
        left = self._until[node] - self._round
        return f"it failed {self._failed[node]} rounds in a row, and is asked again in {left}"
