"""Replies on their way in: the one place where a reply is checked before anything of it counts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from fedsz import flower_compat as compat
from fedsz.arrays import Layout
from fedsz.core.protocol import ReplyNote
from fedsz.errors import FedszError, ModelMismatch, RefusedReply
from fedsz.flower.outgoing import OpenRequest
from fedsz.flower.records import (
    is_sealed,
    layout_of,
    note_of,
    replaced,
    to_record,
    with_passthrough,
)
from fedsz.flower.refusal import Refusal, refusing_failures
from fedsz.flower.requests import Outcome
from fedsz.flower.round_statistics import CountedReply
from fedsz.flower.rules import Move, Rules, Typical, check_schemas, weight_of
from fedsz.flower.update import Arrays, SealedRecord, Update

logger = logging.getLogger(__name__)

IF_INTENDED: Final = "if clients are to reply so, FedSZGrid takes same_model=False"

RECENT: Final = 64  # updates that tell what is typical, or all of a round if those are more

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class OpenedReply:
    """A reply whose arrays have been opened, and not been decoded."""

    asked: OpenRequest
    reply: Message
    note: ReplyNote
    weight: float | None
    updates: dict[str, Update]


class ReplyState(msgspec.Struct):
    """What checks depend on from one round to the next."""

    norm: float = 0.0
    weight: float = 0.0
    recent: list[Move] = []
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}


class Replies:
    """Checks the replies of a run: each against the model that was sent, and by the rules.

    In a run's first round of training, replies are held until all are in: by them it is known what
    is typical, and whether most clients reply a part of the model, or one with other names.

    Args:
        rules: what replies must keep to.
        same_model: whether replies must have the names and shapes of the model, or of each other.

    Attributes:
        typical: of the clients, in the round before.
    """

    def __init__(self, rules: Rules, *, same_model: bool) -> None:
        self.rules, self._same_model, self.typical = rules, same_model, Typical()
        self._shapes: dict[str, Shapes] = {}  # by key, of all replies, where not the model's
        self._is_known = False  # whether a round of training has been
        self._recent: list[Move] = []  # the last updates, the newest last

    def state(self) -> bytes:
        """Return what another process goes on with, once a round is over."""
        shapes = {key: dict(of) for key, of in self._shapes.items()}
        typical = self.typical
        state = ReplyState(typical.norm, typical.weight, self._recent, shapes)
        return msgspec.msgpack.encode(state)

    def restore(self, data: bytes) -> None:
        """Go on from what `state` returned, also in another process."""
        state = msgspec.msgpack.decode(data, type=ReplyState)
        self.typical = Typical(state.norm, state.weight)
        self._shapes, self._is_known = dict(state.shapes), True
        self._recent = state.recent

    @property
    def holds_first(self) -> bool:
        """Whether the first replies of training must be looked at together."""
        return not self._is_known and (self._same_model or self.rules.needs_typical)

    @property
    def lacks_typical(self) -> bool:
        """Whether a rule compares a client with others, and no other has replied yet."""
        return self.rules.needs_typical and not self.typical.norm

    def begin_round(self, clients: int) -> None:
        """Note how many clients are asked to train."""
        self.typical = self.typical._replace(clients=clients)

    def end_round(self, replies: Sequence[CountedReply]) -> None:
        """Go by a round, too, from now on."""
        moves = [
            Move(reply.node, update.norm, update.weight)
            for reply in replies
            if reply.trains and not reply.refused
            for update in reply.updates
            if update.norm is not None
        ]
        # Of asynchronous rounds, too, whose updates are mostly those of the fast clients.
        self._recent = [*self._recent, *moves][-max(RECENT, len(moves)) :]
        self.typical = self.typical.after({move.node: move for move in self._recent}.values())
        self._is_known = self._is_known or bool(moves)

    @refusing_failures()
    def open(self, outcome: Outcome) -> OpenedReply:
        """Open the arrays of a reply, which is no error.

        Raises:
            FedszError: it must not count.
        """
        asked, reply = outcome
        content, models = reply.content, asked.models
        note = note_of(content)
        said = ReplyNote.decode(note) if note is not None else ReplyNote()
        weight = None
        if asked.trains or not self.rules.tolerant:
            weight = weight_of(content, self.rules.weighted_by)
        if weight == 0 and not self.rules.tolerant:  # Flower divides by the sum of weights
            raise RefusedReply(Refusal.WEIGHT, "it has none")
        records = {
            key: record
            for key, record in compat.records_in(content, ArrayRecord).items()
            if is_sealed(record)
            or layout_of(record).shapes
            or (asked.trains and key in models)  # no arrays in place of a model
        }
        only = next(iter(models)) if len(models) == len(records) == 1 else None
        updates = {}
        for key, record in records.items():
            sent = models.get(only or key)
            model = sent.model if sent and asked.trains else {}
            update = Update.open(
                record,
                model=model,
                reference=sent.reference if sent else None,
                dtypes={name: x.dtype for name, x in model.items()},
                is_step=said.is_step,
                codecs=asked.codecs if asked.request else None,
                drawn=asked.drawn,
            )
            updates[key] = update.weighted(1.0 if weight is None else weight)
        return OpenedReply(asked, reply, said, weight, updates)

    def learn(self, opened: Sequence[OpenedReply]) -> None:
        """Learn from a round's replies what its clients reply, and what is typical among them."""
        trained = [one for one in opened if one.asked.trains]
        if self._same_model:
            self._learn_shapes(trained)
        if self.lacks_typical:
            known: list[Move] = []
            for one in trained:
                for key, update in one.updates.items():
                    try:
                        with refusing_failures():
                            measured = update.measured()
                    except FedszError:
                        continue  # it will be refused
                    one.updates[key] = measured
                    assert measured.norm is not None
                    known.append(Move(one.asked.node, measured.norm, measured.weight))
            clients = self.typical.clients
            self.typical = Typical().after(known)._replace(clients=clients)

    def _learn_shapes(self, trained: Sequence[OpenedReply]) -> None:
        """Where most replies are alike and not the model, their names and shapes are the run's."""
        found: dict[str, list[Update]] = {}
        for one in trained:
            for key, update in one.updates.items():
                if update.model:
                    found.setdefault(key, []).append(update)
        for key, updates in found.items():
            counts = Counter(frozenset(update.shapes.items()) for update in updates)
            shapes, times = counts.most_common(1)[0]
            fits = _fits(updates[0].model, dict(shapes))
            if fits or not shapes:
                self._shapes.pop(key, None)
            elif 2 * times > len(updates):
                self._shapes[key] = dict(shapes)

    def check_schemas(self, opened: Sequence[OpenedReply]) -> dict[int, RefusedReply]:
        """Return, by their places, why some replies of a round do not fit the others."""
        if self.rules.tolerant:
            return {}
        return check_schemas({i: one.reply for i, one in enumerate(opened)})

    @refusing_failures()
    def accept(self, opened: OpenedReply) -> CountedReply:
        """Check a reply, and put the arrays that its receiver takes into the place of its own.

        Raises:
            FedszError: it must not count. The reply is as it was.
        """
        asked, reply, trains = opened.asked, opened.reply, opened.asked.trains
        parts: dict[str, Update | SealedRecord] = {}
        taken: dict[str, ArrayRecord] = {}
        weight, clip = opened.weight, asked.clipping_norm
        for key, update in opened.updates.items():
            if trains:
                self._check_shapes(key, update)
                update = self.rules.limit_weight(update, self.typical)
                weight = None if weight is None else update.weight
            terms = [] if clip is not None else update.terms()
            if trains and clip is None:
                update = self.rules.check(update.measured(terms), self.typical)
            if asked.streamed:
                parts[key] = taken[key] = SealedRecord(update, terms, clip)
                continue
            if clip is None:
                arrays = update.arrays(terms)
            else:
                arrays, update = update.clipped(clip)
            parts[key] = update
            taken[key] = with_passthrough(to_record(arrays), update.passthrough)
        # What was sent is in circles of references, which would keep it until a collection.
        for update in [] if asked.streamed else opened.updates.values():
            update.record.clear()
        reply.content = replaced(reply.content, taken)
        if weight is not None and weight != opened.weight:
            self._lower_weight(reply, weight)
        return CountedReply(asked.node, opened.note, trains, weight or 0.0, parts)

    def _check_shapes(self, key: str, update: Update) -> None:
        """Refuse names and shapes that are not the model's, or not those of most replies."""
        if not self._same_model or not update.model:
            return
        layout, agreed = Layout.of(update.model), self._shapes.get(key)
        if agreed is not None:
            layout = Layout(agreed, dict.fromkeys(agreed, np.dtype(np.float32)))
        try:
            layout.check(dict(update.shapes))
        except ModelMismatch as err:
            raise ModelMismatch(f"{err}; {IF_INTENDED}") from None

    def _lower_weight(self, reply: Message, weight: float) -> None:
        name, node = self.rules.weighted_by, reply.metadata.src_node_id
        for key, record in compat.records_in(reply.content, MetricRecord).items():
            if name in record:
                now = int(weight) if isinstance(record[name], int) else weight
                logger.warning("node %d: %s %s counts as %g", node, name, record[name], now)
                reply.content[key] = MetricRecord({**record, name: now})


def _fits(model: Arrays, shapes: Shapes) -> bool:
    try:
        Layout.of(model).check(shapes)
    except ModelMismatch:
        return False
    return True
