"""A Grid around a Grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedsz.flower.polling import PolledReplies


def _passed_on(name: str) -> Any:
    """Return a method that does what the inner Grid's does."""

    def method(grid: WrappedGrid, *arguments: Any, **named: Any) -> Any:
        return getattr(grid.inner, name)(*arguments, **named)

    return method


class WrappedGrid(Grid):
    """Passes everything on to another Grid; a subclass changes what it wants to.

    Attributes:
        inner: the other Grid.
        is_secure: whether training is answered by secure sums.
    """

    def __init__(self, inner: Grid) -> None:
        self.inner = inner
        self.is_secure: bool = getattr(inner, "is_secure", False)

    set_run = _passed_on("set_run")
    run = property(lambda grid: grid.inner.run)
    create_message = _passed_on("create_message")
    get_node_ids = _passed_on("get_node_ids")
    get_nodes = _passed_on("get_nodes")
    push_messages = _passed_on("push_messages")
    pull_messages = _passed_on("pull_messages")
    send_and_receive = _passed_on("send_and_receive")

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Return replies as they come; those of Flower's own Grids are polled."""
        # Not a generator: its frame would keep the messages, with the model, until the last reply.
        stream = getattr(self.inner, "stream_replies", None)
        if stream is None:
            return PolledReplies(self.inner, messages, timeout)
        return iter(stream(messages, timeout=timeout))


def wraps(grid: Grid, kind: type[Grid]) -> bool:
    """Say whether a Grid is of a kind, or one that it wraps is."""
    while isinstance(grid, WrappedGrid) and not isinstance(grid, kind):
        grid = grid.inner
    return isinstance(grid, kind)
