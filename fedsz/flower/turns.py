"""Of each node, the turns that it was asked in, that it answered, and that have counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedsz.flower.broadcast_records import by_node


class Turns:
    """What a server knows of the turns of its clients; see `Instructions.counted`.

    Rounds may overlap: a reply may come in a later turn than it was asked in, and its sender be
    asked again before the round that takes it has ended.
    """

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}  # by node: the last turn in which it was to train,
        self._answered: dict[int, int] = {}  # that of its last reply that has passed admission,
        self._counted: dict[int, int] = {}  # and the last in which its reply counted

    def ask(self, node: int, turn: int) -> int | None:
        """Take note that a node is to train; return what it is told of the reply before."""
        last = self._counted.get(node, 0)
        counted = last if self._asked.get(node, 0) > last else None
        self._asked[node] = turn
        return counted

    def has_counted(self, node: int) -> bool:
        """Say whether a reply of a node has counted."""
        return node in self._counted

    def answered(self, node: int, turn: int) -> None:
        """Take note of a reply to what a node was asked in a turn."""
        self._answered[node] = turn

    def counted(self, nodes: Iterable[int]) -> None:
        """Take note that the last replies of these nodes have gone into the model."""
        self._counted |= {node: self._answered.get(node, 0) for node in nodes}

    def state(self) -> dict[str, Any]:
        """Return what `restore` goes on from once a round is over, as records."""
        return {"asked": by_node(turns=self._asked), "counted": by_node(turns=self._counted)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, also in another process."""
        self._asked, self._counted = (
            dict(zip(state[name]["nodes"], state[name]["turns"], strict=True))
            for name in ("asked", "counted")
        )
