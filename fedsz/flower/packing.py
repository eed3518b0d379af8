"""Messages on their way out: arrays sealed, instructions added, each client's own version."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from flwr.app import ArrayRecord, Message, RecordDict

from fedsz import codecs
from fedsz import flower_compat as compat
from fedsz.arrays import Layout, NDArray
from fedsz.codecs import Raw
from fedsz.flower.asked import Asked
from fedsz.flower.broadcast import Broadcast, BroadcastState
from fedsz.flower.differential_privacy import clipping_norm
from fedsz.flower.instructions import Instructions
from fedsz.flower.pushes import fingerprint, is_training, same_arrays
from fedsz.flower.records import (
    EVALUATE,
    LEAST_BYTES,
    Aside,
    aside_of,
    is_sealed,
    layout_of,
    streams_of,
    views_of,
)
from fedsz.flower.sent_content import SentContent
from fedsz.flower.shifts import KnownModels, Shifts
from fedsz.methods import texts_sent
from fedsz.update.config import DELTA, EXACT, CompressionConfig
from fedsz.update.lossless import BITS_CODEC
from fedsz.update.reference import Reference
from fedsz.update.shift import Shift
from fedsz.update.step import step_spread

FORGETFUL: Final = 2  # times that a client has lost its model, and is sent the whole from then on
# What encoders fall back to, whatever codecs they are told to use.
CODECS_OF_FALLBACKS: Final = (Raw.name, BITS_CODEC.name)


@dataclass(frozen=True)
class Packed:
    """A message as it goes out, what it is of, and the bytes of its arrays before and after."""

    message: Message
    content: SentContent
    raw_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class PackerState:
    """What a `Packer` remembers from one round to the next.

    Attributes:
        run: tells clients which run their residuals are of.
        turn: how many rounds of training have gone out.
        held: by node and key of an ArrayRecord, the digest of the model that a client holds.
        asked: by node, the last turn in which it was to train.
        counted: by node, the last turn in which its reply counted.
        broadcasts: by key, those within a bound.
        shifts: by node and key, what has been learnt of clients.
    """

    run: bytes
    turn: int
    held: Mapping[int, Mapping[str, bytes]]
    asked: Mapping[int, int]
    counted: Mapping[int, int]
    broadcasts: Mapping[str, BroadcastState]
    shifts: Mapping[int, Mapping[str, Shift]]


@dataclass(frozen=True)
class Ordered:
    """What a client was told to send, as far as that is known.

    Attributes:
        layouts: by the keys of records, what they must look like.
        references: by digest, what they may be differences from.
        sent: by the keys of records, the models that it was sent.
        codecs: the names of the codecs that its streams may use, and the texts of chains.
        broadcasts: by the keys of records, what holds the model that clients are sent now.
        drawn: the seed and the round that chains draw from; None if that is not known.
        clipping_norm: what its update was to be clipped to, if so.
        masks: whether it was to mask its update, which is no array then.
    """

    layouts: Mapping[str, Layout]
    references: Mapping[bytes, Reference]
    sent: Mapping[str, Mapping[str, NDArray]]
    codecs: frozenset[str]
    broadcasts: Mapping[str, Broadcast]
    drawn: tuple[int, int] | None = None
    clipping_norm: float | None = None
    masks: bool = False


class Outcome(NamedTuple):
    """A reply, the message that it answers, and what its sender was told by that."""

    reply: Message
    asked: Asked
    ordered: Ordered


class Packer:
    """Packs what a Grid sends, and remembers which client holds what.

    A model that a push sends to everybody is a step of one `Broadcast`. Where a push holds
    different models, for different clients, each goes out exactly.

    Some servers push a round's messages one by one, each from a thread of its own. So a round is
    what sends one model for one purpose, until a node is sent it again.

    Args:
        feedback: whether what one broadcast leaves out goes into the next.
        shared_initial: whether clients may hold the first model from the start.
        shifts: keeps what is learnt of each client; emptied.
        seed: what methods draw from, 0 to 2^64 - 1; None for another in each run.

    Attributes:
        layouts: of the models last sent, by the keys of their ArrayRecords.
    """

    def __init__(
        self,
        *,
        feedback: bool = True,
        shared_initial: bool = False,
        shifts: Shifts | None = None,
        seed: int | None = None,
    ) -> None:
        self._shared_initial = shared_initial
        self._shifts = shifts or Shifts()
        self._shifts.restore({})  # those of an earlier run are no concern of this one
        self.layouts: dict[str, Layout] = {}
        self._feedback = feedback
        self._broadcasts: dict[str, Broadcast] = {}
        drawn = b"" if seed is None else seed.to_bytes(8, "little")
        self._run = drawn + secrets.token_bytes(8)  # it begins with the `Instructions.seed`
        self._turn = 0
        self._held: dict[int, Mapping[str, bytes]] = {}  # by node, then key: as replies have shown
        self._lost: dict[int, int] = {}  # by node: how often it lacked what it was to hold
        self._in_round: set[int] = set()  # who has been sent the model of this round
        self._sent = ("", b"")  # the purpose and the model of this round
        self._asked: dict[int, int] = {}  # by node: the last turn in which it was to train
        self._counted: dict[int, int] = {}  # and the last in which its reply counted

    def goes_on(self, pushed: Sequence[Message]) -> bool:
        """Say whether a push is of the round that the one before it was of."""
        return self._goes_on(pushed, _sent(pushed))

    def _goes_on(self, pushed: Sequence[Message], sent: tuple[str, bytes]) -> bool:
        again = any(message.metadata.dst_node_id in self._in_round for message in pushed)
        return not again and self._sent == sent

    def begins_round(self, pushed: Sequence[Message]) -> bool:
        """Take note of a push that is to be packed, and say whether it begins a round."""
        now = _sent(pushed)
        if self._goes_on(pushed, now):
            return False
        self._sent = now
        self._turn += is_training(pushed)
        self._in_round = set()
        return True

    def spread(
        self, messages: Iterable[Message], config: CompressionConfig
    ) -> dict[str, tuple[int, float]]:
        """Return the spread of the step from what clients hold to what these messages do."""
        found: dict[str, tuple[int, float]] = {}
        first = next(iter(messages))
        for key, record in compat.records_in(first.content, ArrayRecord).items():
            broadcast = self._broadcasts.get(key)
            held = broadcast.model if broadcast else None
            if held is not None:
                arrays = views_of(record, self.layouts[key])
                found |= step_spread(
                    held.arrays, arrays, rule=config.rule, threshold=config.threshold
                )
        return found

    def pack(
        self,
        messages: Iterable[Message],
        config: CompressionConfig,
        codecs: Mapping[int, str],
        overlaps: bool = False,
    ) -> list[Packed]:
        """Return the messages of a push, packed: once for all clients that are in the same case.

        The messages are not changed. ``codecs`` are by node, for those that use another codec.
        If rounds overlap, the model is kept that replies start from.

        What does not train goes exactly in both directions, but for a model that is tested between
        rounds of training: that goes as it would be trained.
        """
        pushed = list(messages)
        trains = is_training(pushed)
        how = config if trains else aside(config)
        instructions = Instructions(how, self._turn, run=self._run, trains=trains)
        tests = self._turn > 0 and all(
            message.metadata.message_type.startswith(EVALUATE) for message in pushed
        )
        records = {id(message.content): message.content for message in pushed}
        first = pushed[0].content
        if all(same_arrays(first, content) for content in records.values()):
            everybody = trains or tests
            shared = self._content(first, config, instructions, everybody=everybody, keeps=overlaps)
            contents = {i: shared.beside_others(content) for i, content in records.items()}
        else:
            contents = {
                i: self._content(content, config, instructions, everybody=False, keeps=overlaps)
                for i, content in records.items()
            }
        for content in contents.values():
            content.prepare([self._holds(m.metadata.dst_node_id) for m in pushed])
        versions: dict[Any, tuple[RecordDict, int]] = {}
        packed = []
        for message in pushed:
            node, identity = message.metadata.dst_node_id, id(message.content)
            content = contents[identity]
            own = codecs.get(node) if content.instructions.config is config else None
            counted: int | None = None
            shifts: Mapping[str, bytes] = {}
            if trains and content.broadcasts:
                last = self._counted.get(node, 0)
                counted = last if self._asked.get(node, 0) > last else None
                self._asked[node] = self._turn
                shifts = self._shifts.digests(node) if config.learns_shifts else {}
            if own or counted is not None or shifts:
                told = config.replace(codec=own) if own else content.instructions.config
                content = content.telling(config=told, counted=counted, shifts=shifts)
            held = self._holds(node)
            case = identity, own, *held.items(), counted, *shifts.items()
            if case not in versions:
                versions[case] = content.version(held)
            version, nbytes = versions[case]
            self._in_round.add(node)
            out = compat.make_message(message.metadata, content=version)
            packed.append(Packed(out, content, content.raw_bytes, nbytes))
        for content in contents.values():
            content.pack_away()
        return packed

    def state(self) -> PackerState:
        """Return what the next push depends on, beside the model in it."""
        known = {key: broadcast.state() for key, broadcast in self._broadcasts.items()}
        broadcasts = {key: state for key, state in known.items() if state is not None}
        asked, counted = dict(self._asked), dict(self._counted)
        held, shifts = dict(self._held), self._shifts.state()
        return PackerState(self._run, self._turn, held, asked, counted, broadcasts, shifts)

    def restore(self, state: PackerState, config: CompressionConfig) -> None:
        """Go on from what `state` returned, also in another process."""
        self._run, self._turn, self._held = state.run, state.turn, dict(state.held)
        self._asked, self._counted = dict(state.asked), dict(state.counted)
        self._shifts.restore(state.shifts)
        for key, known in state.broadcasts.items():
            self._broadcasts[key] = self._broadcast(config)
            self._broadcasts[key].restore(known)

    def ordered(self, asked: Asked) -> Ordered:
        """Return what a client was told by a message."""
        content = asked.content
        config, models = content.instructions.config, content.models
        allowed = {codecs.parse(text).name for text in (config.codec, config.lossless)}
        chain = config.chain
        return Ordered(
            content.layouts,
            KnownModels(_by_digest(content), tuple(self._shifts.of(asked.node).values())),
            {key: model.arrays for key, model in models.items()},
            frozenset(allowed.union(CODECS_OF_FALLBACKS, texts_sent(chain) if chain else ())),
            content.broadcasts,
            (content.instructions.seed, content.instructions.turn) if chain else None,
            clipping_norm(content.others) if asked.trains else None,
            compat.RECORD_KEY_CONFIGS in content.others,
        )

    def counted(self, nodes: Iterable[int]) -> None:
        """Note that what these nodes were last asked to train has gone into the model."""
        known = set(nodes)
        self._counted |= {node: self._asked.get(node, 0) for node in known}
        self._shifts.counted(known)

    def received(self, asked: Asked) -> None:
        """Note that a node has answered a message, and so holds what was in it.

        But for one that loses what it holds: it has no place to keep it, and is sent the whole.
        """
        node, content = asked.node, asked.content
        if self._lost.get(node, 0) < FORGETFUL:
            # Evaluation may have a key of its own, and leaves what training has left.
            self._held[node] = {**self._held.get(node, {}), **content.instructions.holds}

    def admitted(self, asked: Asked, sent: Mapping[str, ArrayRecord]) -> None:
        """Keep what has been sent in a reply that has passed admission until it has `counted`.

        The shift of its sender moves by it then.
        """
        told = asked.content.instructions
        if told.trains and told.config.learns_shifts and told.config.chain:
            found = {key: streams_of(record) for key, record in sent.items() if is_sealed(record)}
            streams = {key: each[0] for key, each in found.items() if each}
            models = _by_digest(asked.content)
            self._shifts.admitted(asked.node, streams, models, told.config.chain)

    def whole(self, asked: Asked) -> Packed | None:
        """Return a message for one that holds nothing of the model in it; None if that is no help.

        A client that lacks even what it needs no other model for will not be helped by it again.
        """
        node, content = asked.node, asked.content
        self._lost[node] = self._lost.get(node, 0) + bool(self._held.get(node))
        self._held[node] = {}
        if not content.instructions.holds or not content.is_newest:
            return None  # it is sent the newest before long
        version, nbytes = content.version({})
        content.pack_away()
        message = compat.make_message(copy.copy(asked.metadata), content=version)
        return Packed(message, content, content.raw_bytes, nbytes)

    def _holds(self, node: int) -> Mapping[str, bytes]:
        """Return what a node holds, by key, as far as it has not said otherwise."""
        initial = {key: broadcast.initial for key, broadcast in self._broadcasts.items()}
        return self._held.get(node, {key: digest for key, digest in initial.items() if digest})

    def _broadcast(self, config: CompressionConfig) -> Broadcast:
        shared = self._shared_initial
        return Broadcast(config, feedback=self._feedback, shared_initial=shared)

    def _content(
        self,
        content: RecordDict,
        config: CompressionConfig,
        told: Instructions,
        *,
        everybody: bool,
        keeps: bool,
    ) -> SentContent:
        broadcasts: dict[str, Broadcast] = {}
        beside: dict[str, Aside] = {}
        records = compat.records_in(content, ArrayRecord)
        layouts = {key: layout_of(record) for key, record in records.items()}
        small = sum(layout.nbytes for layout in layouts.values()) < LEAST_BYTES
        if small:
            everybody, told = False, replace(told, config=aside(config))
        for key, record in records.items():
            layout = layouts[key]
            if not layout.shapes:
                continue  # nothing that a stream could hold
            if key not in self.layouts or self.layouts[key].shapes != layout.shapes:
                self.layouts[key] = layout
            if everybody:
                broadcast = self._broadcasts.get(key)
                if broadcast is None:
                    broadcast = self._broadcast(config)
                    self._broadcasts[key] = broadcast
                broadcast.steer(config)
            else:
                broadcast = Broadcast(config.replace(downlink=EXACT))
            arrays = views_of(record, self.layouts[key])
            broadcast.put(arrays, reference=keeps or config.sends_differences or told.trains)
            broadcasts[key], beside[key] = broadcast, aside_of(record)
        models = {key: b.model for key, b in broadcasts.items() if b.model is not None}
        kept = {key: model.digest for key, model in models.items() if not broadcasts[key].exact}
        layouts = {key: self.layouts[key] for key in broadcasts}
        told = replace(told, holds=kept)
        return SentContent({}, broadcasts, models, layouts, beside, told).beside_others(content)


def _sent(pushed: Sequence[Message]) -> tuple[str, bytes]:
    """Return what a push is for, and what tells its model apart."""
    return pushed[0].metadata.message_type, fingerprint(pushed[0].content)


def _by_digest(content: SentContent) -> dict[bytes, Reference]:
    """Return the models of a content by their digests."""
    return {model.digest: model for model in content.models.values()}


def aside(config: CompressionConfig) -> CompressionConfig:
    """Return how replies are compressed that do not train: exactly, and without residuals."""
    changes = config.chain is not None or config.feeds_back
    return config.replace(update=DELTA if changes else config.update, codec=config.lossless)
