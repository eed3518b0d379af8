"""The server side: a Grid that compresses what any strategy sends and receives."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final, Self

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsz import flower_compat as compat
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec
from fedsz.control.policy import Controller, asked_for
from fedsz.control.record import Decision, RoundRecord, Traffic
from fedsz.control.rule import DEFAULT_TOLERANCE, SENSITIVITY, SPREAD, STEP
from fedsz.core.settings import DEFAULT
from fedsz.errors import ConfigError, CorruptStream, RefusedReply
from fedsz.flower.admission import Admission
from fedsz.flower.admission_rules import FLEET, AdmissionRules
from fedsz.flower.admitted_record import checked
from fedsz.flower.deadline import Deadlines
from fedsz.flower.differential_privacy import under_privacy
from fedsz.flower.exchange import Exchange
from fedsz.flower.packing import Packed, Packer
from fedsz.flower.pushes import is_round, is_training, round_of
from fedsz.flower.quorum import Quorum
from fedsz.flower.refusal import Refusal
from fedsz.flower.round_book import RoundBook
from fedsz.flower.secure_rounds import SecureRounds
from fedsz.flower.secure_sum import SecureSum
from fedsz.flower.server_step import spread_of
from fedsz.flower.shifts import Shifts
from fedsz.flower.wrapped_grid import WrappedGrid, wraps
from fedsz.transport.replies import Replies, takes_replies_as_they_come

# Flower shows what is logged below its own logger, also from inside of an app.
logger = logging.getLogger("flwr.fedsz")

_LEARNED: Final = "learned"  # the record of a state that is of admission


class FedSZGrid(WrappedGrid):
    """A Grid for any strategy whose clients run `FedSZMod`.

    What goes out is packed once for all, with the settings by which clients compress their replies;
    what comes back is decoded before the strategy sees it. Each round is logged with what it saved.
    An error bound that is named holds exactly; a warning says if it loses most of an update.

    A reply that does not decode, or that has other names or shapes than the model last sent,
    becomes an error reply: counted, logged with its reason, left out by the strategy. Arrays go out
    and come in in the dtypes of the first model sent, whatever a strategy made of them since.
    Replies to messages that do not train, and models below 1 kB, are exact.

    Where messages name their round, as those of Flower's strategies do, the first round after
    others begins a new run: nothing of the one before is used.

    Args:
        inner: the Grid that carries the messages.
        error_bound: as in `fedsz.compress`; so are codec, lossless, threshold and rule.
        update: what clients send. "weights"; "delta", the difference from the model in the message,
            within the same bound on the weights; "delta+ef", the default, with error feedback. Or a
            chain such as "feedback>topk", see `fedsz.methods`. Other models are sent as weights.
        decay: what a client's residual is multiplied with for each round that it waits, in [0, 1].
        downlink: how the model is sent: "exact", or as what it differs by from the one that a
            client holds, within a bound such as "std:1", or by "difference>" and a chain.
        downlink_feedback: whether what one broadcast leaves out goes into the next.
        shared_initial: whether clients may hold the first model; see `FedSZMod`.
        shifts: keeps what an update by "difference>" has taught of each client, within limits.
        policy: who decides all of this before each round: "auto", the default; "fixed", that where
            a bound, threshold, rule, update or downlink is named; or another of `fedsz.control`.
        tolerance: points of accuracy that compression may cost, for policies that ask.
        rounds: how many there will be, for policies that ask; a Grid cannot see that.
        same_model: whether replies must have the names and shapes of the model that was sent.
        rules: what else replies must keep to before they count. None: nothing but what makes them
            an update, so an app runs as it does without fedsz. `AdmissionRules`. Or "fleet": their
            defaults, and those of deadlines and min_replies, for clients that may fail or lie.
        deadlines: how long a `GrpcGrid` waits for slow clients; with "fleet" see `Deadlines`, else
            as long as the app says.
        min_replies: usable replies that a round of training needs, with "fleet" 1. With fewer, or
            without weight, all become error replies, at which Flower's strategies keep the model.
            Three such rounds raise `fedsz.errors.TooFewReplies`. `StreamingFedAvg` has its own.
        on_round: called with the record of each round; the last one ends with `end_round()`.
        secure: adds up updates without reading any, and without ``rules``; see `SecureSum`.

    Raises:
        ConfigError: one of these is out of range or does not exist.
        CodecUnavailable: a codec's library is not installed here.

    Examples:
        >>> from fedsz.flower import FedSZGrid, LocalGrid, make_client_app
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), [{}]), error_bound="std:1")
        >>> grid.take_traffic().replies  # strategy.start(grid=grid, ...) has not been called
        0
    """

    _exchange: Exchange

    def __init__(
        self,
        inner: Grid,
        error_bound: ErrorBound | float | str | None = None,
        *,
        codec: str | Codec = DEFAULT.codec,
        lossless: str | Codec = DEFAULT.lossless,
        threshold: int | None = None,
        rule: str | None = None,
        update: str | None = None,
        decay: float = DEFAULT.decay,
        downlink: ErrorBound | float | str | None = None,
        downlink_feedback: bool = True,
        shared_initial: bool = False,
        shifts: Shifts | None = None,
        policy: str | None = None,
        tolerance: float = DEFAULT_TOLERANCE,
        rounds: int | None = None,
        same_model: bool = True,
        rules: AdmissionRules | str | None = None,
        deadlines: Deadlines | None = None,
        min_replies: int | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        secure: SecureSum | None = None,
    ) -> None:
        if wraps(inner, FedSZGrid):
            raise ConfigError("this Grid is a FedSZGrid already: wrap it once")
        named = {"error_bound": error_bound, "threshold": threshold, "rule": rule}
        named |= {"update": update, "downlink": downlink}
        policy, config = asked_for(policy, named, decay=decay, codec=codec, lossless=lossless)
        new = partial(Controller, policy, config, tolerance=tolerance, rounds=rounds)
        self._new_controller: Callable[[], Controller] | None = new
        controller = new()
        if SENSITIVITY in controller.needs:
            raise ConfigError(f"policy {policy!r} needs a held-out set: `fedsz server` has one")
        is_fleet, least = rules == FLEET, min_replies or 1
        self._quorum = Quorum(least) if is_fleet or min_replies is not None else None
        deadlines = deadlines or (Deadlines(quorum=least) if is_fleet else Deadlines(math.inf))
        rules = replace(AdmissionRules.of(rules), same_model=same_model)
        book = RoundBook(inner, controller, tells=True, on_round=on_round)
        packing = {"feedback": downlink_feedback, "shared_initial": shared_initial}
        self._set_up(inner, book, rules, deadlines, secure=secure, shifts=shifts, **packing)

    @classmethod
    def controlled(
        cls,
        inner: Grid,
        controller: Controller,
        rules: AdmissionRules,
        deadlines: Deadlines,
        seed: int | None = None,
        secure: SecureSum | None = None,
    ) -> Self:
        """Return a Grid for a server that ends its rounds itself; see `end_round`.

        Args:
            inner: the Grid that carries the messages.
            controller: decides how each round is sent, from what `end_round` is told.
            rules: what replies must keep to.
            deadlines: how long they are awaited.
            seed: what methods draw from; None for another in each run.
            secure: adds up updates without reading any.
        """
        grid = cls.__new__(cls)
        grid._quorum = grid._new_controller = None
        book = RoundBook(inner, controller, tells=False)
        grid._set_up(inner, book, rules, deadlines, secure, shared_initial=True, seed=seed)
        return grid

    def state(self) -> RecordDict:
        """Return what the Grid remembers of the rounds so far, for `restore` in another process."""
        sums = self._sums.state() if self._sums else {}
        return RecordDict({**self._packer.state(), _LEARNED: self._admission.state(), **sums})

    def restore(self, state: RecordDict) -> None:
        """Go on after the round at whose end `state` was called, which `end_round` has ended.

        Raises:
            FedszError: ``state`` is no Grid's.
        """
        records = dict(state)
        try:
            self._packer.restore(records, self._book.decision.config)
            self._admission.restore(records[_LEARNED])
            if self._sums:
                self._sums.restore(records)
        except (KeyError, TypeError, ValueError) as err:
            raise CorruptStream(f"these records are no Grid's: {type(err).__name__} {err}") from err
        self._book.ended = True

    def _set_up(
        self,
        inner: Grid,
        book: RoundBook,
        rules: AdmissionRules,
        deadlines: Deadlines,
        secure: SecureSum | None,
        **packing: Any,
    ) -> None:
        WrappedGrid.__init__(self, inner)
        about = inner, lambda: self._exchange, book, rules.weighted_by, packing.get("seed")
        self._new_sums = partial(SecureRounds, secure, *about) if secure else None
        self.is_secure, self._lock = secure is not None, threading.RLock()
        self._book, self._rules, self._deadlines = book, rules, deadlines
        if not rules.same_model:
            packing["shifts"] = Shifts(most_clients=0)  # no step that they move could be measured
        packing["alike"] = self.is_secure or not rules.same_model
        self._packing = {**packing, "trends": secure is not None and secure.sparse}
        self._begin_run()

    def _begin_run(self) -> None:
        """Know nothing of clients, as in a new process: neither models, residuals nor norms."""
        # By the type of training messages: the last round as they say, and who was asked in it.
        self._numbers: dict[str, tuple[int, set[int]]] = {}
        self._sums = self._new_sums() if self._new_sums else None
        self._admission = Admission(self._rules)
        self._packer = Packer(**self._packing)
        self._exchange = Exchange(
            self.inner, self._packer, self._admission, self._book, self._deadlines, self._lock
        )

    def steer(self, decision: Decision) -> None:
        """Compress otherwise from the next message on.

        Raises:
            CodecUnavailable: a codec's library is not installed here.
        """
        self._book.steer(decision)

    def observe(self, *, accuracy: float | None = None, loss: float | None = None) -> None:
        """Tell the policy how good the model is that goes out next, where the app measures that.

        Without it the policy goes by the metrics in clients' replies to evaluate messages.

        Args:
            accuracy: on held-out data, in [0, 1].
            loss: mean cross-entropy there, in nats.
        """
        self._book.measured = accuracy, loss

    def end_round(self, **measured: Any) -> RoundRecord:
        """Return the record of the round that is over, and decide how the next one is sent.

        An app need not call this: otherwise a round ends when the next one's model goes out, with
        what `observe` was told.

        Args:
            measured: fields of `fedsz.control.record.RoundRecord` that no Grid can know: accuracy,
                loss, spread, apart, sensitivity, train_seconds and test_seconds.
        """
        self._packer.end_round(self._admission.counted())
        record = self._book.end(measured)
        self._admission.end_round()
        return record

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pack and push; see Flower's `Grid`.

        Rounds of `StreamedRequest`s may overlap: a reply may come when later models are out. Each
        message has an id: an error reply is pulled by that of one that the inner Grid did not take.
        """
        pushed = list(messages)
        if self._sums_up(pushed):
            raise ConfigError("a secure sum waits for its clients: use send_and_receive")
        streamed = takes_replies_as_they_come(pushed)
        self._note_run(pushed)
        packed, benched = self._packed(pushed, overlaps=streamed)
        left_out = {reply.metadata.src_node_id: reply for reply in benched}
        ids = iter(self._exchange.push(packed, streamed=streamed))
        return [
            self._exchange.not_sent(left_out[node]) if node in left_out else next(ids)
            for node in (message.metadata.dst_node_id for message in pushed)
        ]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Pull and unpack; see Flower's `Grid`.

        Replies to `StreamedRequest`s come one at a time, still sealed.
        """
        return self._exchange.pull(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Sequence[Message]:
        """Return the replies to ``messages``, with plain arrays.

        Those to `StreamedRequest`s keep theirs sealed, and come while they are read.

        Raises:
            TooFewReplies: three rounds in a row did not count.
        """
        pushed = list(messages)
        if takes_replies_as_they_come(pushed) and not self._sums_up(pushed):
            return Replies(self.stream_replies(pushed, timeout=timeout), checked)
        quorum, trains = self._quorum if is_round(pushed) else None, is_training(pushed)
        if quorum and trains:
            quorum.begin()
        replies = list(self.stream_replies(pushed, timeout=timeout))
        return self._of_quorum(quorum, replies, trains=trains) if quorum else replies

    def _of_quorum(self, quorum: Quorum, replies: list[Message], *, trains: bool) -> list[Message]:
        """Return the replies of a round, or errors in their place if it does not count."""
        usable = self._admission.usable(replies)
        if quorum.reached(usable) if trains else usable:
            return replies
        why = quorum.why if trains else "no reply has any weight"
        refused = RefusedReply(Refusal.QUORUM, f"the round does not count: {why}")
        self._admission.refuse(replies, refused)
        if trains:
            quorum.require()
        return [m if m.has_error() else compat.error_in_place_of(m, str(refused)) for m in replies]

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield the replies of `send_and_receive`, and keep none."""
        pushed = list(messages)
        self._note_run(pushed)
        if self._sums and self._sums_up(pushed):
            return iter(self._sums.replies(pushed, self._packed, timeout))
        sealed = takes_replies_as_they_come(pushed)
        packed, benched = self._packed(pushed)
        # Nothing here holds on to the messages: the model would stay until the last reply.
        return chain(benched, self._exchange.stream(packed, timeout, sealed=sealed))

    def _sums_up(self, pushed: list[Message]) -> bool:
        return self._sums is not None and self._sums.takes(pushed)

    def take_traffic(self) -> Traffic:
        """Return what was counted since the last call, or since the start.

        Sums are of all; lists have the last 10,000 updates and failures.
        """
        return self._book.take_traffic()

    def _packed(
        self, pushed: list[Message], *, overlaps: bool = False
    ) -> tuple[list[Packed], list[Message]]:
        """Return ``pushed`` with their arrays sealed, and error replies to those not to be sent."""
        if not pushed:
            return [], []
        with self._lock:  # some servers push from a thread for each client
            if self._packer.begins_round(pushed):
                self._begin_round(pushed)
            decision, trains = self._book.decision, is_training(pushed)
            config, base = decision.config, self._book.controller.base
            codecs = {int(node): codec for node, codec in decision.codecs.items()}
            benched = [reply for message in pushed if (reply := self._reply_of_benched(message))]
            left_out = {reply.metadata.src_node_id for reply in benched}
            asked = [m for m in pushed if m.metadata.dst_node_id not in left_out]
            if trains:
                self._packer.counted(self._admission.asked(m.metadata.dst_node_id for m in asked))
                config = under_privacy(config, base, pushed[0].content)
            packed = self._packer.pack(asked, config, codecs, overlaps) if asked else []
            raw_bytes = sum(p.content.raw_bytes for p in packed)
            self._book.sent(raw_bytes, sum(p.sent_bytes for p in packed))
            if raw_bytes and trains:
                self._book.note_training()
        return packed, benched

    def _reply_of_benched(self, message: Message) -> Message | None:
        """Return an error reply to a message whose receiver is not asked in this round."""
        node, trains = message.metadata.dst_node_id, is_training([message])
        why = self._admission.bench.why(node) if trains else ""
        if not why:
            return None
        self._exchange.fail(node, f"{Refusal.BENCHED}: {why}", Refusal.BENCHED, trains=trains)
        return compat.error_reply(message.metadata, compat.ErrorCode.MOD_FAILED_PRECONDITION, why)

    def _note_run(self, pushed: list[Message]) -> None:
        """Begin a new run where a round is of an earlier number than the last, or of it again."""
        if self._new_controller is None or (number := round_of(pushed)) is None:
            return
        kind, nodes = pushed[0].metadata.message_type, {m.metadata.dst_node_id for m in pushed}
        with self._lock:
            last, asked = self._numbers.get(kind, (-1, set[int]()))
            again = number == last and not nodes.isdisjoint(asked)
            if number < last or (again and not self._packer.goes_on(pushed)):
                logger.info("fedsz: round %d after round %d: a new run begins", number, last)
                if not self._book.ended:
                    self.end_round()
                self._book.begin_run(self._new_controller())
                self._begin_run()
            self._numbers[kind] = number, nodes | (asked if number == last else set())

    def _begin_round(self, pushed: list[Message]) -> None:
        """End the round before, if its app has not done so, and have this one decided."""
        self._book.tell()  # of a round whose replies were taken one by one
        if not is_training(pushed):
            return
        if self._book.is_over:
            of = self._book.controller
            spread = spread_of(self._packer.steps(pushed), of.base) if SPREAD in of.needs else {}
            self.end_round(spread=spread, apart=self._admission.mean.apart(pushed))
        self._admission.mean.begin(pushed if STEP in self._book.controller.needs else [])
        self._book.ended = False
