"""The server side: a Grid that compresses what any strategy sends and receives."""

from __future__ import annotations

import gc
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedsz import flower_compat as compat
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec
from fedsz.control.controller import Controller, asked_for
from fedsz.control.policy import DEFAULT_TOLERANCE, SENSITIVITY
from fedsz.control.record import RoundRecord, Traffic
from fedsz.core.settings import DEFAULT
from fedsz.errors import ConfigError, CorruptStream, FedszError, RefusedReply, TooFewReplies
from fedsz.flower.differential_privacy import is_private
from fedsz.flower.guard import SumMaker
from fedsz.flower.incoming import OpenedReply
from fedsz.flower.incoming import Replies as ReplyChecks
from fedsz.flower.liveness import Deadlines
from fedsz.flower.outgoing import OpenRequest, Sender
from fedsz.flower.polling import NOT_TAKEN
from fedsz.flower.records import bytes_of_arrays, is_round, is_training
from fedsz.flower.refusal import Refusal, kind_of, reason, reason_of
from fedsz.flower.requests import NO_REPLY, Outcome, Requests
from fedsz.flower.round_statistics import RoundStatistics
from fedsz.flower.rules import FLEET, NO_LIMIT, Rules
from fedsz.flower.wrapped_grid import WrappedGrid, wraps
from fedsz.transport.grid_base import takes_replies_as_they_come

# Flower shows what is logged below its own logger, also from inside of an app.
logger = logging.getLogger("flwr.fedsz")

_STATE: Final = "grid"  # the record of a state that has no arrays
_LARGE: Final = 1 << 26  # bytes of a model that is worth a collection of garbage


class FedSZGrid(WrappedGrid):
    """A Grid for any strategy whose clients run `FedSZMod`.

    A model is encoded once for all clients, with the settings by which they compress their replies.
    Each reply is decoded before the strategy sees it: its step is put onto the strategy's own
    model. Each round is logged with the bytes that it saved, and the share of the
    updates that arrived. An error bound that is named holds exactly.

    A reply that does not decode, or that has other names or shapes than the model, becomes an error
    reply: counted, logged with its reason, left out by the strategy. Where all clients reply a part
    of the model, that is no error. A round whose replies are all refused ends the run with the
    reason. Arrays go out and come in in the dtypes of the first model sent, whatever a strategy
    made of them since. Replies to messages that do not train, and models below 1 kB, are exact.

    A Grid is of one run: make one for each `start` of a strategy.

    Args:
        inner: the Grid that carries the messages.
        error_bound: as in `fedsz.compress`; so are codec, lossless, threshold and rule.
        update: what clients send. "weights"; "delta", the difference from the reference model,
            within the same bound on the weights; "delta+ef", the default, with error feedback. Or a
            pipeline such as "feedback>topk", see `fedsz.methods`.
        decay: what a client's residual is multiplied with for each round that it waits, in [0, 1].
        downlink: how the model is sent: "exact", or as the difference from the reference model that
            a client holds, within a bound such as "std:1".
        shared_initial: whether clients may have the first model; see `FedSZMod`.
        policy: who decides all of this before each round: "auto", the default; "fixed", that where
            a bound, threshold, rule, update or downlink is named; or another of `fedsz.control`. Or
            a Controller, of a server that ends each round itself by `end_round`.
        tolerance: points of accuracy that compression may cost, for policies that ask.
        rounds: how many there will be, for policies that ask; a Grid cannot see that.
        same_model: whether replies must have the names and shapes of the model, or of each other.
        rules: what else replies must keep to before they count. None: nothing but what makes them
            an update, so an app runs as it does without fedsz. `Rules`. Or "fleet": their defaults,
            and those of deadlines, for clients that may fail or lie.
        deadlines: how long a `GrpcGrid` waits for slow clients; with "fleet" see `Deadlines`, else
            as long as the app says.
        on_round: called with the record of each round of training once its replies are in.
        secure: adds up updates without reading any, and without ``rules``; see `SecureSum`.
        seed: of the methods' random numbers, 0 to 2^64 - 1; None for another in each run.

    Raises:
        ConfigError: one of these is out of range or does not exist.
        CodecUnavailable: a codec's library is not installed here.

    Examples:
        >>> from fedsz.flower import FedSZGrid, LocalGrid, make_client_app
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), [{}]), error_bound="std:1")
        >>> grid.take_traffic().replies  # strategy.start(grid=grid, ...) has not been called
        0
    """

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
        shared_initial: bool = False,
        policy: str | Controller | None = None,
        tolerance: float = DEFAULT_TOLERANCE,
        rounds: int | None = None,
        same_model: bool = True,
        rules: Rules | str | None = None,
        deadlines: Deadlines | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        secure: SumMaker | None = None,
        seed: int | None = None,
    ) -> None:
        if wraps(inner, FedSZGrid):
            raise ConfigError("this Grid is a FedSZGrid already: wrap it once")
        super().__init__(inner)
        named = {"error_bound": error_bound, "threshold": threshold, "rule": rule}
        named |= {"update": update, "downlink": downlink}
        self._ends_rounds = not isinstance(policy, Controller)
        if isinstance(policy, Controller):
            controller = policy
        else:
            policy, config = asked_for(policy, named, decay=decay, codec=codec, lossless=lossless)
            controller = Controller(policy, config, tolerance=tolerance, rounds=rounds)
            if SENSITIVITY in controller.needs:
                raise ConfigError(f"policy {policy!r} needs a held-out set: `fedsz server` has one")
            if (chain := config.pipeline) is not None and chain.biased:
                logger.warning(
                    "fedsz: update %r is biased, and what it leaves out is lost: write feedback>"
                    " before its methods",
                    config.update,
                )
        deadlines = deadlines or (Deadlines() if rules == FLEET else Deadlines(math.inf))
        rules = Rules.of(rules)
        if secure is not None:  # nothing can be checked of a masked update
            rules = replace(rules, max_client_share=1.0, max_update_norm=NO_LIMIT)
        self.is_secure, self._lock = secure is not None, threading.RLock()
        self._deadlines = deadlines
        self._statistics = RoundStatistics(
            inner, controller, logs=self._ends_rounds, on_round=on_round
        )
        self._sender = Sender(shared_initial=shared_initial, seed=seed)
        self._checks = ReplyChecks(rules, same_model=same_model and secure is None)
        self._requests = Requests(inner, self._sender, self._statistics, deadlines, self._lock)
        self._asked, self._number = set[int](), 0
        self._waiting = deque[Iterator[Message]]()  # replies that were pulled, and are not judged
        self._early: list[Outcome] = []  # wait for others, by which it is known what is typical
        self._is_streamed = False  # whether the last push takes replies one at a time
        self._is_open = False  # whether a round of training has begun, and not ended
        self._purpose: tuple[str, tuple[int, ...]] = "", ()
        weighted_by = rules.weighted_by
        self._sums = secure.of_run(self, self._statistics, weighted_by) if secure else None

    def state(self) -> RecordDict:
        """Return what the Grid remembers of the rounds so far, for `restore` in another process."""
        sent, records = self._sender.state()
        entries: Any = {"sender": sent, "checks": self._checks.state()}
        sums = self._sums.state() if self._sums else {}
        return RecordDict({_STATE: ConfigRecord(entries), **records, **sums})

    def restore(self, state: RecordDict) -> None:
        """Go on after the round at whose end `state` was called, which `end_round` has ended.

        Raises:
            FedszError: ``state`` is no Grid's.
        """
        records: dict[str, Any] = dict(state)
        try:
            entries = records[_STATE]
            self._sender.restore(entries["sender"], records, self._statistics.decision.config)
            self._checks.restore(entries["checks"])
            if self._sums:
                self._sums.restore(records)
        except (KeyError, TypeError, ValueError) as err:
            raise CorruptStream(f"these records are no Grid's: {type(err).__name__} {err}") from err
        self._is_open = False

    def observe(self, *, accuracy: float | None = None, loss: float | None = None) -> None:
        """Tell the policy how good the model is that goes out next, where the app measures that.

        Without it the policy goes by the metrics in clients' replies to evaluate messages.

        Args:
            accuracy: on held-out data, in [0, 1].
            loss: mean cross-entropy there, in nats.
        """
        self._statistics.measured = accuracy, loss

    def end_round(self, **measured: Any) -> RoundRecord:
        """Return the record of the round that is over, and decide how the next one is sent.

        For a server that has passed a Controller. Other rounds end when their replies are in.

        Args:
            measured: fields of `fedsz.control.record.RoundRecord` that no Grid can know: accuracy,
                loss, spread, sensitivity, train_seconds and test_seconds.
        """
        with self._lock:
            record = self._end(measured)
            self._statistics.decide()
            return record

    def _end(self, measured: Mapping[str, Any]) -> RoundRecord:
        self._checks.end_round(self._statistics.replies)
        self._asked, self._is_open = set(), False
        return self._statistics.end(measured)

    def take_traffic(self) -> Traffic:
        """Return what was counted since the last call, or since the start.

        Sums are of all; lists have the last 10,000 updates and failures.
        """
        return self._statistics.take_traffic()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Encode and push; see Flower's `Grid`.

        Rounds of `StreamedRequest`s may overlap: a reply may come when later models are out. The id
        of a message that the inner Grid did not take is "", as an HttpGrid of Flower says it.
        """
        pushed = list(messages)
        if self._sums_up(pushed):
            raise ConfigError("a secure sum waits for its clients: use send_and_receive")
        self._is_streamed = takes_replies_as_they_come(pushed)
        batch = self.open(pushed, streamed=self._is_streamed)
        ids = self._requests.push(batch)
        for asked, message_id in zip(batch, ids, strict=True):
            if not message_id:
                self.fail(asked.node, NOT_TAKEN, Refusal.FAILED)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Pull and decode; see Flower's `Grid`.

        Replies to `StreamedRequest`s are still sealed, and come one at a time: those that wait
        count in the round that takes them. While it is not known what is typical, none comes before
        half of the open requests have a reply, or the first one would decide it alone.
        """
        wanted = list(message_ids)
        outcomes = self._early + self._requests.pull(wanted)
        waits = self._is_streamed and self._checks.lacks_typical
        self._early = outcomes if waits and len(outcomes) < len(self._requests) else []
        found: list[Message] = []
        if outcomes and not self._early:
            self._waiting.append(self._judged(outcomes))
        while self._waiting:
            for message in self._waiting[0]:
                found.append(message)
                if self._is_streamed:
                    return found
            self._waiting.popleft()
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies to ``messages``, with plain arrays.

        Those to `StreamedRequest`s keep theirs sealed, and come while they are read, once.

        Raises:
            TooFewReplies: all replies of a round of training were refused.
        """
        pushed = list(messages)
        if takes_replies_as_they_come(pushed) and not self._sums_up(pushed):
            return self.stream_replies(pushed, timeout=timeout)
        return list(self.stream_replies(pushed, timeout=timeout))

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield the replies of `send_and_receive`, and keep none."""
        pushed = list(messages)
        ends = is_training(pushed) and is_round(pushed)
        if self._sums and self._sums_up(pushed):
            with self._lock:
                self._begin_round(pushed, {message.metadata.dst_node_id for message in pushed})
            replies = iter(self._sums.replies(pushed, timeout))
        else:
            streamed = takes_replies_as_they_come(pushed)
            replies = self.outcomes(self.open(pushed, streamed=streamed), timeout)
        del pushed, messages  # or the model would stay until the last reply
        return self._ending(replies) if ends else replies

    def _ending(self, replies: Iterator[Message]) -> Iterator[Message]:
        yield from replies
        self._end_if_open()

    def _end_if_open(self) -> None:
        """End a round of training whose replies are in, unless the server does so itself."""
        with self._lock:
            if self._is_open and self._ends_rounds:
                self._end({})

    def _sums_up(self, pushed: list[Message]) -> bool:
        return self._sums is not None and self._sums.takes(pushed)

    def open(
        self, pushed: list[Message], *, streamed: bool, begins: bool = True
    ) -> list[OpenRequest]:
        """Return the requests of a push.

        Args:
            pushed: messages of one type.
            streamed: whether their replies are taken as they come.
            begins: whether a round may begin with them; else the open one goes on.
        """
        if not pushed:
            return []
        with self._lock:  # some servers push from a thread for each client
            if begins and is_training(pushed):
                self._begin_round(pushed, {m.metadata.dst_node_id for m in pushed})
            decision, base = self._statistics.decision, self._statistics.controller.base
            return self._sender.open(pushed, decision, base, streamed=streamed)

    def _begin_round(self, pushed: list[Message], nodes: set[int]) -> None:
        """Begin a round of training, unless a push goes on with the one that is open.

        Some servers push a round's messages one by one, each from a thread of its own. So a round
        is what sends one model, until a node is sent it again. And some protocols train in several
        exchanges, of which one has the model.
        """
        records = compat.records_in(pushed[0].content, ArrayRecord).values()
        if not records:
            return
        purpose = (
            pushed[0].metadata.message_type,
            tuple(hash(array.data) for record in records for array in record.values()),
        )
        goes_on = purpose == self._purpose and self._asked.isdisjoint(nodes)
        if not (goes_on and self._is_open):
            self._end_if_open()
            if 0 < (number := _number_in(pushed[0].content)) < self._number:
                logger.info(
                    "fedsz: round %d after round %d: a new run begins", number, self._number
                )
                self._sender.begin_run()
            self._number = number or self._number
            if is_private(pushed[0].content):
                self._statistics.controller.private = True  # bounds go by the round number alone
            if self._ends_rounds:
                self._statistics.decide()
            self._sender.round += 1
            self._is_open, self._purpose, self._asked = True, purpose, set()
            if bytes_of_arrays(pushed[0].content) >= _LARGE:
                # Flower's records refer to each other in circles: models of earlier rounds would
                # stay, for a collection comes by the number of objects.
                gc.collect()
        self._asked |= nodes
        self._checks.begin_round(len(self._asked))

    def outcomes(self, batch: Sequence[OpenRequest], timeout: float | None) -> Iterator[Message]:
        """Send requests now, and return an iterator over the replies that pass, or errors."""
        deadline = self._deadlines.begin([asked.message for asked in batch], timeout)
        return self._passed(list(batch), self._requests.stream(batch, timeout, deadline), deadline)

    def _passed(
        self, batch: list[OpenRequest], outcomes: Iterator[Outcome], deadline: Any
    ) -> Iterator[Message]:
        trains, waits = any(asked.trains for asked in batch), False
        if batch:
            waits = not batch[0].streamed or (trains and self._checks.holds_first)
        try:
            for message in self._judged(outcomes) if waits else self._one_by_one(outcomes):
                if message.has_error():
                    deadline.refused(message)
                yield message
        finally:
            for asked in self._requests.close(batch):
                self.fail(asked.node, NO_REPLY, Refusal.FAILED)

    def _one_by_one(self, outcomes: Iterable[Outcome]) -> Iterator[Message]:
        for outcome in outcomes:
            yield from self._judged([outcome])

    def _judged(self, outcomes: Iterable[Outcome]) -> Iterator[Message]:
        """Yield the replies that pass, and errors in the place of others.

        Raises:
            TooFewReplies: all replies of a round of training were refused.
        """
        opened: list[OpenedReply] = []
        refused: list[tuple[Outcome, FedszError]] = []
        for outcome in outcomes:
            if outcome.reply.has_error():
                self.fail(
                    outcome.asked.node,
                    reason_of(outcome.reply),
                    Refusal.FAILED,
                )
                yield outcome.reply
                continue
            try:
                opened.append(self._checks.open(outcome))
            except FedszError as err:
                refused.append((outcome, err))
        trained = any(one.asked.trains for one in opened)
        if trained and (self._checks.holds_first or not opened[0].asked.streamed):
            self._checks.learn(opened)
        misfits = self._checks.check_schemas(opened)
        passed = 0
        for i, one in enumerate(opened):
            try:
                if i in misfits:
                    raise misfits[i]
                counted = self._checks.accept(one)
            except FedszError as err:
                refused.append((Outcome(one.asked, one.reply), err))
                continue
            passed += 1
            self._count(one, counted)
            yield one.reply
        for (asked, reply), why in refused:
            yield self._refused(asked, reply, why)
        if refused and not passed and len(refused) > 1 and refused[0][0].asked.trains:
            raise TooFewReplies(f"all {len(refused)} replies were refused: {reason(refused[0][1])}")

    def _count(self, one: OpenedReply, counted: Any) -> None:
        if one.asked.evaluates:
            self._statistics.evaluated(one.reply)
        # Arrays that another protocol has masked are none; `SecureRounds` counts its own.
        masked = one.asked.trains and bool(one.asked.models) and self._sums is None
        if counted.parts or masked:
            self._statistics.received(counted)

    def _refused(self, asked: OpenRequest, reply: Message, err: FedszError) -> Message:
        if asked.evaluates and kind_of(err) is Refusal.METRIC:
            self._statistics.evaluated(reply)  # a loss that is not finite is news of the model
        self.fail(asked.node, reason(err), kind_of(err))
        return compat.error_in_place_of(reply, reason(err))

    def fail(self, node: int, why: str, kind: Refusal) -> None:
        """Count a message without a usable reply."""
        logger.warning("node %d left out: %s", node, why)
        self._statistics.failed(node, why, kind)

    def withdraw(self, nodes: Iterable[int], why: RefusedReply) -> None:
        """Let the replies of these nodes not count, though they have passed."""
        known = set(nodes)
        for reply in self._statistics.replies:
            if reply.node in known:
                reply.withdrawn = reply.withdrawn or why


def compressed(app: ServerApp, *args: Any, **options: Any) -> ServerApp:
    """Return an app that does what ``app`` does on a `FedSZGrid`.

    For apps made of a ``server_fn``, or of a strategy and a config, which Flower itself starts.

    Args:
        app: any ServerApp.
        *args: of `FedSZGrid`, after its Grid.
        **options: likewise.

    Raises:
        ConfigError: as `FedSZGrid`, when the app runs.

    Examples:
        >>> from flwr.serverapp import ServerApp
        >>> from fedsz.flower import compressed
        >>> app = compressed(ServerApp(), error_bound="std:1")
    """
    outer = ServerApp()

    @outer.main()
    def main(grid: Grid, context: Context) -> None:
        app(FedSZGrid(grid, *args, **options), context)

    return outer


def _number_in(content: RecordDict) -> int:
    """Return the number of the round that a strategy of Flower has put in; 0 if there is none."""
    records = compat.records_in(content, ConfigRecord).values()
    numbers = (record.get("server-round") for record in records)
    return next((number for number in numbers if isinstance(number, int)), 0)
