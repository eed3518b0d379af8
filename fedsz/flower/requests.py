"""Requests that are out: each is one message to a client, and ends with one outcome.

Apps wait for all replies (`send_and_receive`), take them as they come (`StreamedRequest`), or push
messages and pull the replies that have come by then; rounds may overlap. A reply counts for the
request that it answers; nothing else that it says of itself is believed: Flower's SuperLink answers
in its own name for a node that has gone, and Grids leave replies out or give them twice.

A client that lacks the model of a delta is sent the whole model in the same round: all such clients
in one more call, once the first replies are in.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedsz import flower_compat as compat
from fedsz.core.protocol import ReplyNote
from fedsz.flower.liveness import Deadline, Deadlines
from fedsz.flower.mod import needs_key_frame, received_model
from fedsz.flower.outgoing import OpenRequest, Sender
from fedsz.flower.polling import push
from fedsz.flower.records import note_of
from fedsz.flower.round_statistics import RoundStatistics
from fedsz.flower.wrapped_grid import WrappedGrid

logger = logging.getLogger(__name__)

NOT_SENT: Final = "not-sent-"  # what ids begin with of messages that have not gone out
NO_REPLY: Final = "no reply"

# Training requests that a node may have open. A server that asks more has given up the first: its
# reply is never pulled, so nothing else would end the request.
MOST_OPEN: Final = 2


class Outcome(NamedTuple):
    """The reply to a request, which may be an error reply."""

    asked: OpenRequest
    reply: Message


class Requests:
    """Sends requests, and matches replies to them.

    Args:
        inner: the Grid that carries the messages.
        sender: encodes them, and knows what clients hold.
        statistics: counts their bytes.
        deadlines: how long replies are awaited.
        lock: guards bookkeeping, and is never held while a message is sent; some servers push and
            pull from a thread for each client.
    """

    def __init__(
        self,
        inner: Grid,
        sender: Sender,
        statistics: RoundStatistics,
        deadlines: Deadlines,
        lock: threading.RLock,
    ) -> None:
        self._inner, self._sender, self._statistics = WrappedGrid(inner), sender, statistics
        self._deadlines, self._lock = deadlines, lock
        self._open: dict[int, OpenRequest] = {}  # by id()
        self._of_node: dict[int, list[OpenRequest]] = {}
        self._by_message: dict[str, OpenRequest] = {}  # as far as Grids have given ids
        self._not_sent: dict[str, Message] = {}  # by id: what is pulled in place of a reply

    def __len__(self) -> int:
        return len(self._open)

    def stream(
        self, batch: Sequence[OpenRequest], timeout: float | None, deadline: Deadline | None = None
    ) -> Iterator[Outcome]:
        """Send requests now, and return an iterator over their outcomes, first come first.

        A request without a reply has none; see `close`.
        """
        messages = self._encoded(batch)
        replies = self._inner.stream_replies(messages, timeout=timeout) if batch else iter(())
        if deadline is None:
            deadline = self._deadlines.begin(messages, timeout)
        return self._outcomes(set(batch), replies, deadline)

    def _outcomes(
        self, batch: set[OpenRequest], replies: Iterator[Message], deadline: Deadline
    ) -> Iterator[Outcome]:
        again: list[OpenRequest] = []
        for reply in deadline.watch(replies):
            outcome = self._settled(reply, batch)
            if outcome is None:
                continue
            if self._retries(outcome):
                again.append(outcome.asked)
                continue
            deadline.took(reply)
            yield outcome
        if again:  # none of them is retried twice
            yield from self.stream(again, deadline.remaining(), deadline)

    def close(self, batch: Iterable[OpenRequest]) -> list[OpenRequest]:
        """Await no reply to these requests any more; return those that have had none."""
        with self._lock:
            missing = [asked for asked in batch if self._drop(asked)]
            for asked in missing:
                self._sender.missed(asked)
        return missing

    def push(self, batch: Sequence[OpenRequest]) -> list[str]:
        """Send requests; return an id for each, or "" for one that the inner Grid did not take."""
        messages = self._encoded(batch)
        ids = push(self._inner, messages)
        with self._lock:
            for asked, inner_id in zip(batch, ids, strict=True):
                asked.inner_id = inner_id
                asked.message_id = asked.message_id or asked.inner_id
        self.close(asked for asked in batch if not asked.inner_id)
        return [asked.message_id if asked.inner_id else "" for asked in batch]

    def pull(self, message_ids: Iterable[str]) -> list[Outcome]:
        """Return the outcomes that are here of pushed requests; send again what helps a client."""
        wanted = set(message_ids)
        with self._lock:
            batch = [asked for asked in self._open.values() if asked.message_id in wanted]
        if not batch:
            return []
        replies = self._inner.pull_messages([asked.inner_id for asked in batch])
        pulled = set(batch)
        settled = [self._settled(reply, pulled) for reply in replies]
        outcomes = [outcome for outcome in settled if outcome is not None]
        again = [outcome for outcome in outcomes if self._retries(outcome)]
        if again:
            self.push([outcome.asked for outcome in again])
        return [outcome for outcome in outcomes if outcome not in again]

    def not_sent(self, reply: Message) -> str:
        """Return an id by which ``reply`` is pulled, to a message that has not gone out."""
        message_id = f"{NOT_SENT}{secrets.token_hex(8)}"
        self._not_sent[message_id] = reply
        return message_id

    def pull_not_sent(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies of `not_sent`, each once."""
        return [self._not_sent.pop(i) for i in message_ids if i in self._not_sent]

    def error(self, asked: OpenRequest, reason: str) -> Message:
        """Return an error reply to a request."""
        code = compat.ErrorCode.NODE_UNAVAILABLE
        return compat.error_reply(asked.message.metadata, code, reason)

    def _encoded(self, batch: Sequence[OpenRequest]) -> list[Message]:
        """Return the messages of requests that go out now."""
        with self._lock:
            encoded = self._sender.encode(batch)
            self._statistics.sent(
                sum(asked.raw_bytes for asked in batch if not asked.retried),
                sum(nbytes for _, nbytes in encoded),
            )
            for asked in batch:
                self._open[id(asked)] = asked
                of_node = self._of_node.setdefault(asked.node, [])
                of_node.append(asked)
                for given_up in [one for one in of_node if one.trains][:-MOST_OPEN]:
                    self._drop(given_up)
        return [message for message, _ in encoded]

    def _settled(self, reply: Message, batch: set[OpenRequest]) -> Outcome | None:
        """Return a reply with its request, which is open no more; None if it answers none of these.

        A Grid that gives messages no ids is believed in the node that replies.
        """
        metadata = reply.metadata
        with self._lock:
            asked = self._answered(metadata.reply_to_message_id, metadata.src_node_id)
            if asked is None or asked not in batch:
                logger.warning(
                    "node %d: a reply to no open request is dropped", metadata.src_node_id
                )
                return None
            self._drop(asked)
        asked.own(reply)
        return Outcome(asked, reply)

    def _answered(self, reply_to: str, node: int) -> OpenRequest | None:
        # A Grid gives a message its id as late as when the first reply is asked for.
        if reply_to not in self._by_message:
            self._by_message = {name: o for o in self._open.values() if (name := _id_of(o))}
        if reply_to in self._by_message:
            return self._by_message[reply_to]
        unnamed = (asked for asked in self._of_node.get(node, []) if not _id_of(asked))
        return next(unnamed, None)

    def _drop(self, asked: OpenRequest) -> bool:
        """Say whether a request was open; it is no more."""
        if self._open.pop(id(asked), None) is None:
            return False
        self._by_message.pop(_id_of(asked), None)
        self._of_node[asked.node].remove(asked)
        if not self._of_node[asked.node]:
            del self._of_node[asked.node]
        return True

    def _retries(self, outcome: Outcome) -> bool:
        """Say whether a request is sent again; take note of what its client holds."""
        asked, reply = outcome
        with self._lock:
            if needs_key_frame(reply) and self._sender.key_frame(asked):
                return True
            failed, evaluates = reply.has_error(), asked.evaluates
            if failed and evaluates and not received_model(reply) and self._sender.plain(asked):
                return True
            if received_model(reply) or asked.plain:
                note = None if failed else note_of(reply.content)
                said = ReplyNote.decode(note) if note is not None else None
                self._sender.received(asked, said, failed=failed)
            else:
                self._sender.missed(asked)
        return False


def _id_of(asked: OpenRequest) -> str:
    """Return the id of the message that went out last; "" before the inner Grid has given one."""
    return asked.inner_id or (asked.sent.message_id if asked.sent else "")
