"""Admission: the one place where a reply is checked before anything of it counts.

A reply that passes holds plain arrays, or `AdmittedRecord`s for a strategy that decodes them as it
adds them up. Strategies ask for these by sending `StreamedRequest`s, which no wrapper between them
and the Grid has to know of.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsz.core.reply_report import ReplyReport
from fedsz.errors import FedszError, RefusedReply
from fedsz.flower import round_log
from fedsz.flower.admission_rules import AdmissionRules
from fedsz.flower.admitted_record import AdmittedRecord
from fedsz.flower.asked import Outcome
from fedsz.flower.bench import Bench
from fedsz.flower.differential_privacy import CLIPPED_AGAIN
from fedsz.flower.ordinary import MOST_WEIGHT, Latest, Move, Ordinary, largest_weight
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import (
    EVALUATE,
    KEY,
    TRAIN,
    aside_of,
    is_sealed,
    layout_of,
    replaced,
    to_record,
    with_aside,
)
from fedsz.flower.refusal import OF_ITS_TIME, Refusal, kind_of, refusing_failures
from fedsz.flower.reply_form import Form, check_finite_metrics, check_form, form_of, usual_form
from fedsz.flower.server_step import Elements, MeanOfReplies, some_of
from fedsz.flower_compat import records_in
from fedsz.transport.replies import StreamedRequest

logger = logging.getLogger(__name__)

FIRST: Final = 3  # replies of one form, that show what is ordinary in a run's first round
MOST_HELD: Final = 3 * FIRST  # replies of any form, until then


@dataclass(frozen=True)
class Admitted:
    """What there is to count of a reply, once it has been used.

    Attributes:
        node: who sent it.
        updates: by key, its arrays, of which each says how long it took, and whether it was of use.
        report: what its sender says of it.
        trains: whether it goes into an average.
        weight: in that average; 0 where it has none.
    """

    node: int
    updates: Mapping[str, ReceivedUpdate]
    report: ReplyReport
    trains: bool = True
    weight: float = 0.0

    def forget(self) -> None:
        """Keep nothing of what was sent but the numbers."""
        for update in self.updates.values():
            update.forget()

    @property
    def refused(self) -> FedszError | None:
        """Why it was of no use after all, if so."""
        return next((u.refused for u in self.updates.values() if u.refused), None)


class Learned(NamedTuple):
    """What `Admission` knows of the rounds before, in types that JSON has."""

    forms: dict[str, list[Any]]
    weights: list[tuple[int, int, float]]
    moves: dict[str, list[tuple[int, int, Move]]]
    bench: Bench


class Admission:
    """Checks the replies of a run: each against what was sent, and against ordinary ones.

    A round's limits are fixed by the rounds before it. So who may count does not depend on the
    order in which replies come; but see `settled` for the first round.
    """

    def __init__(self, rules: AdmissionRules) -> None:
        self.rules = rules
        self.bench = Bench()
        self._ordinary, self._log = Ordinary(rules.norm_limit), round_log.LimitLog()
        self._asked: set[int] = set()
        self._failed: set[int] = set()
        self._admitted: list[Admitted] = []
        self.mean = MeanOfReplies()
        self._clips = False  # whether the log says that replies are clipped again

    def state(self) -> ConfigRecord:
        """Return what another process goes on with, once a round is over."""
        known = self._ordinary
        moves = {key: latest.known for key, latest in known.moves.items()}
        forms = {kind: sorted(form) for kind, form in known.forms.items()}
        learned = Learned(forms, known.weights.known, moves, self.bench)
        return ConfigRecord({"json": msgspec.json.encode(learned).decode()})

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned, also in another process."""
        known = msgspec.json.decode(state["json"], type=Learned)
        self._ordinary = Ordinary(self.rules.norm_limit)
        # What releases before had in place of words is learned again.
        self._ordinary.forms = {
            kind: frozenset(form)
            for kind, form in known.forms.items()
            if all(isinstance(part, str) for part in form)
        }
        self._ordinary.weights = Latest(known.weights)
        self._ordinary.moves = {key: Latest(moves) for key, moves in known.moves.items()}
        self.bench = known.bench

    def asked(self, nodes: Iterable[int]) -> set[int]:
        """Take note of who is sent a message in this round; return whose last reply has counted.

        Where rounds overlap, that has come in this round: there is no other from these nodes.
        """
        asked = set(nodes)
        self._asked |= asked
        return self.counted() & asked

    def usable(self, replies: Iterable[Message]) -> int:
        """Return how many replies are no errors; 0 if none of them has any weight."""
        good = [reply for reply in replies if not reply.has_error()]
        return len(good) if any(self._weight(reply.content) != 0 for reply in good) else 0

    def refuse(self, replies: Iterable[Message], why: RefusedReply) -> None:
        """Let replies of this round not count after all, though they have passed."""
        nodes = {reply.metadata.src_node_id for reply in replies}
        for admitted in self._admitted:
            if admitted.node in nodes:
                for update in admitted.updates.values():
                    update.refused = update.refused or why

    def withdraw(self, node: int) -> None:
        """Let a reply of this round not count, of which there is nothing that could be refused."""
        self._admitted = [reply for reply in self._admitted if reply.node != node]

    def failed(self, node: int) -> None:
        """Take note of who sent nothing that can be used."""
        self._failed.add(node)

    def counted(self) -> set[int]:
        """Return of whom the last update of this round has gone into the model."""
        last = {reply.node: not reply.refused for reply in self._admitted if reply.trains}
        return {node for node, counts in last.items() if counts}

    def end_round(self) -> None:
        """Learn from the round that is over what is ordinary, and who keeps failing."""
        for reply in self._admitted:
            if reply.refused and kind_of(reply.refused) not in OF_ITS_TIME:
                self._failed.add(reply.node)
            for key, update in reply.updates.items():
                if reply.trains:
                    self._ordinary.moved(key, reply.node, Move.of(update))
        self._log.tell(self._admitted)
        self._ordinary.end_round()
        answered = {reply.node for reply in self._admitted if reply.trains} - self._failed
        if self.rules.benches:
            self.bench.end_round(answered, self._failed)
        self._asked, self._failed, self._admitted = set(), set(), []

    def knows(self, outcomes: Iterable[Outcome]) -> bool:
        """Say whether it is known what is ordinary among replies of these types."""
        good = [outcome.reply for outcome in outcomes if not outcome.reply.has_error()]
        known = self._ordinary.forms
        learnt = all(reply.metadata.message_type in known for reply in good)
        return not self.rules.learns or learnt or _show_form(good)

    def settled(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Yield outcomes, the first ones of a run once it is known what is ordinary among them.

        Of each type of messages, the first replies that are no errors are held back until `FIRST`
        of them have one form. That becomes the form of all; their median weight and norm limit the
        first round. So fewer clients than that decide nothing, however fast they are.
        """
        held: list[Outcome] = []
        for outcome in outcomes:
            known = outcome.reply.metadata.message_type in self._ordinary.forms
            waits = self.rules.learns and not known and not outcome.reply.has_error()
            if not (waits and _is_averaged(outcome)):
                yield outcome
                continue
            held.append(outcome)
            if _show_form([outcome.reply for outcome in held]):
                self._settle(held)
                while held:
                    yield held.pop(0)
        self._settle(held)
        yield from held

    def _settle(self, held: list[Outcome]) -> None:
        for kind in {outcome.reply.metadata.message_type for outcome in held}:
            known = [one for one in held if one.reply.metadata.message_type == kind]
            forms = [form for one in known if (form := _form_of(one.reply)) is not None]
            if (usual := usual_form(forms)) is None:
                continue
            self._ordinary.forms[kind] = usual
            for one in known if kind.startswith(TRAIN) else []:
                try:
                    with refusing_failures():
                        check_form(form_of(one.reply.content), usual)
                        node = one.reply.metadata.src_node_id
                        self._ordinary.weighs(node, self._weight(one.reply.content) or 0)
                        for key, update in self._updates(one).items():
                            update.norm = update.measured()
                            self._ordinary.moved(key, node, Move.of(update))
                except FedszError:
                    continue  # admission will refuse it
        self._ordinary.end_round()

    @refusing_failures()
    def admit(self, outcome: Outcome, *, sealed: bool) -> Admitted:
        """Check a reply, and put what its receiver takes into the place of its arrays.

        Args:
            outcome: without an error; the content of its reply is replaced.
            sealed: whether its receiver decodes its arrays itself; else they are decoded here.

        Raises:
            FedszError: it must not count. The reply is as it was.
        """
        reply = outcome.reply
        content, trains, node = reply.content, outcome.asked.trains, outcome.asked.node
        if _is_averaged(outcome):
            if self.rules.checks_metrics:
                check_finite_metrics(content)
            if self.rules.same_metrics:
                form = form_of(content)
                check_form(form, self._ordinary.form(reply.metadata.message_type, form))
        weight = self._weight(content)
        updates = self._updates(outcome)
        taken: dict[str, ArrayRecord] = {}
        shown: list[Elements] = []
        for key, update in updates.items():
            if trains:
                self._ordinary.limit(key, update)
            if sealed:
                broadcasts = outcome.asked.content.broadcasts
                only = next(iter(broadcasts), key) if len(broadcasts) == len(updates) == 1 else key
                taken[key] = AdmittedRecord(update, broadcasts.get(only))
            else:
                aside = aside_of(update.record)
                arrays = update.arrays()
                if trains and self.mean.asks:
                    shown.append(some_of(arrays))
                taken[key] = with_aside(to_record(arrays), aside)
        report = ReplyReport.read(records_in(content, ConfigRecord).get(KEY))
        reply.content = replaced(content, taken, None)
        if weight is not None and trains:
            self._ordinary.weighs(node, weight)
            weight = self._cap(reply, weight)
        self.mean.add(shown, weight)
        admitted = Admitted(node, updates, report, trains, weight or 0.0)
        self._admitted.append(admitted)
        return admitted

    def _updates(self, outcome: Outcome) -> dict[str, ReceivedUpdate]:
        """Open a reply's records; raises as `admit` does.

        A record without arrays passes as it is, but not where those of the model are due.
        """
        records, told = records_in(outcome.reply.content, ArrayRecord), outcome.asked.content
        trains = outcome.asked.trains
        due = trains and not told.masks
        expected, sent, meant = dict(told.layouts), dict(told.models), dict(told.meant)
        if not self.rules.same_model:
            expected, sent = {}, {}
        if len(records) == len(expected) == 1:
            # A client may call its model otherwise.
            expected = dict(zip(records, expected.values(), strict=True))
            sent = dict(zip(records, sent.values(), strict=False))
            meant = dict(zip(records, meant.values(), strict=False))
        known, single = outcome.references, len(told.models) < 2
        updates = {
            key: ReceivedUpdate(
                record,
                expected.get(key),
                known if single else replace(known, sent=told.by_digest(key)),
                sent=sent[key].arrays if key in sent else {},
                meant=meant.get(key, {}),
                codecs={*told.codecs, *self.rules.allow_codecs},
                drawn=told.drawn,
            )
            for key, record in records.items()
            if is_sealed(record) or layout_of(record).shapes or (due and key in expected)
        }
        if trains and (norm := told.clipping_norm) is not None:
            self._clip(updates, norm)
        for update in updates.values() if trains else ():
            self._ordinary.watch(update)
        return updates

    def _clip(self, updates: Mapping[str, ReceivedUpdate], norm: float) -> None:
        """Have a reply clipped again: what clients clip, their error feedback adds to."""
        if len(updates) > 1:
            why = f"{len(updates)} ArrayRecords cannot be clipped to one norm"
            raise RefusedReply(Refusal.RECORDS, why)
        for update in updates.values():
            update.clip_to(norm)
        if not self._clips:
            self._clips = True
            round_log.logger.info(f"fedsz: {CLIPPED_AGAIN}", norm)

    def _weight(self, content: RecordDict) -> float | None:
        """Return the weight of a reply; None if it has none."""
        for record in records_in(content, MetricRecord).values():
            if (weight := record.get(self.rules.weighted_by)) is not None:
                if isinstance(weight, list) or not 0 <= weight <= MOST_WEIGHT:
                    if not self.rules.checks_metrics:
                        return None
                    raise RefusedReply(
                        Refusal.WEIGHT,
                        f"{self.rules.weighted_by!r} must be a number from 0 to {MOST_WEIGHT:g},"
                        f" got {weight!r}",
                    )
                return float(weight)
        return None

    def _cap(self, reply: Message, weight: float) -> float:
        """Lower the weight of a reply to what one client may have, and return it."""
        share, name = self.rules.max_client_share, self.rules.weighted_by
        most = largest_weight(share, len(self._asked), self._ordinary.weight)
        if weight <= most:
            return weight
        node = reply.metadata.src_node_id
        logger.warning(
            "node %d: %s %g counts as %g, a share of %g", node, name, weight, most, share
        )
        for key, record in records_in(reply.content, MetricRecord).items():
            if name in record:
                most = int(most) if isinstance(record[name], int) else most
                reply.content[key] = MetricRecord({**record, name: most})
        return most


def _is_averaged(outcome: Outcome) -> bool:
    """Say whether a reply is to a model, to be averaged; protocols have other exchanges."""
    by_type = outcome.reply.metadata.message_type.startswith((TRAIN, EVALUATE))
    return by_type and bool(outcome.asked.content.layouts)


def _form_of(reply: Message) -> Form | None:
    try:
        with refusing_failures():
            return form_of(reply.content)
    except FedszError:
        return None  # admission will refuse it


def _show_form(replies: Sequence[Message]) -> bool:
    """Say whether replies are enough to show the form of others."""
    forms = [(r.metadata.message_type, form) for r in replies if (form := _form_of(r)) is not None]
    times = max(Counter(forms).values(), default=0)
    return times >= FIRST or len(replies) >= MOST_HELD


def streamed(messages: Iterable[Message]) -> list[Message]:
    """Return messages whose replies are to come sealed; those that share a content still do."""
    asked = list(messages)
    contents = {id(message.content): StreamedRequest(dict(message.content)) for message in asked}
    originals = [message.content for message in asked]  # or an id could be used again
    for message, content in zip(asked, originals, strict=True):
        message.content = contents[id(content)]
    return asked
