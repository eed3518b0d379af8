"""Which part of the data is a client's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

_KEYS: Final = "partition-id", "num-partitions"  # of node_config, as Flower's simulation has them


class Share(NamedTuple):
    """A part of the data: the rows of one client."""

    partition: int  # which, from 0
    num_partitions: int

    @classmethod
    def of(cls, node_config: Mapping[str, object]) -> Share | None:
        """Return the part that a ``node_config`` names; None for all, none, and nonsense."""
        index, count = (node_config.get(name) for name in _KEYS)
        if type(index) is not int or type(count) is not int or not 0 <= index < count != 1:
            return None
        return cls(index, count)

    @classmethod
    def parse(cls, text: str) -> Share | None:
        """Return the part that ``I/N`` names, with I below N; None for other text."""
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            return None
        return cls(int(index), int(count))

    @property
    def is_possible(self) -> bool:
        """Whether there can be such a part."""
        return 0 <= self.partition < self.num_partitions

    def as_config(self) -> dict[str, int]:
        """Return the entries of a ``node_config`` that name it."""
        return dict(zip(_KEYS, self, strict=True))

    def __str__(self) -> str:
        return f"{self.partition}/{self.num_partitions}"
