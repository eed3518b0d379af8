"""Messages on their way out: arrays sealed, instructions added, each client's own version."""

from __future__ import annotations

import copy
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedsz import flower_compat as compat
from fedsz.arrays import Layout, NDArray
from fedsz.core.broadcast import Broadcast
from fedsz.core.protocol import Instructions
from fedsz.core.settings import EXACT, LEAST_BYTES, Settings, codec_told
from fedsz.core.shift import Shift
from fedsz.flower.asked import Asked
from fedsz.flower.broadcast_records import by_node, digests_in, values_by_node
from fedsz.flower.broadcasts import Broadcasts
from fedsz.flower.pushes import is_training, purpose_of, same_arrays
from fedsz.flower.records import (
    EVALUATE,
    Aside,
    aside_of,
    is_sealed,
    layout_of,
    streams_of,
    to_record,
    views_of,
)
from fedsz.flower.sent_content import SentContent
from fedsz.flower.server_step import Step
from fedsz.flower.shifts import KnownModels, Shifts
from fedsz.flower.turns import Turns
from fedsz.methods import Eigen
from fedsz.stream import Reader

logger = logging.getLogger(__name__)

FORGETFUL: Final = 2  # times in a row that a client has lost its model: it keeps none


@dataclass(frozen=True)
class Packed:
    """A message as it goes out, what it is of, and the bytes of its streams."""

    message: Message
    content: SentContent
    sent_bytes: int


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
        trends: as `Broadcast` has it.
        alike: whether all clients must begin with the same model.

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
        trends: bool = False,
        alike: bool = False,
    ) -> None:
        self._trends, self._alike = trends, alike
        self._shared_initial = shared_initial
        self._shifts = shifts or Shifts()
        self._shifts.restore({})  # those of an earlier run are no concern of this one
        self.layouts: dict[str, Layout] = {}
        self._feedback = feedback
        self._broadcasts = Broadcasts(self._broadcast)
        drawn = b"" if seed is None else seed.to_bytes(8, "little")
        self._run = drawn + secrets.token_bytes(8)  # it begins with the `Instructions.seed`
        self._turn = 0
        self._held: dict[int, Mapping[str, bytes]] = {}  # by node, then key: as replies have shown
        self._seen: dict[int, Mapping[str, bytes]] = {}  # likewise, the digests of histories
        self._lost: dict[int, int] = {}  # by node: how often in a row it lacked what it was to hold
        self._uninitiated: set[int] = set()  # who lacks the first model, too
        self._unaware: set[int] = set()  # whose releases cannot code by histories
        self._in_round: set[int] = set()  # who has been sent the model of this round
        self._sent = ("", b"")  # the purpose and the model of this round
        self._turns = Turns()

    def goes_on(self, pushed: Sequence[Message]) -> bool:
        """Say whether a push is of the round that the one before it was of."""
        again = any(message.metadata.dst_node_id in self._in_round for message in pushed)
        return not again and self._sent == purpose_of(pushed)

    def begins_round(self, pushed: Sequence[Message]) -> bool:
        """Take note of a push that is to be packed, and say whether it begins a round."""
        if self.goes_on(pushed):
            return False
        self._sent = purpose_of(pushed)
        self._turn += is_training(pushed)
        self._in_round = set()
        return True

    def steps(self, pushed: Sequence[Message]) -> Iterator[Step]:
        """Yield, of each model that clients hold, what that is on average, and what a push has."""
        for key, record in compat.records_in(pushed[0].content, ArrayRecord).items():
            if (held := self._broadcasts.mean(key)) is not None:
                yield held, views_of(record, self.layouts[key])

    def pack(
        self,
        messages: Iterable[Message],
        config: Settings,
        codecs: Mapping[int, str],
        overlaps: bool = False,
    ) -> list[Packed]:
        """Return the messages of a push, packed: once for all clients that are in the same case.

        The messages are not changed; their order changes nothing. ``codecs`` are by node, for those
        that use another codec. If rounds overlap, the model is kept that replies start from.

        What does not train goes exactly in both directions, but for a model that is tested between
        rounds of training: that goes as it would be trained.
        """
        pushed = list(messages)
        trains = is_training(pushed)
        how = config if trains else config.aside
        instructions = Instructions(how, self._turn, run=self._run, trains=trains)
        tests = self._turn > 0 and all(
            message.metadata.message_type.startswith(EVALUATE) for message in pushed
        )
        records = {id(message.content): message.content for message in pushed}
        first, contents = pushed[0].content, dict[tuple[int, int], SentContent]()
        same = all(same_arrays(first, content) for content in records.values())
        everybody = same and (trains or tests)
        ordered = sorted(pushed, key=lambda message: message.metadata.dst_node_id)
        of_nodes = {0: [message.metadata.dst_node_id for message in ordered]}
        if everybody:
            alike = config.not_staggered if overlaps or self._alike else config
            arrays = {k: views_of(x) for k, x in compat.records_in(first, ArrayRecord).items()}
            of_nodes = self._broadcasts.of_nodes(of_nodes[0], arrays, alike, trains=trains)
        for lattice, nodes in of_nodes.items():
            for i, one in records.items():
                if same and (like := contents.get((id(first), lattice))):
                    contents[i, lattice] = like.beside_others(one)
                else:
                    contents[i, lattice] = self._content(
                        one, config, instructions, lattice if everybody else None, keeps=overlaps
                    )
                contents[i, lattice].prepare([self._holds(node) for node in nodes])
        lattices = {node: lattice for lattice, nodes in of_nodes.items() for node in nodes}
        versions: dict[Any, tuple[RecordDict, int]] = {}
        packed: dict[int, Packed] = {}
        for message in ordered:
            node = message.metadata.dst_node_id
            identity = id(message.content), lattices[node]
            content = contents[identity]
            how = content.instructions.config
            unaware = node in self._unaware
            own = codecs.get(node) if how is config else None
            own = codec_told(own) if own and unaware else own
            counted, replied = None, False
            shifts: Mapping[str, bytes] = {}
            if trains and content.broadcasts:
                counted = self._turns.ask(node, self._turn)
                replied = self._turns.has_counted(node)
                shifts = self._shifts.digests(node) if config.learns_shifts else {}
            if own or unaware or counted is not None or replied or shifts:
                how = how.without_history if unaware else how
                how = how.replace(codec=own) if own else how
                told = replace(content.instructions, config=how, counted=counted, shifts=shifts)
                told = replace(told, replied=replied)
                content = replace(content, instructions=told)
            held, seen = self._holds(node), self._seen.get(node, {})
            shown = {
                key: broadcast.history(held.get(key, b""), seen.get(key, b""))
                for key, broadcast in content.broadcasts.items()
                if not unaware
            }
            if histories := {key: history for key, history in shown.items() if history}:
                content = content.showing(histories)
            digests = content.instructions.histories
            of_node = own, unaware, counted, replied
            case = identity, *of_node, *held.items(), *shifts.items(), *digests.items()
            if case not in versions:
                versions[case] = content.version(held)
            version, nbytes = versions[case]
            self._in_round.add(node)
            out = compat.make_message(message.metadata, content=version)
            packed[id(message)] = Packed(out, content, nbytes)
        for content in contents.values():
            content.pack_away()
        return [packed[id(message)] for message in pushed]

    def state(self) -> dict[str, Any]:
        """Return what the next push depends on beside the model in it, as records."""
        told: Any = {"run": self._run, "turn": self._turn, "unaware": sorted(self._unaware)}
        told["uninitiated"] = sorted(self._uninitiated)
        told["without"] = sorted(node for node, held in self._held.items() if not held)
        records: dict[str, Any] = {"packer": ConfigRecord(told), "lost": by_node(times=self._lost)}
        for kind, known in (("held", self._held), ("seen", self._seen)):
            for key in sorted({key for digests in known.values() for key in digests}):
                of = {node: digests[key] for node, digests in known.items() if key in digests}
                records[f"{kind}.{key}"] = by_node(digests=of)
        for node, shifts in self._shifts.state().items():
            records |= {f"shift.{node}.{key}": to_record(dict(x)) for key, x in shifts.items()}
        return records | self._turns.state() | self._broadcasts.state()

    def restore(self, state: Mapping[str, Any], config: Settings) -> None:
        """Go on from what `state` returned, also in another process."""
        parts: dict[str, dict[str, Any]] = {}  # by the first part of a name, then the rest
        for name, record in state.items():
            kind, _, key = name.partition(".")
            parts.setdefault(kind, {})[key] = record
        told = state["packer"]
        self._run, self._turn = told["run"], told["turn"]
        self._unaware = set(told.get("unaware", ()))  # older checkpoints have none,
        self._uninitiated = set(told.get("uninitiated", ()))  # nor these
        self._lost = values_by_node(state["lost"], "times") if "lost" in state else {}
        self._turns.restore(state)
        self._held, self._seen = (digests_in(parts.get(kind, {})) for kind in ("held", "seen"))
        self._held |= {node: {} for node in told.get("without", ())}
        shifts: dict[int, dict[str, Shift]] = {}
        for name, record in parts.get("shift", {}).items():
            node, _, key = name.partition(".")
            shifts.setdefault(int(node), {})[key] = views_of(record)
        self._shifts.restore(shifts)
        self._broadcasts.restore(parts, config)

    def references(self, asked: Asked) -> KnownModels:
        """Return what a reply to a message may be differences from."""
        shifts = self._shifts.of(asked.node)
        return KnownModels(asked.content.by_digest(), tuple(shifts.values()))

    def counted(self, nodes: Iterable[int]) -> None:
        """Note that the last replies of these nodes have gone into the model."""
        known = set(nodes)
        self._turns.counted(known)
        self._shifts.counted(known)

    def end_round(self, nodes: Iterable[int]) -> None:
        """Do as `counted`, and forget what else has come in the round."""
        self.counted(nodes)
        self._shifts.forget_answers()

    def seen(self, node: int, key: str) -> bytes:
        """Return the digest of the history that a node has of a model; b"" of none."""
        return self._seen.get(node, {}).get(key, b"")

    def begin_histories(self) -> None:
        """Begin all histories anew with the next step, for all who hold the model now."""
        self._broadcasts.begin_histories()

    def received(self, asked: Asked) -> None:
        """Note that a node has answered a message, and so holds what was in it.

        But for one that loses what it holds: it has no place to keep it, and may have the first
        model alone.
        """
        node, content = asked.node, asked.content
        if self._lost.get(node, 0) >= FORGETFUL:
            if node not in self._uninitiated:
                self._held.pop(node, None)
        else:
            if self._held.get(node) and content.instructions.trains:
                self._lost.pop(node, None)
            # Evaluation may have a key of its own, and leaves what training has left.
            told = content.instructions
            self._held[node] = {**self._held.get(node, {}), **told.holds}
            seen = {key: told.histories.get(key, b"") for key in told.holds}
            self._seen[node] = {**self._seen.get(node, {}), **seen}

    def admitted(self, asked: Asked, sent: Mapping[str, ArrayRecord], weight: float = 0.0) -> None:
        """Keep what has been sent in a reply that has passed admission until it has `counted`.

        The shift of its sender moves by it then. One that has not coded by the history that it was
        told lacks that, and begins another.
        """
        node, told = asked.node, asked.content.instructions
        if told.trains:
            self._turns.answered(node, told.turn)
            self._broadcasts.weighs(node, weight)
        found = {key: streams_of(record) for key, record in sent.items() if is_sealed(record)}
        streams = {key: each[0] for key, each in found.items() if each}
        if told.trains and told.histories:
            # A client may call its only model otherwise.
            only = len(streams) == len(told.histories) == 1
            own = dict(zip(told.histories, streams.values(), strict=True)) if only else streams
            lacking = [key for key in told.histories if key in own and not _uses_history(own[key])]
            self._seen[node] = {**self._seen.get(node, {}), **dict.fromkeys(lacking, b"")}
        if told.trains and told.config.learns_shifts and told.config.chain:
            models = asked.content.by_digest()
            self._shifts.admitted(node, streams, models, told.config.chain)

    def whole(self, asked: Asked) -> Packed | None:
        """Return a message for one that holds nothing of the model in it; None if that is no help.

        A client that lacks even what it needs no other model for will not be helped by it again.
        """
        node, content = asked.node, asked.content
        if node not in self._held:
            self._uninitiated.add(node)
        self._lost[node] = self._lost.get(node, 0) + bool(self._held.get(node))
        self._held[node], self._seen[node] = {}, {}
        if not content.instructions.holds or not content.is_newest:
            return None  # it is sent the newest before long
        version, nbytes = content.version({})
        content.pack_away()
        message = compat.make_message(copy.copy(asked.metadata), content=version)
        return Packed(message, content, nbytes)

    def without_history(self, asked: Asked) -> Packed | None:
        """Return the message for one whose release cannot code by histories; so are all later ones.

        None if that is no help.
        """
        node, told = asked.node, asked.content.instructions
        rest = told.config.without_history
        if rest == told.config:
            return None
        self._unaware.add(node)
        changes = told.config.codec if rest.update == told.config.update else told.config.update
        lacks = Eigen.name if told.config.uses_history else changes
        logger.warning("node %d has a release without %s: it codes without it", node, lacks)
        told = replace(told, config=rest, histories={})
        content = replace(asked.content, instructions=told, histories={})
        # It may lack the initial model, too, and cannot be asked a third time.
        version, nbytes = content.version(self._held.get(node, {}))
        content.pack_away()
        message = compat.make_message(copy.copy(asked.metadata), content=version)
        return Packed(message, content, nbytes)

    def _holds(self, node: int) -> Mapping[str, bytes]:
        """Return what a node holds, by key, as far as it has not said otherwise."""
        return self._held.get(node, self._broadcasts.initial())

    def _broadcast(self, config: Settings) -> Broadcast:
        about = {"feedback": self._feedback, "shared_initial": self._shared_initial}
        return Broadcast(config, **about, trends=self._trends)

    def _content(
        self,
        content: RecordDict,
        config: Settings,
        told: Instructions,
        lattice: int | None,
        *,
        keeps: bool,
    ) -> SentContent:
        """Return a content as it goes out to clients on a lattice, or to some alone."""
        meant: dict[str, Mapping[str, NDArray]] = {}
        broadcasts: dict[str, Broadcast] = {}
        beside: dict[str, Aside] = {}
        records = compat.records_in(content, ArrayRecord)
        layouts = {key: layout_of(record) for key, record in records.items()}
        small = sum(layout.nbytes for layout in layouts.values()) < LEAST_BYTES
        if small:
            lattice, told = None, replace(told, config=config.aside)
        for key, record in records.items():
            layout = layouts[key]
            if not layout.shapes:
                continue  # nothing that a stream could hold
            if key not in self.layouts or self.layouts[key].shapes != layout.shapes:
                self.layouts[key] = layout
            arrays = views_of(record, self.layouts[key])
            needed = keeps or config.sends_differences or told.trains
            if lattice is not None:
                broadcast, meant[key] = self._broadcasts.put(
                    key, lattice, arrays, config, reference=needed
                )
            else:
                broadcast = Broadcast(config.replace(downlink=EXACT))
                broadcast.put(arrays, reference=needed)
            broadcasts[key], beside[key] = broadcast, aside_of(record)
        models = {key: b.model for key, b in broadcasts.items() if b.model is not None}
        kept = {key: model.digest for key, model in models.items() if not broadcasts[key].exact}
        layouts = {key: self.layouts[key] for key in broadcasts}
        told = replace(told, holds=kept)
        found = SentContent({}, broadcasts, models, layouts, beside, told, meant=meant)
        return found.beside_others(content)


def _uses_history(stream: bytes) -> bool:
    """Say whether anything in a stream is coded by a history of broadcasts."""
    return any(chain.text.startswith(f"{Eigen.name}:") for chain in Reader(stream).header.chains)
