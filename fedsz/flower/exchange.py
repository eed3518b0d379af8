"""One way for messages out and their outcomes back, however an app asks for them.

Each message has one outcome: its reply, or an error reply. Apps wait for all of them
(`send_and_receive`), take them as they come (`StreamedRequest`), or push messages and pull what has
come by then; rounds may overlap. What becomes of a reply is the same in each of these ways.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedsz import flower_compat as compat
from fedsz.errors import FedszError
from fedsz.flower.admission import Admission
from fedsz.flower.asked import Asked, Ledger, Outcome
from fedsz.flower.deadline import Deadline, Deadlines
from fedsz.flower.mod import keeps_model, lacks_method, lacks_model
from fedsz.flower.packing import Packed, Packer
from fedsz.flower.refusal import OF_ITS_TIME, Refusal, kind_of, reason_of, told
from fedsz.flower.round_book import RoundBook
from fedsz.flower.wrapped_grid import WrappedGrid

logger = logging.getLogger(__name__)

NOT_SENT: Final = "not-sent-"  # what ids begin with of messages that have not gone out
NO_REPLY: Final = "no reply"
NOT_TAKEN: Final = "its message was not accepted for delivery"


class Exchange:
    """Sends the messages of a Grid, and books what comes back to who was asked.

    Args:
        inner: the Grid that carries the messages.
        packer: packed them; it is told what clients hold.
        admission: judges the replies.
        book: counts them.
        deadlines: how long they are awaited.
        lock: over what is out; some servers push and pull from a thread for each client.
    """

    def __init__(
        self,
        inner: Grid,
        packer: Packer,
        admission: Admission,
        book: RoundBook,
        deadlines: Deadlines,
        lock: threading.RLock,
    ) -> None:
        self._inner = WrappedGrid(inner)
        self._packer, self._admission, self._book = packer, admission, book
        self._deadlines, self._lock = deadlines, lock
        self._ledger = Ledger()
        self._not_sent: dict[str, Message] = {}  # by id: what is pulled in place of a reply
        self._first: list[Outcome] = []  # held back until it is known what is ordinary
        self._here: deque[Outcome] = deque()  # to be taken one at a time

    def seen(self, node: int, key: str) -> bytes:
        """Return the digest of the history of broadcasts that a node is to have of a model."""
        return self._packer.seen(node, key)

    def begin_histories(self) -> None:
        """Begin all histories of broadcasts anew with the next."""
        self._packer.begin_histories()

    def __len__(self) -> int:
        return len(self._ledger)

    def stream(
        self, packed: Sequence[Packed], timeout: float | None, *, sealed: bool, tells: bool = True
    ) -> Iterator[Message]:
        """Send messages now, and return an iterator over their outcomes, first come first.

        At its end the round is logged, unless somebody else ``tells`` it.
        """
        with self._lock:
            batch = [self._note(one, streamed=sealed) for one in packed]
        messages = [one.message for one in packed]
        replies = self._inner.stream_replies(messages, timeout=timeout) if packed else iter(())
        deadline = self._deadlines.begin(messages, timeout)
        return self._outcomes(batch, replies, deadline, sealed=sealed, tells=tells)

    def push(self, packed: Sequence[Packed], *, streamed: bool) -> list[str]:
        """Send messages; return an id for each, which may be that of an error reply."""
        with self._lock:
            batch = [self._note(one, streamed=streamed) for one in packed]
        # SuperLink has "" or None for what it does not take, and others leave that out.
        pushed = self._inner.push_messages([one.message for one in packed])
        given: list[str | None] = [name or None for name in pushed]
        if len(given) != len(batch):
            taken = set(given)
            own = [asked.sent.message_id for asked in batch]
            given = [name if name in taken else None for name in own]
        with self._lock:
            return [self._named(asked, i) for asked, i in zip(batch, given, strict=True)]

    def not_sent(self, reply: Message) -> str:
        """Return an id by which ``reply`` is pulled, to a message that has not gone out."""
        message_id = f"{NOT_SENT}{secrets.token_hex(8)}"
        self._not_sent[message_id] = reply
        return message_id

    def pull(self, message_ids: Iterable[str]) -> list[Message]:
        """Return outcomes that are here; of those taken as they come, one at a time."""
        wanted = list(message_ids)
        with self._lock:
            refused = [self._not_sent.pop(i) for i in wanted if i in self._not_sent]
            asked = self._ledger.pushed(wanted)
        streamed = [one for one in asked if one.streamed]
        if streamed or self._here or self._first:
            return [*self._next(streamed), *refused]
        settled = self._admission.settled(self._pulled(asked))
        return [*(self._admitted(outcome, sealed=False) for outcome in settled), *refused]

    def fail(self, node: int, reason: str, kind: Refusal, *, trains: bool) -> None:
        """Book a message without a usable reply; only those that train can bench their node."""
        logger.warning("node %d left out: %s", node, reason)
        if trains and kind is not Refusal.BENCHED and kind not in OF_ITS_TIME:
            self._admission.failed(node)
        self._book.failed(node, reason, kind)

    def withdraw(self, node: int) -> None:
        """Let a reply that has passed not count after all."""
        self._admission.withdraw(node)

    def _note(self, packed: Packed, *, streamed: bool) -> Asked:
        metadata = packed.message.metadata
        metadata.__dict__["_message_id"] = ""  # an app may send the same Message again
        asked = Asked(metadata, packed.content, metadata, streamed=streamed)
        self._ledger.note(asked)
        return asked

    def _named(self, asked: Asked, inner_id: str | None) -> str:
        """Note the id of a pushed message; make an error reply of one that was not taken."""
        if inner_id is not None:
            self._ledger.name(asked, inner_id)
            return asked.message_id
        self._ledger.drop(asked)
        self.fail(asked.node, NOT_TAKEN, Refusal.FAILED, trains=asked.trains)
        code = compat.ErrorCode.NODE_UNAVAILABLE
        return self.not_sent(compat.error_reply(asked.metadata, code, NOT_TAKEN))

    def _outcomes(
        self,
        batch: Sequence[Asked],
        replies: Iterator[Message],
        deadline: Deadline,
        *,
        sealed: bool,
        tells: bool,
    ) -> Iterator[Message]:
        count = 0
        try:
            settled = self._settled(set(batch), replies, deadline)
            for outcome in self._admission.settled(settled):
                count += 1
                admitted = self._admitted(outcome, sealed=sealed)
                if admitted.has_error():
                    deadline.refused(admitted)
                yield admitted
            deadline.end()
            for asked in batch:
                if asked.out:
                    self.fail(asked.node, NO_REPLY, Refusal.FAILED, trains=asked.trains)
        finally:
            with self._lock:
                for asked in batch:
                    self._ledger.drop(asked)
        if tells and count > 1:  # others may be on their way to other threads
            self._book.tell()

    def _settled(
        self, batch: set[Asked], replies: Iterator[Message], deadline: Deadline
    ) -> Iterator[Outcome]:
        """Yield the reply to each message of a batch, though a client lack what it was to hold."""
        coming = deque([deadline.watch(replies)])

        def again(_: Asked, whole: Packed) -> bool:  # now: it has a round's training before it
            second = self._inner.stream_replies([whole.message], timeout=deadline.left())
            coming.append(deadline.watch(second))
            return True

        while coming:
            for reply in coming.popleft():
                outcome = self._received(reply, again)
                if outcome is not None and outcome.asked in batch:
                    deadline.took(reply)
                    yield outcome

    def _pulled(self, asked: Sequence[Asked]) -> list[Outcome]:
        """Return the replies to pushed messages that are here."""
        wanted = [one.inner_id for one in asked]
        replies = list(self._inner.pull_messages(wanted)) if wanted else []
        received = (self._received(reply, self._push_again) for reply in replies)
        return [outcome for outcome in received if outcome is not None]

    def _push_again(self, asked: Asked, whole: Packed) -> bool:
        for inner_id in self._inner.push_messages([whole.message]):
            if inner_id:
                self._ledger.name(asked, inner_id)
                return True
        return False

    def _next(self, streamed: Sequence[Asked]) -> list[Message]:
        """Return the next of the replies that are taken one at a time, if one is here."""
        if not self._here:
            self._first += self._pulled(streamed)
            waits = any(asked.out for asked in streamed)
            if self._admission.knows(self._first) or not waits:
                self._here += self._admission.settled(self._first)
                self._first = []
        return [self._admitted(self._here.popleft(), sealed=True)] if self._here else []

    def _received(self, reply: Message, again: Callable[[Asked, Packed], bool]) -> Outcome | None:
        """Return what a reply answers; None where it is of no use, or another one will come.

        A client that lacks what it was to hold or to know is sent another message by ``again``,
        which says whether it could be: its next reply is the one.
        """
        with self._lock:
            asked = self._ledger.settle(reply)
            if asked is None:
                node = reply.metadata.src_node_id
                logger.warning("node %d: a reply to nothing that is out is dropped", node)
                return None
            if second := self._second(asked, reply):
                asked.again, asked.inner_id, asked.sent = True, "", second.message.metadata
                asked.content = second.content
                self._ledger.note(asked)
                self._book.sent(0, second.sent_bytes)
                if again(asked, second):
                    return None
                self._ledger.drop(asked)
            asked.own(reply)
            outcome = Outcome(reply, asked, self._packer.references(asked))
            if keeps_model(reply):
                self._packer.received(asked)
            return outcome

    def _second(self, asked: Asked, reply: Message) -> Packed | None:
        """Return what helps the sender of a reply to another one; None if nothing does."""
        if asked.again:
            return None
        if lacks_model(reply):
            return self._packer.whole(asked)
        return self._packer.without_history(asked) if lacks_method(reply) else None

    def _admitted(self, outcome: Outcome, *, sealed: bool) -> Message:
        """Return a reply that has passed admission, or the error reply that takes its place."""
        reply, asked, _ = outcome
        if reply.has_error():
            self.fail(asked.node, reason_of(reply), Refusal.FAILED, trains=asked.trains)
            return reply
        try:
            admitted = self._admission.admit(outcome, sealed=sealed)
        except FedszError as err:
            reason = told(err)
            if not asked.trains and kind_of(err) is Refusal.METRIC:
                self._book.evaluated(reply)  # a loss that is not finite is news of the model
            self.fail(asked.node, reason, kind_of(err), trains=asked.trains)
            return compat.error_in_place_of(reply, reason)
        sent = {key: update.record for key, update in admitted.updates.items()}
        self._packer.admitted(asked, sent, admitted.weight)
        if not sealed:
            admitted.forget()
        if not asked.trains:
            self._book.evaluated(reply)
        if compat.records_in(reply.content, ArrayRecord):
            self._book.received(admitted)
        return reply
