"""What messages of one RecordDict hold, and the versions of it for clients that hold some of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flwr.app import RecordDict

from fedsz import codecs
from fedsz.arrays import Layout, NDArray
from fedsz.codecs import Raw
from fedsz.core.broadcast import Broadcast
from fedsz.core.lossless import BITS_CODEC
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference
from fedsz.flower.differential_privacy import clipping_norm
from fedsz.flower.records import KEY, Aside, plain_bytes, sealed, to_record, with_aside
from fedsz.flower_compat import RECORD_KEY_CONFIGS, make_note
from fedsz.methods import History, texts_sent, with_history
from fedsz.shelf import Parked
from fedsz.transport.messages import most_fields_of
from fedsz.transport.replies import StreamedRequest

# What encoders fall back to, whatever codecs they are told to use.
CODECS_OF_FALLBACKS: Final = (Raw.name, BITS_CODEC.name)


@dataclass(frozen=True)
class SentContent:
    """What messages of one RecordDict hold: the model by its keys, and all else."""

    others: Mapping[str, Any]
    broadcasts: Mapping[str, Broadcast]
    models: Mapping[str, Reference]  # that its receivers hold
    layouts: Mapping[str, Layout]
    beside: Mapping[str, Aside]
    instructions: Instructions
    histories: Mapping[str, History] = field(default_factory=dict)  # of one receiver
    # By key, tensors that its receivers' steps count from in place of what they hold.
    meant: Mapping[str, Mapping[str, NDArray]] = field(default_factory=dict)

    @property
    def is_newest(self) -> bool:
        """Whether its broadcasts have not gone on to later models."""
        return all(self.broadcasts[key].model is model for key, model in self.models.items())

    @property
    def raw_bytes(self) -> int:
        """Size of its models."""
        return sum(broadcast.raw_bytes for broadcast in self.broadcasts.values())

    def by_digest(self, key: str = "") -> dict[bytes, Reference]:
        """Return its models, by their digests, with what broadcasts have shown on the way to them.

        Of equal models, that of ``key`` counts.
        """
        keys = sorted(self.models, key=lambda other: other == key)
        models = (self.models[k].with_history(self.histories.get(k)) for k in keys)
        return {model.digest: model for model in models}

    @property
    def codecs(self) -> frozenset[str]:
        """The names of the codecs that replies may use, and the texts of chains."""
        config = self.instructions.config
        allowed = {codecs.parse(text).name for text in (config.codec, config.lossless)}
        chains: set[str] = set()
        if config.chain:
            for history in (None, *self.histories.values()):  # a client may lack it
                chains |= texts_sent(with_history(config.chain, history))
        return frozenset(allowed.union(CODECS_OF_FALLBACKS, chains))

    @property
    def drawn(self) -> tuple[int, int] | None:
        """The seed and the round that chains of replies draw from; None if they draw nothing."""
        told = self.instructions
        return (told.seed, told.turn) if told.config.chain else None

    @property
    def clipping_norm(self) -> float | None:
        """What updates are to be clipped to, if so."""
        return clipping_norm(self.others)

    @property
    def masks(self) -> bool:
        """Whether clients are to mask their updates, which are no arrays then."""
        return RECORD_KEY_CONFIGS in self.others

    def beside_others(self, content: RecordDict) -> SentContent:
        """Return the same for a message whose records without arrays are those of ``content``."""
        others = {k: v for k, v in content.items() if k not in self.broadcasts and k != KEY}
        return replace(self, others=others)

    def showing(self, histories: Mapping[str, History]) -> SentContent:
        """Return the same for a client that has these histories, by key, once it has it."""
        told = replace(self.instructions, histories={k: h.digest for k, h in histories.items()})
        return replace(self, instructions=told, histories=histories)

    def prepare(self, helds: Iterable[Mapping[str, bytes]]) -> None:
        """Code what clients lack that hold these models, by key."""
        known = list(helds)
        for key, broadcast in self.broadcasts.items():
            broadcast.prepare(held[key] for held in known if key in held)

    def version(self, held: Mapping[str, bytes]) -> tuple[RecordDict, int]:
        """Return it for a client that holds these models, by key; and the bytes of its streams."""
        records, parked, nbytes = {}, dict[tuple[str, str], Parked](), 0
        for key, broadcast in self.broadcasts.items():
            streams = broadcast.streams(held.get(key, b""))
            record = sealed([bytes(stream[:]) for stream in streams], self.beside[key])
            size = sum(map(len, streams))
            # A few dozen bytes grow when they are compressed: they go as they are.
            if broadcast.model is not None and size > broadcast.raw_bytes:
                plain = to_record(dict(broadcast.model.arrays))
                if plain_bytes(plain, plain) <= size:
                    record, size = with_aside(plain, self.beside[key]), broadcast.raw_bytes
                    streams = []
            parked |= {
                (key, name): stream
                for name, stream in zip(record, streams, strict=False)
                if isinstance(stream, Parked)
            }
            records[key], nbytes = record, nbytes + size
        told = make_note(self.instructions.written())
        request = StreamedRequest({**self.others, **records, KEY: told})
        request.reply_fields, request.parked = self._reply_fields, parked
        return request, nbytes

    @property
    def _reply_fields(self) -> int:
        """How many fields a reply may have: for as many tensors as its models, and some more."""
        tensors = sum(len(layout.shapes) for layout in self.layouts.values())
        return most_fields_of(tensors + sum(map(len, self.beside.values())))

    def pack_away(self) -> None:
        """Free what only a first version needs."""
        for broadcast in self.broadcasts.values():
            broadcast.pack_away()
