"""The messages of one secure sum: what goes out at each stage, and what is taken of the replies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsz import flower_compat as compat
from fedsz.arrays import NDArray
from fedsz.errors import ConfigError, FedszError
from fedsz.flower.exchange import NO_REPLY, Exchange
from fedsz.flower.masked_reply import (
    MaskedUpdate,
    answer_in,
    check_beside,
    seen_in,
    without_tokens,
)
from fedsz.flower.packing import Packed
from fedsz.flower.refusal import Refusal, kind_of, reason_of, refusing_failures, told
from fedsz.flower.round_book import RoundBook
from fedsz.flower.secure_member import PLAN, REQUEST, SECURE, SEEN, STAGE, WEIGHTED_BY
from fedsz.flower.secure_sum import SecureSum
from fedsz.methods import History
from fedsz.secagg.noise import NoisedPlan
from fedsz.secagg.server import SecureServer, Stage, Total
from fedsz.secagg.token_plan import TokenPlan

logger = logging.getLogger("flwr.fedsz")

DROPPED_OUT: Final = "dropped out of a secure sum"

# Packs messages, and returns error replies to those that are not to be sent.
Pack = Callable[[list[Message]], tuple[list[Packed], list[Message]]]


@dataclass
class Heard:
    """What comes of a round.

    Attributes:
        model: that clients began with, by name; as they hold it, once it is out.
        seen: what clients say they have seen of the model, by node: `SEEN`.
        answered: replies with tokens, less these, by node.
        updates: what is counted of each, `MaskedUpdate`.
    """

    model: dict[str, NDArray]
    seen: dict[int, bytes] = field(default_factory=dict)
    answered: dict[int, Message] = field(default_factory=dict)
    updates: dict[int, Any] = field(default_factory=dict)


class SecureStages:
    """Takes messages through the stages of secure sums.

    Args:
        options: of each sum.
        grid: carries messages without a model.
        exchange: returns that of the run, which carries the others, and is told of dropouts.
        book: counts what is sent.
        weighted_by: the metric that is the weight of a reply.
    """

    def __init__(
        self,
        options: SecureSum,
        grid: Grid,
        exchange: Callable[[], Exchange],
        book: RoundBook,
        weighted_by: str,
    ) -> None:
        self._options, self._grid, self._weighted_by = options, grid, weighted_by
        self._exchange, self._book = exchange, book

    def total(
        self,
        server: SecureServer,
        plan: Callable[[History | None], TokenPlan | NoisedPlan],
        messages: Mapping[int, Message],
        key: str,
        heard: Heard,
        pack: Pack,
        timeout: float | None,
    ) -> Total:
        """Return the sum of a round; what else comes of it is put into ``heard``.

        Args:
            server: of the round, before its first stage.
            plan: returns that of its tokens, of the history of broadcasts that all clients have.
            messages: with the model, by node.
            key: of the model in them.
            heard: with the model as it is in them.
            pack: packs them.
            timeout: in seconds, of each stage; those without the model may have less.

        Raises:
            AbortedRound: too few clients are left.
            ConfigError: nothing feeds back what a share leaves out.
        """
        plain = heard.model
        asked = server.open(messages)
        while server.stage is not Stage.OVER:
            if server.stage is Stage.INPUTS:
                out = [self._with_model(messages[i], asked[i]) for i in sorted(asked)]
                packed, benched = pack(out)
                models = packed[0].content.models if packed else {}
                self._require_feedback(packed)
                made = plan(self._shared_history(packed, key, heard.seen))
                for one in packed:
                    one.content.others[SECURE][PLAN] = made.encode()
                if key in models:
                    heard.model = models[key].arrays
                server.about = made.about(dict(sorted(heard.model.items())))
                coming = self._exchange().stream(packed, timeout, sealed=False, tells=False)
                for node, reply in self._taken(server, chain(benched, coming), key):
                    heard.updates[node] = MaskedUpdate.of(reply, plain)
                    heard.answered[node] = without_tokens(reply)  # or all of them would be held
            else:
                replies = list(self._ask(server.stage, asked, messages, key, timeout))
                for node, reply in self._taken(server, replies):
                    if (seen := seen_in(reply)) is not None:
                        heard.seen[node] = seen
                for node in asked.keys() - {reply.metadata.src_node_id for reply in replies}:
                    self.fail(node, NO_REPLY)
            asked = server.advance()
        assert server.total is not None
        return server.total

    def fail(self, node: int, reason: str, kind: Refusal = Refusal.FAILED) -> None:
        """Book that a node has dropped out."""
        self._exchange().fail(node, f"{DROPPED_OUT}: {reason}", kind, trains=True)

    def withdraw(self, node: int, reason: str) -> None:
        """Book that what a node has sent does not count, whatever was kept of it."""
        self.fail(node, reason, Refusal.QUORUM)
        self._exchange().withdraw(node)

    def _ask(
        self,
        stage: Stage,
        asked: Mapping[int, bytes],
        messages: Mapping[int, Message],
        key: str,
        timeout: float | None,
    ) -> Iterable[Message]:
        """Send messages without a model, and return the replies."""
        limit = self._options.stage_timeout
        limit = limit if timeout is None else min(limit, timeout)
        out = []
        for node, request in asked.items():
            asks: dict[str, Any] = {STAGE: stage.name, REQUEST: request}
            if stage is Stage.ADVERTS and self._options.sparse:
                asks[SEEN] = key
            about = messages[node].metadata
            content = RecordDict({SECURE: ConfigRecord(asks)})
            out.append(Message(content, node, about.message_type, group_id=about.group_id))
        self._book.sent(0, sum(map(len, asked.values())))
        return self._grid.send_and_receive(out, timeout=limit)

    def _shared_history(
        self, packed: Sequence[Packed], key: str, seen: Mapping[int, bytes]
    ) -> History | None:
        """Return the history of broadcasts that all who are sent a model will have, if any.

        Where they have different ones, all histories begin anew with the next broadcast. A client
        that has lost its own says so before it is sent anything.
        """
        exchange, found = self._exchange(), []
        for one in packed:
            node, history = one.message.metadata.dst_node_id, one.content.histories.get(key)
            said = seen.get(node, b"")
            # One that begins with the last broadcast takes no more than the model before.
            goes_on = said == exchange.seen(node, key) or (history and history.count == 1)
            found.append(history if said and goes_on else None)
        digests = {history.digest if history else b"" for history in found}
        if len(digests) > 1:
            logger.info("fedsz: a round without a basis: not all clients have seen the same")
            exchange.begin_histories()
        return found[0] if len(digests) == 1 else None

    def _with_model(self, message: Message, request: bytes) -> Message:
        asks: dict[str, Any] = {STAGE: Stage.INPUTS.name, REQUEST: request}
        record = ConfigRecord({**asks, WEIGHTED_BY: self._weighted_by})
        content = RecordDict({**message.content, SECURE: record})
        return compat.make_message(message.metadata, content=content)

    def _taken(
        self, server: SecureServer, replies: Iterable[Message], key: str | None = None
    ) -> Iterator[tuple[int, Message]]:
        """Yield the replies that the server has taken, by their nodes; book why others are not.

        Errors of those to a model, under its ``key``, are booked already.
        """
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if not reply.has_error():
                    with refusing_failures():
                        answer = answer_in(reply)
                        if key is not None:
                            check_beside(reply, key)
                        server.receive(node, answer)
                    yield node, reply
                elif key is None:
                    self.fail(node, reason_of(reply))
            except FedszError as err:
                self.fail(node, told(err), kind_of(err))
                if key is not None:
                    self._exchange().withdraw(node)

    def _require_feedback(self, packed: Sequence[Packed]) -> None:
        told = [one.content.instructions.config for one in packed]
        leaves_out = self._options.share < 1 or self._options.sparse
        if leaves_out and not all(config.feeds_back for config in told):
            raise ConfigError("a secure sum of a share needs an update with feedback: delta+ef")
