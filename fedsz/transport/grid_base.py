"""What our Grids share: the run they belong to, and how messages leave and replies come back."""

from __future__ import annotations

import copy
import secrets
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple, Protocol, runtime_checkable

from flwr.app import Message, Metadata, RecordDict
from flwr.serverapp import Grid

from fedsz import flower_compat as compat
from fedsz.errors import ConfigError, CorruptStream
from fedsz.flower_compat import error_reply, new_message_id
from fedsz.transport.message_format import (
    MAX_HEAD_BYTES,
    Content,
    EncodedMessage,
    decode_message,
    encode_content,
    encode_message,
)


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


class Outgoing(NamedTuple):
    """A message that has an id and is ready for the wire."""

    encoded: EncodedMessage
    metadata: Metadata  # a copy: the app may send the same Message again
    reply_head: int = MAX_HEAD_BYTES  # bytes that the head of its reply may have


class GridBase(Grid):
    """A Grid that yields replies one by one; how they travel is its subclasses' business."""

    def __init__(self, run_id: int | None = None) -> None:
        self._run = compat.Run.create_empty(secrets.randbits(63) if run_id is None else run_id)
        # Tell Flower who sends from this process, unless Flower's own runtime has done so.
        identity = compat.TaskIdentity
        try:
            identity.task_id  # noqa: B018 - reading raises if it is not set
        except RuntimeError:
            identity.task_id, identity.run_id = 1, self._run.run_id
            identity.node_id = compat.SUPERLINK_NODE_ID

    def set_run(self, run: compat.Run) -> None:
        """Set the run that messages from now on belong to."""
        self._run = run

    @property
    def run(self) -> compat.Run:
        """The run this Grid works for."""
        return copy.copy(self._run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message for `push_messages`; ``Message(...)`` does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    @abstractmethod
    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send ``messages`` and yield the outcome of each, first come first.

        Each message has exactly one outcome: the reply, or an error reply that says which client
        failed and how. The Grid holds one decoded reply at a time, so what a caller does not keep
        does not add up.

        Args:
            messages: requests; those that share a RecordDict have it encoded once.
            timeout: seconds from now after which a missing reply becomes an error reply; None
                leaves it to the messages' ttl.

        Raises:
            ConfigError: a message is no request, or holds what cannot be sent.
        """

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the outcomes of ``messages``; of `StreamedRequest`s, while they are read, once."""
        pushed = list(messages)
        replies = self.stream_replies(pushed, timeout=timeout)
        return replies if takes_replies_as_they_come(pushed) else list(replies)

    def _prepare(self, messages: Iterable[Message]) -> list[Outgoing]:
        """Give ``messages`` their ids and encode them, each RecordDict once."""
        contents: dict[int, tuple[RecordDict, Content]] = {}  # keeps each key's object alive
        outgoing = []
        for message in messages:
            if not message.has_content() or message.metadata.reply_to_message_id:
                raise ConfigError("only messages with content that reply to nothing can be pushed")
            identity = id(message.content)
            if identity not in contents:
                contents[identity] = message.content, encode_content(message.content)
            message.metadata.__dict__.update(
                _message_id=new_message_id(),
                _run_id=self._run.run_id,
                _src_node_id=compat.SUPERLINK_NODE_ID,
            )
            metadata = copy.copy(message.metadata)
            encoded = encode_message(message, metadata.message_id, contents[identity][1])
            head = getattr(message.content, "reply_head", MAX_HEAD_BYTES)
            outgoing.append(Outgoing(encoded, metadata, head))
        return outgoing


def open_reply(source: IO[bytes], size: int, out: Outgoing, client: str) -> Message:
    """Return the reply to a message that ``source`` holds; an error reply if it is unreadable.

    Of its metadata only the times are the client's: a reply cannot claim to come from another
    node or to answer another message.
    """
    asked = out.metadata
    try:
        reply = decode_message(source, size, out.reply_head)
    except CorruptStream as err:
        reason = f"client {client!r} sent a reply that cannot be read: {err}"
        return error_reply(asked, compat.ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason)
    request = compat.make_message(asked, content=RecordDict())
    ours = Message(reply.content if reply.has_content() else reply.error, reply_to=request)
    times = {"_created_at": reply.metadata.created_at, "_ttl": reply.metadata.ttl}
    ours.metadata.__dict__.update(times, _message_id=new_message_id())
    return ours
