"""The server's part in secure sums, from round to round: plans, and the mean from each sum."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedsz import flower_compat as compat
from fedsz.arrays import DTYPE_NAMES, Layout, NDArray
from fedsz.core.protocol import ReplyNote
from fedsz.errors import AbortedRound, ConfigError, CorruptStream
from fedsz.flower.differential_privacy import clipping_norm
from fedsz.flower.local_noise import LocalNoise
from fedsz.flower.masked_reply import error_of, with_mean
from fedsz.flower.records import is_round, is_training, layout_of, round_of, to_record, views_of
from fedsz.flower.refusal import Refusal
from fedsz.flower.round_statistics import CountedReply, RoundStatistics
from fedsz.flower.secure_stages import DROPPED_OUT, SecureStages, SumReplies
from fedsz.flower.secure_sum import SecureSum
from fedsz.secagg.disputes import Disputes
from fedsz.secagg.graph import most_corrupt
from fedsz.secagg.noise import NoisedCodec, NoisedPlan
from fedsz.secagg.planner import Learned
from fedsz.secagg.server import SecureServer, planned
from fedsz.secagg.steps import moved
from fedsz.secagg.token_plan import layout_digest
from fedsz.secagg.tokens import TokenCodec
from fedsz.transport.replies import is_averaged

if TYPE_CHECKING:
    from fedsz.flower.grid import FedSZGrid  # which makes this one

logger = logging.getLogger("flwr.fedsz")

LEFT_OUT: Final = "left out of secure sums: it has lied about shares, or was in dispute with a liar"

_STATE: Final = "secure"  # the record of a state that is of secure sums
_TOLD: Final = 5  # disputes in a line of the log


class Known(Learned):
    """What the server knows from the rounds before, in types that JSON has.

    Attributes:
        last: round, as messages number them.
        layout: of the first model: by tensor, dtype and shape.
        left_out, pairs: see `Disputes`.
        asked: clients that were asked in the run. Without them, pairs say nothing.
    """

    last: int = -1
    layout: dict[str, tuple[str, tuple[int, ...]]] = msgspec.field(default_factory=dict)
    left_out: list[int] = msgspec.field(default_factory=list)
    pairs: list[tuple[int, int]] = msgspec.field(default_factory=list)
    asked: list[int] = msgspec.field(default_factory=list)


class SecureRounds:
    """The secure sums of a run.

    Args:
        options: of each.
        grid: carries the messages, and counts failures.
        statistics: counts replies, and what is sent without a model.
        weighted_by: the metric that is the weight of a reply.

    Raises:
        ConfigError: the options do not fit together.
    """

    def __init__(
        self, options: SecureSum, grid: FedSZGrid, statistics: RoundStatistics, weighted_by: str
    ) -> None:
        SecureServer(1, 1, options.assumed, options.verifier)
        self._options, self._statistics, self._weighted_by = options, statistics, weighted_by
        self._stages = SecureStages(options, grid, statistics, weighted_by)
        self._begin_run()

    def _begin_run(self) -> None:
        self._known = Known(self._options.most_examples)
        self._disputes, self._asked = Disputes(), set[int]()

    def state(self) -> dict[str, ConfigRecord]:
        """Return what another process goes on with, once a round is over. Nothing of it is secret.

        A round that is not over has no part in it: whoever goes on begins that round anew, with
        other keys, and whatever clients still remember of it is never asked for.
        """
        known = msgspec.structs.replace(
            self._known,
            left_out=sorted(self._disputes.left_out),
            pairs=sorted(self._disputes.pairs),
            asked=sorted(self._asked),
        )
        return {_STATE: ConfigRecord({"json": msgspec.json.encode(known).decode()})}

    def restore(self, records: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; anew from a state without secure sums.

        Raises:
            ValueError: ``records`` have another state.
        """
        self._begin_run()
        if _STATE in records:
            self._known = msgspec.json.decode(records[_STATE]["json"], type=Known)
            self._asked = set(self._known.asked)
            pairs = self._known.pairs if self._asked else []
            self._disputes = Disputes(self._known.left_out, pairs)

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
        if not self._options.strategy_averages and not is_averaged(pushed):
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
        """
        number = round_of(pushed)
        if number is not None and number < self._known.last:  # of a server that ends its rounds
            self._begin_run()
        self._known.last = self._known.last if number is None else number
        messages = {message.metadata.dst_node_id: message for message in pushed}
        self._asked |= messages.keys()
        banned = [messages.pop(node) for node in sorted(self._disputes.left_out & messages.keys())]
        for message in banned:
            self._stages.fail(message.metadata.dst_node_id, LEFT_OUT, Refusal.BACKOFF)
        left_out = [error_of(message, LEFT_OUT) for message in banned]
        if not messages:
            return left_out
        first = next(iter(messages.values()))
        if clipping_norm(first.content) is not None:
            raise ConfigError("the updates of a secure sum cannot be clipped for noise")
        replies = SumReplies(messages, *self._model_of(first))
        try:
            return left_out + self._summed(replies, timeout)
        except AbortedRound as err:
            why = f"the round does not count: {err}"
            for node in replies.answered:
                self._stages.fail(node, why, Refusal.QUORUM)
            return left_out + [error_of(message, why) for message in messages.values()]

    def _summed(self, replies: SumReplies, timeout: float | None) -> list[Message]:
        key, model, options = replies.key, replies.model, self._options
        first, clients = next(iter(replies.messages.values())), len(replies.messages)
        noise = LocalNoise.asked(first.content, {})
        codec: TokenCodec | NoisedCodec
        if noise and noise.summed:
            codec = self._noised(model, clients, noise)
        else:
            codec = self._known.codec(model, clients, options.bits)
        server = SecureServer(codec.count, options.bits, options.assumed, options.verifier)
        try:
            total = self._stages.total(server, codec.plan, replies, timeout)
        finally:
            self._judge(server)
        survivors = total.survivors
        try:
            if isinstance(codec, NoisedCodec):
                found = codec.decode(total.tokens, len(survivors), server.members.plan)
            else:
                found = codec.decode(total.tokens, len(survivors))
        except CorruptStream as err:  # somebody has sent other tokens than those of a step
            raise AbortedRound(str(err)) from err
        if not found.weight:
            raise AbortedRound("no client has any weight")
        mean = found.weight / len(survivors)
        self._known.learn(found, len(survivors))
        note = ReplyNote(tensors=len(model), lossy=len(codec.sent))
        for node in survivors:
            parts = {key: replies.updates[node].weighted(mean)}
            self._statistics.received(CountedReply(node, note, True, mean, parts))
        names = compat.records_in(first.content, ArrayRecord)[key]
        record = to_record({n: moved(model[n], found.step[n]) for n in names if n in model})
        return [
            with_mean(replies.answered[node], key, record, self._weighted_by, mean)
            if node in survivors
            else error_of(message, DROPPED_OUT)
            for node, message in replies.messages.items()
        ]

    def _judge(self, server: SecureServer) -> None:
        """Leave out of later rounds who has lied about shares in this one."""
        if not server.disputes and not server.liars:
            return
        counts = server.total is not None
        corrupt = most_corrupt(len(self._asked), self._options.assumed)
        named = self._disputes.judge(server.disputes, corrupt, counts=counts, liars=server.liars)
        wrong = [f"{owner} to {holder}" for owner, holder in sorted(server.disputes)]
        wrong += [f"{liar} for certain" for liar in sorted(server.liars)]
        told = ", ".join(wrong[:_TOLD]) + (" and so on" if len(wrong) > _TOLD else "")
        out = ", ".join(map(str, sorted(named))) or "nobody, for nobody can tell who has lied"
        what = "fedsz: wrong shares, of node %s; left out of the rounds that follow: %s"
        logger.warning(what, told, out)

    def _noised(self, model: Mapping[str, NDArray], clients: int, noise: LocalNoise) -> NoisedCodec:
        """Return what reads the sum of a round to which clients add noise.

        Raises:
            AbortedRound: no plan fits so many clients; or the ring is too small for them, and was
                not for others.
            ConfigError: the ring is too small for the first round.
        """
        layout, bits = Layout.of(model), self._options.bits
        plan = NoisedPlan(
            layout=layout_digest(layout), bits=bits, norm=noise.norm, multiplier=noise.multiplier
        )
        codec = NoisedCodec(plan, layout)
        if clients > 1:  # fewer make no sum, which `SecureServer` says
            members = planned(clients, self._options.assumed)
            try:
                share = codec.share(members)
            except ConfigError as err:
                if not self._known.done:
                    raise
                raise AbortedRound(str(err)) from err
            if not self._known.done:
                logger.info(
                    "fedsz: each of %d clients adds noise of %.4g steps; rounding makes it %.1f %%"
                    " larger than without a grid; nothing is fed back",
                    clients, share.sigma, 100 * (share.growth - 1),
                )  # fmt: skip
        return codec

    def _model_of(self, message: Message) -> tuple[str, dict[str, NDArray]]:
        """Return the key and the arrays of the only model, by their names in order.

        They are in the dtypes of the first model, as clients get them.
        """
        records = compat.records_in(message.content, ArrayRecord)
        models = {key: record for key, record in records.items() if layout_of(record).shapes}
        if len(models) != 1:
            raise ConfigError(f"a secure sum is of one ArrayRecord; the message has {len(models)}")
        ((key, record),) = models.items()
        layout, first = layout_of(record), _read(self._known.layout)
        if first.shapes != layout.shapes:
            self._known.layout, first = _written(layout), layout
        return key, dict(sorted(views_of(record, first).items()))


def _written(layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        name: (DTYPE_NAMES[layout.dtypes[name]], shape) for name, shape in layout.shapes.items()
    }


def _read(written: Mapping[str, tuple[str, tuple[int, ...]]]) -> Layout:
    dtypes = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    return Layout(
        {name: shape for name, (_, shape) in written.items()},
        {name: dtypes[dtype] for name, (dtype, _) in written.items()},
    )
