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
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedsz.core.protocol import ReplyNote
from fedsz.flower.liveness import Deadline, Deadlines
from fedsz.flower.mod import needs_key_frame
from fedsz.flower.outgoing import OpenRequest, Sender
from fedsz.flower.polling import push
from fedsz.flower.records import note_of
from fedsz.flower.round_statistics import RoundStatistics
from fedsz.flower.wrapped_grid import WrappedGrid

logger = logging.getLogger(__name__)

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
        self._open: list[OpenRequest] = []

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
            missing = [asked for asked in batch if asked in self._open]
            self._open = [asked for asked in self._open if asked not in missing]
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
            batch = [asked for asked in self._open if asked.message_id in wanted]
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

    def _encoded(self, batch: Sequence[OpenRequest]) -> list[Message]:
        """Return the messages of requests that go out now."""
        with self._lock:
            encoded = self._sender.encode(batch)
            self._statistics.sent(
                sum(asked.raw_bytes for asked in batch if not asked.retried),
                sum(nbytes for _, nbytes in encoded),
            )
            for asked in batch:
                self._open.append(asked)
                of_node = [one for one in self._open if one.node == asked.node and one.trains]
                for given_up in of_node[:-MOST_OPEN]:
                    self._open.remove(given_up)
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
            self._open.remove(asked)
        asked.own(reply)
        return Outcome(asked, reply)

    def _answered(self, reply_to: str, node: int) -> OpenRequest | None:
        # A Grid gives a message its id as late as when the first reply is asked for.
        named = (asked for asked in self._open if reply_to and _id_of(asked) == reply_to)
        unnamed = (asked for asked in self._open if asked.node == node and not _id_of(asked))
        return next(named, None) or next(unnamed, None)

    def _retries(self, outcome: Outcome) -> bool:
        """Say whether a request is sent again; take note of what its client holds."""
        asked, reply = outcome
        with self._lock:
            if needs_key_frame(reply) and self._sender.key_frame(asked):
                return True
            if not reply.has_error():
                note = note_of(reply.content)
                said = ReplyNote.decode(note) if note is not None else None
                self._sender.received(asked, said)
        return False


def _id_of(asked: OpenRequest) -> str:
    """Return the id of the message that went out last; "" before the inner Grid has given one."""
    return asked.inner_id or (asked.sent.message_id if asked.sent else "")
