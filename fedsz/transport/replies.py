"""Replies as they come, for strategies that take them one by one and for those that want a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from flwr.app import Message, RecordDict

from fedsz.transport.message_format import MAX_HEAD_BYTES


class StreamedRequest(RecordDict):
    """The content of a message whose sender takes replies as they come, their arrays still sealed.

    It is a mark that every wrapper between a strategy and its Grid passes on. On the wire it is
    its records and nothing more.

    Attributes:
        reply_head: bytes that names, numbers and text of its reply may have.
        is_averaged: whether the sender does no more with the updates than average them, so that
            their mean does for each of them.
    """

    reply_head: int = MAX_HEAD_BYTES
    is_averaged: bool = False

    # Flower writes the name of a class beside its bytes, and knows no other than its own.
    __qualname__ = RecordDict.__qualname__


@runtime_checkable
class Hastened(Protocol):
    """An iterator over replies whose time limit can be shortened while it is read."""

    def give_up_after(self, seconds: float) -> None:
        """Make each reply an error reply that is missing so long after it was asked for."""


def takes_replies_as_they_come(messages: Iterable[Message]) -> bool:
    """Say whether the sender of these messages does."""
    return any(isinstance(message.content, StreamedRequest) for message in messages)


def is_averaged(messages: Iterable[Message]) -> bool:
    """Say whether the sender of these messages averages the updates; see `StreamedRequest`."""
    return all(getattr(message.content, "is_averaged", False) for message in messages)


class Replies(Sequence[Message]):
    """A sequence that is filled while it is read.

    Going through it yields each reply as it comes, and again whenever that is done again. Its
    length, and its members by their places, are there when all replies are.

    Args:
        coming: the replies.
        check: returns what takes the place of a reply; see `as_they_come`.
        end: is called once all replies are here, or when their receiver says so by `end`.
    """

    def __init__(
        self,
        coming: Iterator[Message],
        check: Callable[[Message], Message] | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._coming, self._check, self._end = coming, check, end
        self._here: list[Message] = []
        self._ended = False

    def as_they_come(self) -> Iterator[Message]:
        """Yield replies that are neither kept nor checked, for a receiver that checks each one.

        That receiver calls `end`, once it knows which of them count.
        """
        while self._here:
            yield self._here.pop(0)
        yield from self._coming

    def __iter__(self) -> Iterator[Message]:
        at = 0
        while at < len(self._here) or self._take():
            yield self._here[at]
            at += 1

    def __len__(self) -> int:
        while self._take():
            pass
        return len(self._here)

    def __bool__(self) -> bool:
        return bool(self._here) or self._take()

    def __getitem__(self, at: Any) -> Any:
        _ = len(self)
        return self._here[at]

    def _take(self) -> bool:
        """Wait for another reply; say whether there was one."""
        for reply in self._coming:
            self._here.append(self._check(reply) if self._check else reply)
            return True
        self.end()
        return False

    def end(self) -> None:
        """Let it be known that all replies have been received; once."""
        if not self._ended:
            self._ended = True
            self._end()
