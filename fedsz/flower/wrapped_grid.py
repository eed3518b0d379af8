"""A Grid around a Grid."""

# ruff: noqa: D102 - the methods are those of Flower's `Grid`
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class WrappedGrid(Grid):
    """Passes everything on to another Grid; a subclass changes what it wants to."""

    def __init__(self, inner: Grid) -> None:
        self.inner = inner

    def set_run(self, run: Any) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        return self.inner.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self.inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.inner.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.inner.send_and_receive(messages, timeout=timeout)

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Return replies as they come, where the inner Grid can; Flower's own wait for them all."""
        stream = getattr(self.inner, "stream_replies", self.inner.send_and_receive)
        # Not a generator: its frame would keep the messages, with the model, until the last reply.
        return iter(stream(messages, timeout=timeout))


def wraps(grid: Grid, kind: type[Grid]) -> bool:
    """Say whether a Grid is of a kind, or one that it wraps is."""
    while isinstance(grid, WrappedGrid) and not isinstance(grid, kind):
        grid = grid.inner
    return isinstance(grid, kind)
