"""What a client of a job keeps from one task to the next, in memory."""

from __future__ import annotations

from fedsz.core.client import ClientSession, Memory
from fedsz.core.reference import Reference


class ClientState:
    """A `fedsz.core.client.Store` by the names of tasks, and what else a client's filters share.

    Attributes:
        references: the reference models.
        sessions: the tasks that wait for their results, with their ids.
        has_initial: whether the first model may be the server's; until it turns out not to be.
        is_new: whether this process has sent no result yet.
    """

    def __init__(self) -> None:
        self.references: dict[str, Reference] = {}
        self.sessions: dict[str, tuple[str, ClientSession]] = {}
        self.has_initial = self.is_new = True
        self._memories: dict[str, tuple[Memory, bytes, int]] = {}

    def reference(self, key: str) -> Reference | None:
        """Do as `Store.reference`."""
        return self.references.get(key)

    def keep_reference(self, key: str, model: Reference) -> Reference:
        """Do as `Store.keep_reference`."""
        self.references[key] = model
        return model

    def memory(self, key: str) -> tuple[Memory, bytes, int]:
        """Do as `Store.memory`."""
        return self._memories.get(key, ({}, b"", 0))

    def keep_memory(self, key: str, memory: Memory, run: bytes, round_number: int) -> None:
        """Do as `Store.keep_memory`."""
        self._memories[key] = memory, run, round_number
