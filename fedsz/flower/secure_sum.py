"""The server's part in secure sums: the stages of a round, and the replies that strategies get.

A strategy gets the mean of all survivors from each of them, with the same weight. So whatever
weighted average it takes is that mean.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import xxhash
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedsz import flower_compat as compat
from fedsz.arrays import Layout, NDArray
from fedsz.errors import AbortedRound, ConfigError, CorruptStream, FedszError
from fedsz.flower.admission import Admitted
from fedsz.flower.differential_privacy import clipping_norm
from fedsz.flower.exchange import NO_REPLY, Exchange
from fedsz.flower.packing import Packed
from fedsz.flower.pushes import round_of
from fedsz.flower.records import layout_of, to_record, views_of
from fedsz.flower.refusal import Refusal, kind_of, reason_of, refusing_failures, told
from fedsz.flower.round_book import RoundBook
from fedsz.flower.secure_member import ANSWER, PLAN, REQUEST, SECURE, STAGE, WEIGHTED_BY
from fedsz.secagg.graph import Assumptions
from fedsz.secagg.identity import Verifier
from fedsz.secagg.scales import scales_of
from fedsz.secagg.server import SecureServer, Stage
from fedsz.secagg.token_plan import TokenPlan, layout_digest
from fedsz.secagg.tokens import TokenCodec, moved
from fedsz.update.reply_report import ReplyReport

logger = logging.getLogger("flwr.fedsz")

DROPPED_OUT: Final = "dropped out of a secure sum"

_WEIGHTS: Final = 2  # of a client's weight at most, over the mean of the round before


@dataclass(frozen=True)
class SecureSum:
    """How a `FedSZGrid` adds up updates that it cannot read.

    Attributes:
        bits: of the ring, and so of each parameter on the uplink.
        assumed: what a round withstands: who colludes, who drops out, whether keys are signed.
        verifier: checks signatures, if keys are signed.
        share: of the parameters that each round sends, in turn; clients feed the others back.
        most_examples: from which on a client weighs no more, in the first round. Later it is twice
            the mean weight of the round before.
        stage_timeout: seconds that clients have for a message without a model.

    Examples:
        >>> from fedsz.flower import FedSZGrid, LocalGrid, SecureSum, make_client_app
        >>> nodes = [{"partition-id": i, "num-partitions": 8} for i in range(8)]
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), nodes), secure=SecureSum(bits=16))
    """

    bits: int = 16
    assumed: Assumptions = field(default_factory=Assumptions)
    verifier: Verifier | None = None
    share: float = 1.0
    most_examples: int = 1024
    stage_timeout: float = 300.0


# Packs messages, and returns error replies to those that are not to be sent.
Pack = Callable[[list[Message]], tuple[list[Packed], list[Message]]]


@dataclass
class MaskedUpdate:
    """What is counted of a reply that nobody has read; see `ReceivedUpdate`."""

    raw_bytes: int
    sent_bytes: int
    digest: bytes
    seconds: float = 0.0
    scale: float = 1.0
    staleness: int = 0
    raised: frozenset[str] = frozenset()
    refused: FedszError | None = None

    def forget(self) -> None:
        """Keep nothing but the numbers, which is all there is."""


class SecureRounds:
    """The secure sums of a run.

    Args:
        options: of each.
        grid: carries messages without a model.
        exchange: returns that of the run, which carries the others, and is told of dropouts.
        book: counts what is sent.
        weighted_by: the metric that is the weight of a reply.

    Raises:
        ConfigError: the options do not fit together.
    """

    def __init__(
        self,
        options: SecureSum,
        grid: Grid,
        exchange: Callable[[], Exchange],
        book: RoundBook,
        weighted_by: str,
    ) -> None:
        SecureServer(1, options.bits, options.assumed, options.verifier)
        if not 0 < options.share <= 1:
            raise ConfigError(f"share must lie in (0, 1], got {options.share}")
        self._options, self._grid, self._weighted_by = options, grid, weighted_by
        self._exchange, self._book = exchange, book
        self._last = -1  # round, as messages number them
        self._begin_run()

    def _begin_run(self) -> None:
        self._scales: dict[str, float] = {}
        self._cap, self._done = self._options.most_examples, 0
        self._seed = secrets.randbits(62)
        self._layout: Layout | None = None  # of the first model

    def replies(
        self,
        pushed: Sequence[Message],
        pack: Pack,
        timeout: float | None,
    ) -> list[Message]:
        """Return a reply for each of a round's messages: the mean, or an error.

        Args:
            pushed: the messages, with the model.
            pack: packs those that have it.
            timeout: in seconds, of each stage; those without the model may have less.

        Raises:
            ConfigError: the messages hold other than one model or ask for clipping, the ring is too
                small for them, or nothing feeds back what a share leaves out.
        """
        messages = {message.metadata.dst_node_id: message for message in pushed}
        answered: dict[int, Message] = {}
        number = round_of(pushed)
        if number is not None and number <= self._last:  # a new run
            self._begin_run()
        self._last = self._last if number is None else number
        try:
            return self._summed(messages, pack, timeout, answered)
        except AbortedRound as err:
            why = f"the round does not count: {err}"
            for node in answered:
                self._fail(node, why, Refusal.QUORUM)
                self._exchange().withdraw(node)
            return [_error(message, why) for message in messages.values()]

    def _summed(
        self,
        messages: Mapping[int, Message],
        pack: Pack,
        timeout: float | None,
        answered: dict[int, Message],
    ) -> list[Message]:
        first = next(iter(messages.values()))
        if clipping_norm(first.content) is not None:
            raise ConfigError("the updates of a secure sum cannot be clipped for noise")
        key, plain = self._model_of(first)
        layout = Layout.of(plain)
        plan = TokenPlan(
            layout=layout_digest(layout),
            number=self._done,
            clients=len(messages),
            bits=self._options.bits,
            share=self._options.share,
            seed=self._seed,
            cap=self._cap,
            scales=scales_of(plain, self._scales),
        )
        codec = TokenCodec(plan, layout)
        assumed, verifier = self._options.assumed, self._options.verifier
        server = SecureServer(codec.count, plan.bits, assumed, verifier)
        asked, model = server.open(messages), plain
        updates: dict[int, Any] = {}  # `MaskedUpdate`s
        while server.stage is not Stage.OVER:
            if server.stage is Stage.INPUTS:
                out = [self._with_model(messages[i], asked[i], plan) for i in sorted(asked)]
                packed, benched = pack(out)
                models = packed[0].content.models if packed else {}
                self._require_feedback(packed)
                model = models[key].arrays if key in models else plain
                server.about = plan.about(dict(sorted(model.items())))
                coming = self._exchange().stream(packed, timeout, sealed=False, tells=False)
                for node, reply in self._taken(server, chain(benched, coming), key):
                    updates[node] = self._counted(reply, plain)
                    answered[node] = _without_tokens(reply)  # or all of them would be held
            else:
                heard = list(self._ask(server.stage, asked, messages, timeout))
                list(self._taken(server, heard))
                for node in asked.keys() - {reply.metadata.src_node_id for reply in heard}:
                    self._fail(node, NO_REPLY)
            asked = server.advance()
        assert server.total is not None
        survivors = server.total.survivors
        for client in server.total.liars:
            logger.warning("fedsz: a share of a secret was wrong that node %d has sent", client)
        try:
            found = codec.decode(server.total.tokens, survivors)
        except CorruptStream as err:  # somebody has sent other tokens than those of a step
            raise AbortedRound(str(err)) from err
        if not found.weight:
            raise AbortedRound("no client has any weight")
        mean = found.weight / len(survivors)
        cap, self._cap = self._cap, max(math.ceil(_WEIGHTS * mean), 1)
        self._scales = {name: x * cap / self._cap for name, x in found.scales.items()}
        self._done += 1
        report = ReplyReport(tensors=len(plain), lossy=len(codec.sent))
        for node in survivors:
            admitted = Admitted(node, {key: updates[node]}, report, weight=mean)
            self._book.received(admitted)
        self._book.tell()
        names = compat.records_in(first.content, ArrayRecord)[key]
        record = to_record({n: moved(model[n], found.step[n]) for n in names if n in plain})
        return [
            self._with_mean(answered[node], key, record, mean)
            if node in survivors
            else _error(message, DROPPED_OUT)
            for node, message in messages.items()
        ]

    def _ask(
        self,
        stage: Stage,
        asked: Mapping[int, bytes],
        messages: Mapping[int, Message],
        timeout: float | None,
    ) -> Iterable[Message]:
        """Send messages without a model, and return the replies."""
        limit = self._options.stage_timeout
        limit = limit if timeout is None else min(limit, timeout)
        out = []
        for node, request in asked.items():
            asks: dict[str, Any] = {STAGE: stage.name, REQUEST: request}
            about = messages[node].metadata
            content = RecordDict({SECURE: ConfigRecord(asks)})
            out.append(Message(content, node, about.message_type, group_id=about.group_id))
        self._book.sent(0, sum(map(len, asked.values())))
        return self._grid.send_and_receive(out, timeout=limit)

    def _with_model(self, message: Message, request: bytes, plan: TokenPlan) -> Message:
        asks: dict[str, Any] = {STAGE: Stage.INPUTS.name, REQUEST: request, PLAN: plan.encode()}
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
                        answer = _answer(reply)
                        if key is not None:
                            _check_beside(reply, key)
                        server.receive(node, answer)
                    yield node, reply
                elif key is None:
                    self._fail(node, reason_of(reply))
            except FedszError as err:
                self._fail(node, told(err), kind_of(err))
                if key is not None:
                    self._exchange().withdraw(node)

    def _require_feedback(self, packed: Sequence[Packed]) -> None:
        told = [one.content.instructions.config for one in packed]
        if self._options.share < 1 and not all(config.feeds_back for config in told):
            raise ConfigError("a secure sum of a share needs an update with feedback: delta+ef")

    def _fail(self, node: int, reason: str, kind: Refusal = Refusal.FAILED) -> None:
        self._exchange().fail(node, f"{DROPPED_OUT}: {reason}", kind, trains=True)

    def _model_of(self, message: Message) -> tuple[str, dict[str, NDArray]]:
        """Return the key and the arrays of the only model, by their names in order.

        They are in the dtypes of the first model, as clients get them.
        """
        records = compat.records_in(message.content, ArrayRecord)
        models = {key: record for key, record in records.items() if layout_of(record).shapes}
        if len(models) != 1:
            raise ConfigError(f"a secure sum is of one ArrayRecord; the message has {len(models)}")
        ((key, record),) = models.items()
        layout = layout_of(record)
        if self._layout is None or self._layout.shapes != layout.shapes:
            self._layout = layout
        return key, dict(sorted(views_of(record, self._layout).items()))

    def _counted(self, reply: Message, model: Mapping[str, NDArray]) -> MaskedUpdate:
        answer = _answer(reply)
        raw = sum(x.nbytes for x in model.values())
        return MaskedUpdate(raw, len(answer), xxhash.xxh3_128_digest(answer))

    def _with_mean(self, reply: Message, key: str, record: ArrayRecord, examples: float) -> Message:
        """Return a survivor's reply with the mean in place of what it has sent."""
        content: dict[str, Any] = dict(reply.content)
        ((metrics, said),) = compat.records_in(reply.content, MetricRecord).items()
        weight = {self._weighted_by: max(round(examples), 1)}
        content[metrics] = MetricRecord({**said, **weight})
        reply.content = RecordDict({**content, key: compat.make_record(dict(record))})
        return reply


def _answer(reply: Message) -> bytes:
    record: Any = reply.content.get(SECURE, {})
    if not isinstance(answer := record.get(ANSWER), bytes):
        raise CorruptStream("no answer in a secure sum: is FedSZMod() there?")
    return answer


def _check_beside(reply: Message, key: str) -> None:
    """Raise `CorruptStream` unless masked tokens have metrics, and nothing in a model's place."""
    models = compat.records_in(reply.content, ArrayRecord)
    metrics = compat.records_in(reply.content, MetricRecord)
    if models or len(metrics) != 1 or key in metrics:
        what = f"{len(models)} ArrayRecords and {len(metrics)} MetricRecords, {sorted(metrics)}"
        raise CorruptStream(f"{what}, beside masked tokens; a reply has 0 and 1, not {key!r}")


def _without_tokens(reply: Message) -> Message:
    reply.content = RecordDict({key: r for key, r in reply.content.items() if key != SECURE})
    return reply


def _error(message: Message, reason: str) -> Message:
    code = compat.ErrorCode.MOD_FAILED_PRECONDITION
    return compat.error_reply(message.metadata, code, reason)
