"""The messages of one secure sum: what goes out at each stage, and what is taken of the replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedsz import flower_compat as compat
from fedsz.arrays import NDArray
from fedsz.errors import FedszError, RefusedReply
from fedsz.flower.masked_reply import answer_in, check_beside, masked_update, without_tokens
from fedsz.flower.refusal import Refusal, kind_of, reason, reason_of, refusing_failures
from fedsz.flower.requests import NO_REPLY
from fedsz.flower.round_statistics import RoundStatistics
from fedsz.flower.secure_member import PLAN, REQUEST, SECURE, STAGE, WEIGHTED_BY
from fedsz.flower.secure_sum import SecureSum
from fedsz.flower.update import Update
from fedsz.secagg.noise import NoisedPlan
from fedsz.secagg.server import SecureServer, Stage, Total
from fedsz.secagg.token_plan import TokenPlan

if TYPE_CHECKING:
    from fedsz.flower.grid import FedSZGrid  # which has this one's user

DROPPED_OUT: Final = "dropped out of a secure sum"


@dataclass
class SumReplies:
    """The messages of a round, and the replies to them as they come in.

    Attributes:
        messages: with the model, by node.
        key: of the model in them.
        model: the server's own, by name in order.
        answered: replies with tokens, less these, by node.
        updates: what is counted of each.
    """

    messages: Mapping[int, Message]
    key: str
    model: Mapping[str, NDArray]
    answered: dict[int, Message] = field(default_factory=dict)
    updates: dict[int, Update] = field(default_factory=dict)


class SecureStages:
    """Takes messages through the stages of secure sums.

    Args:
        options: of each sum.
        grid: carries the messages, and counts failures.
        statistics: counts what is sent without a model.
        weighted_by: the metric that is the weight of a reply.
    """

    def __init__(
        self, options: SecureSum, grid: FedSZGrid, statistics: RoundStatistics, weighted_by: str
    ) -> None:
        self._options, self._grid, self._statistics = options, grid, statistics
        self._weighted_by = weighted_by

    def total(
        self,
        server: SecureServer,
        plan: TokenPlan | NoisedPlan,
        replies: SumReplies,
        timeout: float | None,
    ) -> Total:
        """Return the sum of a round.

        Args:
            server: of the round, before its first stage.
            plan: of its tokens.
            replies: of the round, before the first; those with tokens are added.
            timeout: in seconds, of each stage; those without the model may have less.

        Raises:
            AbortedRound: too few clients are left.
        """
        asked = server.open(replies.messages)
        while server.stage is not Stage.OVER:
            if server.stage is Stage.INPUTS:
                self._sum_tokens(server, plan, asked, replies, timeout)
            else:
                answers = self._ask(server.stage, asked, replies.messages, timeout)
                for _ in self._taken(server, answers):
                    pass
                for node in asked.keys() - {reply.metadata.src_node_id for reply in answers}:
                    self.fail(node, NO_REPLY)
            asked = server.advance()
        assert server.total is not None
        return server.total

    def fail(self, node: int, why: str, kind: Refusal = Refusal.FAILED) -> None:
        """Count that a node has dropped out."""
        self._grid.fail(node, f"{DROPPED_OUT}: {why}", kind, trains=True)

    def _sum_tokens(
        self,
        server: SecureServer,
        plan: TokenPlan | NoisedPlan,
        asked: Mapping[int, bytes],
        replies: SumReplies,
        timeout: float | None,
    ) -> None:
        """Send the model, and have the server add up the tokens that come back."""
        key = replies.key
        out = []
        for node in sorted(asked):
            message = replies.messages[node]
            asks: dict[str, Any] = {STAGE: Stage.INPUTS.name, REQUEST: asked[node]}
            asks |= {PLAN: plan.encode(), WEIGHTED_BY: self._weighted_by}
            content = RecordDict({**message.content, SECURE: ConfigRecord(asks)})
            out.append(compat.make_message(message.metadata, content=content))
        # Streamed, or all tokens would be held.
        opened, backed_off = self._grid.open(out, streamed=True, begins=False)
        if opened:  # tokens are relative to what clients hold
            reference = opened[0].models[key].reference.arrays
            server.about = plan.about(dict(sorted(reference.items())))
        coming = chain(backed_off, self._grid.outcomes(opened, timeout))
        for node, reply in self._taken(server, coming, key):
            replies.updates[node] = masked_update(reply, replies.model)
            replies.answered[node] = without_tokens(reply)

    def _ask(
        self,
        stage: Stage,
        asked: Mapping[int, bytes],
        messages: Mapping[int, Message],
        timeout: float | None,
    ) -> list[Message]:
        """Send messages without a model, and return the replies."""
        limit = self._options.stage_timeout
        limit = limit if timeout is None else min(limit, timeout)
        out = []
        for node, request in asked.items():
            about = messages[node].metadata
            content = RecordDict({SECURE: ConfigRecord({STAGE: stage.name, REQUEST: request})})
            out.append(Message(content, node, about.message_type, group_id=about.group_id))
        self._statistics.sent(0, sum(map(len, asked.values())))
        return list(self._grid.inner.send_and_receive(out, timeout=limit))

    def _taken(
        self, server: SecureServer, replies: Iterable[Message], key: str | None = None
    ) -> Iterator[tuple[int, Message]]:
        """Yield the replies that the server has taken, by their nodes; count why others are not.

        Errors of those to a model, under its ``key``, are counted already.
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
                if key is not None and compat.records_in(reply.content, ArrayRecord):
                    why = RefusedReply(kind_of(err), f"{DROPPED_OUT}: {reason(err)}")
                    self._grid.withdraw([node], why)  # the Grid has counted it
                else:
                    self.fail(node, reason(err), kind_of(err))
