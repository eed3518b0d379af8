"""Messages on their way out: arrays sealed, instructions added, each client's own version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from flwr.app import Message, Metadata, RecordDict

from fedsz import flower_compat as compat
from fedsz.arrays import Layout
from fedsz.flower.broadcast import Broadcast
from fedsz.flower.instructions import Instructions
from fedsz.flower.records import KEY, Arrays, layout_of, sealed, streams_of
from fedsz.transport.replies import StreamedRequest
from fedsz.update.config import EXACT, CompressionConfig
from fedsz.update.lossy import step_spread
from fedsz.update.reference import Reference

TRAIN: Final = "train"  # how the types of messages begin whose replies go into the average


@dataclass(frozen=True)
class Packed:
    """A message as it goes out, and the bytes of its arrays before and after."""

    message: Message
    raw_bytes: int
    sent_bytes: int


class Packer:
    """Packs what a Grid sends, and remembers which client holds what.

    A model that a push sends to everybody is a step of one `Broadcast`. Where a push holds
    different models, for different clients, each goes out exactly.

    Attributes:
        layouts: of the models last sent, by the keys of their ArrayRecords.
        references: what replies to the last push may be differences from, by digest.
    """

    def __init__(self, *, feedback: bool = True) -> None:
        self.layouts: dict[str, Layout] = {}
        self.references: dict[bytes, Reference] = {}
        self._feedback = feedback
        self._broadcasts: dict[str, Broadcast] = {}
        self._turn = 0
        self._held: dict[int, Mapping[str, bytes]] = {}  # by node, then key: as replies have shown
        self._out: dict[int, tuple[Metadata, _Content]] = {}  # by node: of the last push

    def spread(
        self, messages: Iterable[Message], config: CompressionConfig
    ) -> dict[str, tuple[int, float]]:
        """Return the spread of the step from what clients hold to what these messages do."""
        found: dict[str, tuple[int, float]] = {}
        for key, record in next(iter(messages)).content.array_records.items():
            broadcast = self._broadcasts.get(key)
            held = broadcast.model if broadcast else None
            if held is not None:
                arrays = Arrays(record, self.layouts[key])
                found |= step_spread(
                    held.arrays, arrays, rule=config.rule, threshold=config.threshold
                )
        return found

    def pack(
        self, messages: Iterable[Message], config: CompressionConfig, codecs: Mapping[int, str]
    ) -> list[Packed]:
        """Return the messages of a push, packed: once for all clients that are in the same case.

        The messages are not changed. ``codecs`` are by node, for those that use another codec.
        """
        pushed = list(messages)
        self._turn += is_training(pushed)
        told = Instructions(config, self._turn)
        self.references, self._out = {}, {}
        records = {id(message.content): message.content for message in pushed}
        contents = {
            identity: self._content(content, told, everybody=len(records) == 1)
            for identity, content in records.items()
        }
        versions: dict[Any, tuple[RecordDict, int]] = {}
        packed = []
        for message in pushed:
            node, identity = message.metadata.dst_node_id, id(message.content)
            content = contents[identity]
            if node in codecs:
                content = content.with_codec(codecs[node])
            held = self._held.get(node, {})
            case = identity, codecs.get(node), tuple(held.items())
            if case not in versions:
                versions[case] = content.version(held)
            version, nbytes = versions[case]
            # Of two messages to a node, the last: what the other's reply lacks, its round lacks.
            self._out[node] = message.metadata, content
            out = compat.make_message(message.metadata, content=version)
            packed.append(Packed(out, content.raw_bytes, nbytes))
        for content in contents.values():
            content.pack_away()
        return packed

    def received(self, node: int) -> None:
        """Note that a node has answered the last push, and so holds what was in it."""
        if node in self._out:
            self._held[node] = self._out[node][1].instructions.holds

    def whole(self, node: int) -> Packed | None:
        """Return what a node was last sent, for one that holds nothing of it; None at second call.

        A client that lacks even what it needs no other model for will not be helped by it again.
        """
        self._held.pop(node, None)
        if node not in self._out or not self._out[node][1].instructions.holds:
            return None
        metadata, content = self._out.pop(node)
        version, nbytes = content.version({})
        content.pack_away()
        message = compat.make_message(metadata, content=version)
        return Packed(message, content.raw_bytes, nbytes)

    def _content(self, content: RecordDict, told: Instructions, *, everybody: bool) -> _Content:
        broadcasts, kept = {}, {}
        for key, record in content.array_records.items():
            layout = layout_of(record)
            if key not in self.layouts or self.layouts[key].shapes != layout.shapes:
                self.layouts[key] = layout
            if everybody:
                if key not in self._broadcasts:
                    self._broadcasts[key] = Broadcast(told.config, feedback=self._feedback)
                broadcast = self._broadcasts[key]
                broadcast.steer(told.config)
            else:
                broadcast = Broadcast(told.config.replace(downlink=EXACT))
            arrays = Arrays(record, self.layouts[key])
            broadcast.put(arrays, reference=told.config.sends_differences)
            broadcasts[key] = broadcast
            if broadcast.model is not None:
                self.references[broadcast.model.digest] = broadcast.model
                if not broadcast.exact:
                    kept[key] = broadcast.model.digest
        others = {k: v for k, v in content.items() if k not in broadcasts and k != KEY}
        return _Content(others, broadcasts, replace(told, holds=kept))


def is_training(messages: Iterable[Message]) -> bool:
    """Say whether the replies to these messages go into an average."""
    return any(message.metadata.message_type.startswith(TRAIN) for message in messages)


@dataclass(frozen=True)
class _Content:
    """What messages of one RecordDict hold: the model by its keys, and all else."""

    others: Mapping[str, Any]
    broadcasts: Mapping[str, Broadcast]
    instructions: Instructions

    @property
    def raw_bytes(self) -> int:
        return sum(broadcast.raw_bytes for broadcast in self.broadcasts.values())

    def with_codec(self, codec: str) -> _Content:
        """Return the same for a client that is to use another codec."""
        told = self.instructions
        return replace(self, instructions=replace(told, config=told.config.replace(codec=codec)))

    def version(self, held: Mapping[str, bytes]) -> tuple[RecordDict, int]:
        """Return it for a client that holds these models, by key; and the bytes of its streams."""
        records = {
            key: sealed(broadcast.streams(held.get(key, b"")))
            for key, broadcast in self.broadcasts.items()
        }
        nbytes = sum(len(s) for record in records.values() for s in streams_of(record))
        told = self.instructions.record()
        return StreamedRequest({**self.others, **records, KEY: told}), nbytes

    def pack_away(self) -> None:
        """Free what only a first version needs."""
        for broadcast in self.broadcasts.values():
            broadcast.pack_away()
