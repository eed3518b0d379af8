"""Messages on their way out: models encoded once for all clients that hold the same reference."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from flwr.app import ArrayRecord, Message, Metadata, RecordDict

from fedsz import codecs
from fedsz import flower_compat as compat
from fedsz.arrays import Layout, NDArray
from fedsz.codecs import Raw
from fedsz.control.record import Decision
from fedsz.core.broadcast import Broadcast, BroadcastState
from fedsz.core.protocol import ReplyNote, Request
from fedsz.core.reference import Reference
from fedsz.core.settings import EXACT, LEAST_BYTES, Settings
from fedsz.core.tensors import BITS_CODEC
from fedsz.flower.differential_privacy import clipping_norm, under_privacy
from fedsz.flower.records import (
    EVALUATE,
    SECURE,
    TRAIN,
    bytes_of_arrays,
    is_training,
    layout_of,
    passthrough_of,
    replaced,
    same_arrays,
    sealed,
    to_record,
    views_of,
)
from fedsz.transport.grid_base import StreamedRequest
from fedsz.transport.message_format import reply_head

# Codecs that encoders fall back to, whatever the settings.
FALLBACKS: Final = (Raw.name, BITS_CODEC.name)

MOST_CLIENTS: Final = 1 << 16  # that a server remembers


@dataclass(frozen=True)
class SentModel:
    """One model of a message.

    Attributes:
        model: the server's own, in the dtypes of the first one.
        reference: as its receivers hold it.
        broadcast: encodes it.
    """

    model: Mapping[str, NDArray]
    reference: Reference
    broadcast: Broadcast

    @property
    def is_newest(self) -> bool:
        """Whether its broadcast has not gone on to a later model."""
        return self.broadcast.reference is self.reference


@dataclass(eq=False)
class OpenRequest:
    """A message that is out: one node, the models in it, and one outcome.

    Attributes:
        message: the app's own; its node and its type are those that the outcome belongs to.
        models: by the keys of its ArrayRecords.
        request: what it asks of the client; None of a message that passes as it is.
        streamed: whether the app takes replies as they come, still encoded.
        bases: by key, the digest of the model that the client was taken to hold.
        sent: metadata of the message that went out last.
        message_id: by which the app asks for the reply; "" where it has not pushed the message.
        inner_id: by which the inner Grid knows the message that went out last.
        retried: whether it was sent a second time.
    """

    message: Message
    models: Mapping[str, SentModel]
    request: Request | None
    streamed: bool = False
    bases: dict[str, bytes] = field(default_factory=dict)
    sent: Metadata | None = None
    message_id: str = ""
    inner_id: str = ""
    retried: bool = False

    @property
    def node(self) -> int:
        """The node that was asked."""
        return self.message.metadata.dst_node_id

    @property
    def trains(self) -> bool:
        """Whether the reply goes into an average."""
        return self.message.metadata.message_type.startswith(TRAIN)

    @property
    def evaluates(self) -> bool:
        """Whether the reply has metrics of the model."""
        return self.message.metadata.message_type.startswith(EVALUATE)

    @property
    def clipping_norm(self) -> float | None:
        """The norm that updates are to be clipped to, if so."""
        return clipping_norm(self.message.content) if self.trains else None

    @property
    def codecs(self) -> frozenset[str]:
        """The names of the codecs that replies may use, and the texts of pipelines."""
        if self.request is None:
            return frozenset()
        settings = self.request.settings
        names = {codecs.parse(text).name for text in (settings.codec, settings.lossless)}
        texts = {str(settings.pipeline.sent)} if settings.pipeline else set()
        return frozenset(names.union(FALLBACKS, texts))

    @property
    def drawn(self) -> tuple[int, int] | None:
        """The seed and the round that pipelines of replies draw from; None if they draw nothing."""
        request = self.request
        pipeline = request is not None and request.settings.pipeline
        return (request.seed, request.round) if request and pipeline else None

    @property
    def raw_bytes(self) -> int:
        """Size of its models."""
        return sum(sent.reference.nbytes for sent in self.models.values())

    def own(self, reply: Message) -> None:
        """Make a reply's metadata say what was asked, whatever its sender has written."""
        asked = self.message.metadata
        if not asked.message_id and self.sent is not None:
            # As Flower's Grids name the messages that they are given.
            asked.__dict__["_message_id"] = self.message_id or self.sent.message_id
        reply.metadata.__dict__.update(
            _src_node_id=self.node,
            _dst_node_id=asked.src_node_id,
            _reply_to_message_id=self.message_id or asked.message_id,
            _message_type=asked.message_type,
            _group_id=asked.group_id,
        )


class KnownClient(msgspec.Struct):
    """What a server knows of a node.

    Attributes:
        digests: by key, of the reference models that it holds.
        stateless: whether it did not have them when it was last asked: it is sent key frames.
    """

    digests: dict[str, bytes]
    stateless: bool = False


class SenderState(msgspec.Struct):
    """What the next message depends on beside the arrays of models."""

    run: bytes
    round: int
    clients: dict[int, KnownClient]
    broadcasts: dict[str, BroadcastState]


class Sender:
    """Encodes the messages of a Grid, and knows which client holds which reference model.

    A model that a push sends to all its nodes is a step of one `Broadcast`. Where a push holds
    different models, for different clients, each goes out exactly.

    Args:
        shared_initial: whether clients may have the first model from the start.
        seed: of the methods' random numbers, 0 to 2^64 - 1; None for another in each run.

    Attributes:
        round: counts rounds of training.
        layouts: of the first models sent, by the keys of their ArrayRecords.
    """

    def __init__(self, *, shared_initial: bool = False, seed: int | None = None) -> None:
        self._shared_initial = shared_initial
        drawn = b"" if seed is None else seed.to_bytes(8, "little")
        self._seed = drawn
        self.begin_run()
        self.round = 0
        self.layouts: dict[str, Layout] = {}
        self._clients: dict[int, KnownClient] = {}
        self._broadcasts: dict[str, Broadcast] = {}

    def begin_run(self) -> None:
        """Have another run from now on: residuals of clients are of the one before, and go."""
        self._run = self._seed + secrets.token_bytes(8)  # it begins with `Request.seed`

    def open(
        self, messages: Sequence[Message], decision: Decision, base: Settings, *, streamed: bool
    ) -> list[OpenRequest]:
        """Return the requests of a push, in its order. The messages are not changed.

        Args:
            messages: all of one type.
            decision: how they are sent.
            base: the settings that the user has named.
            streamed: whether replies are taken as they come.
        """
        first, trains = messages[0].content, is_training(messages)
        evaluates = messages[0].metadata.message_type.startswith(EVALUATE)
        contents = {id(message.content): message.content for message in messages}
        same = all(same_arrays(first, content) for content in contents.values())
        shared = same and (trains or evaluates)
        settings = decision.config
        if trains:
            settings = under_privacy(settings, base, first)
        published: dict[int, dict[str, SentModel]] = {}
        for i, content in contents.items():
            if not (same and published):
                published[i] = self._publish(content, settings, shared=shared)
            else:
                published[i] = published[id(first)]
        reply_settings = settings if trains else settings.lossless_only
        opened = []
        for message in messages:
            models = published[id(message.content)]
            node, request = message.metadata.dst_node_id, None
            nbytes = sum(sent.reference.nbytes for sent in models.values())
            if models and (nbytes >= LEAST_BYTES or SECURE in first):  # whose clients need one
                known = self._clients.get(node)
                own = decision.codecs.get(str(node)) if trains else None
                asked = reply_settings.replace(codec=own) if own else reply_settings
                if known and known.stateless:
                    asked = asked.without_feedback
                kept = {k: s.reference.digest for k, s in models.items() if not s.broadcast.exact}
                request = Request(
                    run=self._run,
                    round=self.round,
                    trains=trains,
                    base={},
                    reference=kept,
                    settings=asked,
                )
            one = OpenRequest(message, models, request, streamed=streamed)
            one.bases = self._bases(one)
            opened.append(one)
        return opened

    def _publish(
        self, content: RecordDict, settings: Settings, *, shared: bool
    ) -> dict[str, SentModel]:
        """Return the models of a content as clients will hold them.

        Those that are too small for streams go as they are, so they are their own reference.
        """
        found: dict[str, dict[str, NDArray]] = {}
        for key, record in compat.records_in(content, ArrayRecord).items():
            layout = layout_of(record)
            if not layout.shapes:
                continue  # nothing that a stream could hold
            if key not in self.layouts or self.layouts[key].shapes != layout.shapes:
                self.layouts[key] = layout
            found[key] = views_of(record, self.layouts[key])
        nbytes = sum(x.nbytes for arrays in found.values() for x in arrays.values())
        models = {}
        for key, arrays in found.items():
            if shared and nbytes >= LEAST_BYTES:
                broadcast = self._broadcasts.setdefault(
                    key, Broadcast(shared_initial=self._shared_initial)
                )
                known = {client.digests.get(key, b"") for client in self._clients.values()}
                reference = broadcast.publish(arrays, settings, known)
            else:
                broadcast = Broadcast()
                reference = broadcast.publish(arrays, settings.replace(downlink=EXACT))
            # The same arrays, if the model was published before: steps are not put onto equal ones.
            own = reference.arrays if broadcast.exact else arrays
            models[key] = SentModel(own, reference, broadcast)
        return models

    def _bases(self, asked: OpenRequest) -> dict[str, bytes]:
        """Return the digests of the models that a node is taken to hold, by key."""
        known = self._clients.get(asked.node)
        if known is None:
            initial = {key: sent.broadcast.initial for key, sent in asked.models.items()}
            return {key: digest for key, digest in initial.items() if digest}
        return {} if known.stateless else dict(known.digests)

    def encode(self, opened: Iterable[OpenRequest]) -> list[tuple[Message, int]]:
        """Return the messages to send and the bytes of their arrays; equal ones are one object."""
        versions: dict[Any, tuple[RecordDict, int]] = {}
        encoded = []
        for asked in opened:
            how = asked.request.settings if asked.request else None
            differs = how and (how.codec, how.update, how.error_bound)
            case = id(asked.message.content), tuple(asked.bases.items()), differs
            if case not in versions:
                versions[case] = _encoded(asked)
            content, nbytes = versions[case]
            message = compat.make_message(copy.copy(asked.message.metadata), content=content)
            message.metadata.__dict__["_message_id"] = ""  # an app may send a Message again
            asked.sent = message.metadata
            encoded.append((message, nbytes))
        return encoded

    def key_frame(self, asked: OpenRequest) -> bool:
        """Have a request sent again, to a client that holds no model; False if that is no help."""
        if asked.retried or not all(sent.is_newest for sent in asked.models.values()):
            return False
        asked.bases, asked.retried = {}, True
        return True

    def received(self, asked: OpenRequest, note: ReplyNote | None) -> None:
        """Take note that a node has received the models of a request, and of what it had before.

        Args:
            asked: the request.
            note: beside the reply, if it has one.
        """
        if asked.request is None:
            return
        known = self._clients.setdefault(asked.node, KnownClient({}))
        while len(self._clients) > MOST_CLIENTS:
            self._clients.pop(next(iter(self._clients)))
        if note is not None:
            # A client that a resumed server asks again has the model of the request already.
            known.stateless = any(
                note.had.get(key) not in (digest, asked.request.reference.get(key))
                for key, digest in known.digests.items()
                if key in asked.models
            )
        known.digests = {**known.digests, **asked.request.reference}

    def state(self) -> tuple[bytes, dict[str, Any]]:
        """Return what the next push depends on: as bytes, and the arrays of models as records."""
        records: dict[str, Any] = {}
        states: dict[str, BroadcastState] = {}
        for key, broadcast in self._broadcasts.items():
            if (found := broadcast.state()) is not None:
                states[key], reference, model = found
                records[f"reference.{key}"] = to_record(dict(reference))
                records[f"model.{key}"] = to_record(dict(model))
        state = SenderState(self._run, self.round, self._clients, states)
        return msgspec.msgpack.encode(state), records

    def restore(self, data: bytes, records: Mapping[str, Any], settings: Settings) -> None:
        """Go on from what `state` returned, also in another process."""
        state = msgspec.msgpack.decode(data, type=SenderState)
        self._run, self.round, self._clients = state.run, state.round, state.clients
        for key, of in state.broadcasts.items():
            broadcast = self._broadcasts[key] = Broadcast(shared_initial=self._shared_initial)
            reference, model = (views_of(records[f"{n}.{key}"]) for n in ("reference", "model"))
            broadcast.restore(of, reference, model, settings)
            self.layouts[key] = Layout.of(model)


def _encoded(asked: OpenRequest) -> tuple[RecordDict, int]:
    """Return the content of a message for a client with some models, and its arrays' size."""
    content, request = asked.message.content, asked.request
    arrays = compat.records_in(content, ArrayRecord)
    if request is None:
        return content, bytes_of_arrays(content)
    records: dict[str, ArrayRecord] = {}
    base: dict[str, bytes] = {}
    nbytes = 0
    for key, sent in asked.models.items():
        stream = sent.broadcast.since(asked.bases[key]) if key in asked.bases else None
        if stream is None:
            stream = sent.broadcast.key_frame()
        else:
            base[key] = asked.bases[key]
        records[key] = sealed(stream, passthrough_of(arrays[key]))
        nbytes += len(stream)
    note = msgspec.structs.replace(request, base=base).encode()
    streamed = StreamedRequest(compat.data_of(replaced(content, records, note)))
    tensors = sum(len(sent.reference.arrays) for sent in asked.models.values())
    streamed.reply_head = reply_head(tensors + sum(map(len, records.values())))
    return streamed, nbytes
