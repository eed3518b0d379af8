"""Messages on their way out: arrays sealed, orders put beside them, each client's own version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from flwr.app import Message, Metadata, RecordDict

from fedsz import flower_compat as compat
from fedsz.bounds import ErrorBound
from fedsz.flower.broadcast import Downlink
from fedsz.flower.instructions import Orders
from fedsz.flower.records import (
    KEY,
    Arrays,
    Template,
    array_records,
    sealed,
    streams_of,
    template_of,
)
from fedsz.update.config import EXACT, Settings
from fedsz.update.reference import Reference
from fedsz.update.step_spread import spread

TRAIN: Final = "train"  # how the types of messages begin whose replies go into the average


@dataclass(frozen=True)
class Packed:
    """A message as it goes out.

    Attributes:
        message: with its arrays sealed.
        raw_bytes, sent_bytes: of these arrays, before and after.
    """

    message: Message
    raw_bytes: int
    sent_bytes: int


class Outbox:
    """Packs what a Grid sends, and remembers which client holds what.

    A model that a push sends to everybody is a step of one `Downlink`. Where a push holds different
    models, for different clients, each goes out exactly.

    Args:
        bound, feedback: see `Downlink`.

    Attributes:
        templates: the models last sent, by the keys of their ArrayRecords.
        references: what replies to the last push may be differences from, by digest.
        bound: of the models sent, or "exact".
    """

    def __init__(self, bound: str = EXACT, *, feedback: bool = True) -> None:
        self.templates: dict[str, Template] = {}
        self.references: dict[bytes, Reference] = {}
        self._feedback = feedback
        self._downlinks: dict[str, Downlink] = {}
        self._turn = 0
        self._held: dict[int, Mapping[str, bytes]] = {}  # by node, then key: as replies have shown
        self._out: dict[int, tuple[Metadata, _Content]] = {}  # by node: of the last push
        self.steer(bound)

    def steer(self, bound: str) -> None:
        """Send models within another bound from now on.

        Raises:
            ConfigError: it is none.
        """
        self.bound = bound if bound == EXACT else str(ErrorBound.of(bound))

    def spread(
        self, messages: Iterable[Message], settings: Settings
    ) -> dict[str, tuple[int, float]]:
        """Return the spread of the step from what clients hold to what these messages do."""
        found: dict[str, tuple[int, float]] = {}
        for key, record in array_records(next(iter(messages)).content).items():
            downlink = self._downlinks.get(key)
            held = downlink.model if downlink else None
            if held is not None:
                arrays = Arrays(record, self.templates[key])
                found |= spread(
                    held.arrays, arrays, rule=settings.rule, threshold=settings.threshold
                )
        return found

    def pack(
        self, messages: Iterable[Message], orders: Orders, codecs: Mapping[int, str]
    ) -> list[Packed]:
        """Return the messages of a push, packed: once for all clients that are in the same case.

        Args:
            messages: not changed.
            orders: for all clients.
            codecs: by node, for those that use another codec.
        """
        pushed = list(messages)
        self._turn += is_training(pushed)
        orders = replace(orders, turn=self._turn)
        self.references, self._out = {}, {}
        records = {id(message.content): message.content for message in pushed}
        contents = {
            identity: self._content(content, orders, everybody=len(records) == 1)
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
            self._held[node] = self._out[node][1].orders.holds

    def whole(self, node: int) -> Packed | None:
        """Return what a node was last sent, for one that holds nothing of it; None at second call.

        A client that lacks even what it needs no other model for will not be helped by it again.
        """
        self._held.pop(node, None)
        metadata, content = self._out.get(node, (None, None))
        if metadata is None or content is None or not content.orders.holds:
            return None
        del self._out[node]
        version, nbytes = content.version({})
        content.pack_away()
        message = compat.make_message(metadata, content=version)
        return Packed(message, content.raw_bytes, nbytes)

    def _content(self, content: RecordDict, orders: Orders, *, everybody: bool) -> _Content:
        downlinks = {}
        for key, record in array_records(content).items():
            template = template_of(record)
            if key not in self.templates or self.templates[key].shapes != template.shapes:
                self.templates[key] = template
            if everybody:
                downlink = self._downlinks.get(key)
                if downlink is None:
                    downlink = Downlink(orders.settings, self.bound, feedback=self._feedback)
                    self._downlinks[key] = downlink
                downlink.steer(orders.settings, self.bound)
            else:
                downlink = Downlink(orders.settings)
            downlink.put(Arrays(record, self.templates[key]), reference=orders.differences)
            downlinks[key] = downlink
            if downlink.model is not None:
                self.references[downlink.model.digest] = downlink.model
        kept = {
            key: downlink.model.digest
            for key, downlink in downlinks.items()
            if downlink.model is not None and not downlink.exact
        }
        rest = {k: v for k, v in content.items() if k not in downlinks and k != KEY}
        return _Content(rest, downlinks, replace(orders, holds=kept))


def is_training(messages: Iterable[Message]) -> bool:
    """Say whether the replies to these messages go into an average."""
    return any(message.metadata.message_type.startswith(TRAIN) for message in messages)


@dataclass(frozen=True)
class _Content:
    """What messages of one RecordDict hold.

    Attributes:
        rest: its records without arrays.
        downlinks: those of its arrays, by their keys.
        orders: for those who receive it.
    """

    rest: Mapping[str, Any]
    downlinks: Mapping[str, Downlink]
    orders: Orders

    @property
    def raw_bytes(self) -> int:
        return sum(downlink.raw_bytes for downlink in self.downlinks.values())

    def with_codec(self, codec: str) -> _Content:
        """Return the same for a client that is to use another codec."""
        settings = replace(self.orders.settings, codec=codec)
        return replace(self, orders=replace(self.orders, settings=settings))

    def version(self, held: Mapping[str, bytes]) -> tuple[RecordDict, int]:
        """Return it for a client that holds these models, by key; and the bytes of its streams."""
        records = {
            key: sealed(downlink.streams(held.get(key, b"")))
            for key, downlink in self.downlinks.items()
        }
        nbytes = sum(len(s) for record in records.values() for s in streams_of(record))
        return RecordDict({**self.rest, **records, KEY: self.orders.record()}), nbytes

    def pack_away(self) -> None:
        """Free what only a first version needs."""
        for downlink in self.downlinks.values():
            downlink.pack_away()
