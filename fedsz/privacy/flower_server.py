"""The server's part in secure sums, from round to round, by the hooks of `FedSZGrid`.

A strategy gets the mean of all survivors from each of them, with the same weight. So whatever
weighted average it takes is that mean.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsz import flower_compat as compat
from fedsz.arrays import NDArray
from fedsz.core.protocol import ReplyNote
from fedsz.errors import (
    AbortedRound,
    ConfigError,
    CorruptStream,
    FedszError,
    RefusedReply,
    TooFewReplies,
)
from fedsz.flower.differential_privacy import clipping_norm
from fedsz.flower.grid import FedSZGrid
from fedsz.flower.outgoing import OpenRequest
from fedsz.flower.records import SECURE, is_round, is_training, layout_of, to_record
from fedsz.flower.refusal import Refusal, kind_of, reason, reason_of, refusing_failures
from fedsz.flower.requests import NO_REPLY
from fedsz.flower.round_statistics import CountedReply, RoundStatistics
from fedsz.flower.update import Update
from fedsz.privacy.flower_client import ANSWER, PLAN, REQUEST, WEIGHTED_BY, LocalNoise
from fedsz.privacy.graph import Assumptions
from fedsz.privacy.identity import CertificateVerifier
from fedsz.privacy.quantizer import Learned, TokenCodec, about, moved
from fedsz.privacy.ring import MAX_BITS, MIN_BITS
from fedsz.privacy.ring_noise import NoisedCodec, NoisedPlan
from fedsz.privacy.server import SecureServer, Stage, planned
from fedsz.transport.grid_base import takes_replies_as_they_come

logger = logging.getLogger("flwr.fedsz")

DROPPED_OUT: Final = "dropped out of a secure sum"
STAGE_SECONDS: Final = 300.0  # that clients have for a message without a model
MOST_EXAMPLES: Final = 1024  # that a client weighs at most in the first round
MOST_LOST: Final = 3  # rounds in a row that shares have spoilt, or in which no update came
_STATE: Final = "secure"  # the record of a state that is of secure sums
_NAMED: Final = 10  # nodes in an error


@dataclass(frozen=True)
class SecureSum:
    """How a `FedSZGrid` adds up updates that it cannot read.

    Attributes:
        bits: of the ring, 2 to 32: so many for each parameter on the uplink.
        assumed: what a round withstands: who colludes, who drops out, whether keys are signed.
        verifier: checks signatures, if keys are signed.
        strategy_averages: whether the strategy is known to average. It is given the mean in place
            of each update: a median or Krum of these would look as if it was robust.
            `StreamingFedAvg` and `PrivateFedAvg` say of themselves that they average. For any
            other, such as Flower's FedAvg and FedAdam, you say so here.

    Raises:
        ConfigError: bits are out of range, or keys are to be signed and nobody checks that.

    Examples:
        >>> from fedsz.flower import FedSZGrid, LocalGrid, SecureSum, make_client_app
        >>> nodes = [{"partition-id": i, "num-partitions": 8} for i in range(8)]
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), nodes), secure=SecureSum(bits=16))
    """

    bits: int = 16
    assumed: Assumptions = field(default_factory=Assumptions)
    verifier: CertificateVerifier | None = None
    strategy_averages: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not MIN_BITS <= self.bits <= MAX_BITS:
            what = f"a secure sum takes a whole number of bits from {MIN_BITS} to {MAX_BITS}"
            raise ConfigError(f"{what}, got {self.bits}")
        SecureServer(1, 1, self.assumed, self.verifier)

    def of_run(
        self, grid: FedSZGrid, statistics: RoundStatistics, weighted_by: str
    ) -> SecureRounds:
        """Return the secure sums of one run of a Grid."""
        return SecureRounds(self, grid, statistics, weighted_by)


@dataclass
class _Round:
    """One round that is summed up.

    Attributes:
        opened: its requests, with the model, by node.
        key: of the model in them.
        model: the server's own, by name in order.
        codec: of the tokens.
        server: takes what clients answer.
        answered: replies with tokens, less these, by node.
        updates: what is counted of each.
    """

    opened: Mapping[int, OpenRequest]
    key: str
    model: Mapping[str, NDArray]
    codec: TokenCodec | NoisedCodec
    server: SecureServer
    answered: dict[int, Message] = field(default_factory=dict)
    updates: dict[int, Update] = field(default_factory=dict)


class SecureRounds:
    """The secure sums of a run.

    Args:
        options: of each.
        grid: carries the messages, and counts failures.
        statistics: counts replies, and what is sent without a model.
        weighted_by: the metric that is the weight of a reply.
    """

    def __init__(
        self, options: SecureSum, grid: FedSZGrid, statistics: RoundStatistics, weighted_by: str
    ) -> None:
        self._options, self._grid, self._statistics = options, grid, statistics
        self._weighted_by = weighted_by
        self._begin_run()

    def _begin_run(self) -> None:
        self._known = Learned(MOST_EXAMPLES)
        self._lost: list[Counter[int]] = []  # suspects of the last rounds, none of which counted

    def state(self) -> dict[str, ConfigRecord]:
        """Return what another process goes on with, once a round is over. Nothing of it is secret.

        A round that is not over has no part in it: whoever goes on begins that round anew, with
        other keys, and whatever clients still remember of it is never asked for.
        """
        return {_STATE: ConfigRecord({"json": msgspec.json.encode(self._known).decode()})}

    def restore(self, records: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; anew from a state without secure sums.

        Raises:
            ValueError: ``records`` have another state.
        """
        self._begin_run()
        if _STATE in records:
            self._known = msgspec.json.decode(records[_STATE]["json"], type=Learned)

    def takes(self, pushed: Sequence[Message]) -> bool:
        """Say whether messages are of a round that is summed up.

        Raises:
            ConfigError: they train, and cannot be, for a legacy server sends to one client at a
                time; or nobody says that the strategy averages.
        """
        has_model = any(compat.records_in(message.content, ArrayRecord) for message in pushed)
        if not is_training(pushed) or not has_model:
            return False
        if not is_round(pushed):
            raise ConfigError(
                "a secure sum needs a strategy of flwr.serverapp: legacy ones send one by one"
            )
        if not self._options.strategy_averages and not takes_replies_as_they_come(pushed):
            what = "a secure sum gives the strategy the mean in place of each update"
            use = "if it averages, say so by SecureSum(strategy_averages=True)"
            raise ConfigError(f"{what}: {use}, or use fedsz.flower.StreamingFedAvg")
        return True

    def replies(self, pushed: Sequence[Message], timeout: float | None) -> list[Message]:
        """Return a reply for each of a round's messages: the mean, or an error.

        Args:
            pushed: the messages, with the model.
            timeout: in seconds, of each stage; those without the model may have less.

        Raises:
            ConfigError: the messages hold other than one model or ask for clipping, the ring is too
                small for them.
            TooFewReplies: shares that are garbage have spoilt three rounds in a row, or no
                update came in three.
        """
        if clipping_norm(pushed[0].content) is not None:
            raise ConfigError("the updates of a secure sum cannot be clipped for noise")
        key = _key_of(pushed[0])
        out = [
            compat.make_message(
                message.metadata, content=RecordDict({**message.content, SECURE: ConfigRecord()})
            )
            for message in sorted(pushed, key=lambda message: message.metadata.dst_node_id)
        ]
        # Streamed, or all tokens would be kept.
        opened = self._grid.open(out, streamed=True, begins=False)
        model = dict(sorted(opened[0].models[key].model.items()))
        requests = {asked.node: asked for asked in opened}
        try:
            codec = self._codec(model, len(opened), pushed[0])
        except AbortedRound as err:
            return self._aborted(requests, requests, err)
        options = self._options
        server = SecureServer(codec.count, options.bits, options.assumed, options.verifier)
        round_ = _Round(requests, key, model, codec, server)
        try:
            return self._summed(round_, timeout)
        except AbortedRound as err:
            if server.suspects or not round_.answered:
                self._note_lost(server.suspects, err)
            return self._aborted(requests, round_.answered, err)

    def _aborted(
        self, requests: Mapping[int, OpenRequest], blameless: Iterable[int], err: AbortedRound
    ) -> list[Message]:
        why = f"the round does not count: {err}"
        for node in blameless:
            self._fail(node, why, Refusal.QUORUM)
        return [error_of(asked.message, why) for asked in requests.values()]

    def _note_lost(self, suspects: Counter[int], err: AbortedRound) -> None:
        """Count a round that shares have spoilt, or in which no update came.

        Raises:
            TooFewReplies: it is the third in a row. Names who had a part in most of these shares:
                neighbours change from round to round, and a liar meets others.
        """
        self._lost.append(suspects)
        if suspects:
            logger.warning("fedsz: shares that are garbage: %s", _most_suspect(suspects))
        if len(self._lost) < MOST_LOST:
            return
        if not (all_suspects := sum(self._lost, Counter[int]())):
            hint = "is FedSZMod() the first of the ClientApp's mods?"
            what = f"no update came in {MOST_LOST} secure sums in a row"
            raise TooFewReplies(f"{what}: {err}; {hint}") from err
        what = f"shares that are garbage have spoilt {MOST_LOST} secure sums in a row"
        raise TooFewReplies(f"{what}; most of them: {_most_suspect(all_suspects)}") from err

    def _codec(
        self, model: Mapping[str, NDArray], clients: int, message: Message
    ) -> TokenCodec | NoisedCodec:
        """Return the codec of a round, with its plan.

        Raises:
            AbortedRound: no plan fits so many clients.
            ConfigError: the ring is too small for them.
        """
        noise, bits = LocalNoise.asked(message.content), self._options.bits
        if not noise:
            return self._known.codec(model, clients, bits)
        members = planned(clients, self._options.assumed)
        return NoisedCodec(NoisedPlan(bits, *noise), model, members)

    def _summed(self, round_: _Round, timeout: float | None) -> list[Message]:
        """Return the replies of a round; raise `AbortedRound` if it does not count."""
        self._go_through(round_, timeout)
        total, codec = round_.server.total, round_.codec
        assert total is not None
        survivors, members = total.survivors, round_.server.members.plan
        if isinstance(codec, NoisedCodec):  # shares are of those who are on the roster
            codec = NoisedCodec(codec.plan, round_.model, members)
        try:
            found = codec.decode(total.tokens, len(survivors))
        except CorruptStream as err:  # somebody has sent other tokens than those of a step
            raise AbortedRound(str(err)) from err
        if not found.weight:
            raise AbortedRound("no client has any weight")
        mean = found.weight / len(survivors)
        self._known.learn(found, len(survivors))
        self._lost = []
        note = ReplyNote(tensors=len(round_.model), lossy=len(codec.sent))
        for node in survivors:
            parts = {round_.key: round_.updates[node].weighted(mean)}
            self._statistics.received(CountedReply(node, note, True, mean, parts))
        some = next(iter(round_.opened.values())).message
        names = compat.records_in(some.content, ArrayRecord)[round_.key]
        model = round_.model
        record = to_record({n: moved(model[n], found.step[n]) for n in names if n in model})
        return [
            with_mean(round_.answered[node], round_.key, record, self._weighted_by, mean)
            if node in survivors
            else error_of(asked.message, DROPPED_OUT)
            for node, asked in round_.opened.items()
        ]

    def _go_through(self, round_: _Round, timeout: float | None) -> None:
        """Carry the messages of a round; raise `AbortedRound` if too few clients are left."""
        asked = round_.server.open(round_.opened)
        while asked:
            if round_.server.stage is Stage.INPUTS:
                self._carry_with_model(round_, asked, timeout)
            else:
                self._carry(round_, asked, timeout)
            asked = round_.server.advance()

    def _carry(self, round_: _Round, asked: Mapping[int, bytes], timeout: float | None) -> None:
        """Send messages without a model, and give the server what comes back."""
        limit = STAGE_SECONDS if timeout is None else min(STAGE_SECONDS, timeout)
        out = []
        for node, request in asked.items():
            opened = round_.opened[node].message.metadata
            content = RecordDict({SECURE: ConfigRecord({REQUEST: request})})
            out.append(Message(content, node, opened.message_type, group_id=opened.group_id))
        self._statistics.sent(0, sum(map(len, asked.values())))
        silent = set(asked)
        for reply in self._grid.inner.send_and_receive(out, timeout=limit):
            silent.discard(node := reply.metadata.src_node_id)
            if reply.has_error():
                self._fail(node, reason_of(reply))
            elif err := refused(round_.server, reply):
                self._fail(node, reason(err), kind_of(err))
        for node in silent:
            self._fail(node, NO_REPLY)

    def _carry_with_model(
        self, round_: _Round, asked: Mapping[int, bytes], timeout: float | None
    ) -> None:
        """Send the model, and have the server add up the tokens that come back."""
        key, plan, going = round_.key, round_.codec.plan, []
        for node in sorted(asked):
            request = round_.opened[node]
            says: dict[str, Any] = {REQUEST: asked[node], WEIGHTED_BY: self._weighted_by}
            says[PLAN] = msgspec.msgpack.encode(plan)
            request.message.content[SECURE] = ConfigRecord(says)
            going.append(request)
        # Tokens are relative to the clients' reference model.
        reference = going[0].models[key].reference.arrays
        round_.server.about = about(plan, dict(sorted(reference.items())))
        for reply in self._grid.outcomes(going, timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():  # which the Grid has counted
                continue
            if err := refused(round_.server, reply, key):
                if compat.records_in(reply.content, ArrayRecord):  # the Grid has counted a reply
                    why = RefusedReply(kind_of(err), f"{DROPPED_OUT}: {reason(err)}")
                    self._grid.withdraw([node], why)
                else:
                    self._fail(node, reason(err), kind_of(err))
                continue
            round_.updates[node] = masked_update(reply, round_.model)
            content = {name: r for name, r in reply.content.items() if name != SECURE}
            reply.content = RecordDict(content)
            round_.answered[node] = reply

    def _fail(self, node: int, why: str, kind: Refusal = Refusal.FAILED) -> None:
        """Count that a node has dropped out."""
        self._grid.fail(node, f"{DROPPED_OUT}: {why}", kind)


def _most_suspect(suspects: Counter[int]) -> str:
    """Return for people who had a part in most shares that are garbage."""
    largest = max(suspects.values())
    names = sorted(node for node, count in suspects.items() if count == largest)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "node " + ", ".join(map(str, names[:_NAMED])) + more


def _key_of(message: Message) -> str:
    """Return the key of the only model in a message."""
    records = compat.records_in(message.content, ArrayRecord)
    keys = [key for key, record in records.items() if layout_of(record).shapes]
    if len(keys) != 1:
        raise ConfigError(f"a secure sum is of one ArrayRecord; the message has {len(keys)}")
    return keys[0]


def masked_update(reply: Message, model: Mapping[str, NDArray]) -> Update:
    """Return what is counted of a reply that cannot be read, to a message with this model."""
    answer, raw = answer_in(reply), sum(x.nbytes for x in model.values())
    digest = hashlib.sha256(answer).digest()
    return Update(ArrayRecord(), {}, None, {}, {}, raw, len(answer), digest)


def refused(server: SecureServer, reply: Message, key: str | None = None) -> FedszError | None:
    """Give a server what a reply has for it; return why it was not taken, if it was not.

    Args:
        server: of the round.
        reply: without an error.
        key: of the model that it replies to; None if it was sent none.
    """
    try:
        with refusing_failures():
            if key is not None:
                check_beside(reply, key)
            server.receive(reply.metadata.src_node_id, answer_in(reply))
    except FedszError as err:
        return err
    return None


def answer_in(reply: Message) -> bytes:
    """Return what a reply has for `SecureServer`; raise `CorruptStream` if it has nothing."""
    record: Any = reply.content.get(SECURE, {})
    if not isinstance(answer := record.get(ANSWER), bytes):
        raise CorruptStream("no answer in a secure sum: is FedSZMod() there?")
    return answer


def check_beside(reply: Message, key: str) -> None:
    """Raise `CorruptStream` unless masked tokens have metrics, and nothing in a model's place."""
    models = compat.records_in(reply.content, ArrayRecord)
    metrics = compat.records_in(reply.content, MetricRecord)
    if models or len(metrics) != 1 or key in metrics:
        what = f"{len(models)} ArrayRecords and {len(metrics)} MetricRecords, {sorted(metrics)}"
        raise CorruptStream(f"{what}, beside masked tokens; a reply has 0 and 1, not {key!r}")


def with_mean(
    reply: Message, key: str, record: ArrayRecord, weighted_by: str, weight: float
) -> Message:
    """Return a survivor's reply with the mean and its weight in place of what it has sent."""
    content: dict[str, Any] = dict(reply.content)
    ((metrics, said),) = compat.records_in(reply.content, MetricRecord).items()
    content[metrics] = MetricRecord({**said, weighted_by: max(round(weight), 1)})
    reply.content = RecordDict({**content, key: compat.make_record(dict(record))})
    return reply


def error_of(message: Message, reason: str) -> Message:
    """Return an error reply to a message."""
    code = compat.ErrorCode.MOD_FAILED_PRECONDITION
    return compat.error_reply(message.metadata, code, reason)
