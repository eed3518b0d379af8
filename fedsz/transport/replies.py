"""Replies as they come, for strategies that take them one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from flwr.app import Message, RecordDict

from fedsz.transport.message_format import MAX_HEAD_BYTES


class StreamedRequest(RecordDict):
    """The content of a message whose sender averages the updates in the replies.

    It takes replies as they come, their arrays still sealed. It is a mark that every wrapper
    between a strategy and its Grid passes on. On the wire it is its records and nothing more.

    Attributes:
        reply_head: bytes that names, numbers and text of its reply may have.
    """

    reply_head: int = MAX_HEAD_BYTES

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
