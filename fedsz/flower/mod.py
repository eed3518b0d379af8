"""The client side: training code that does not know it is being compressed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable

from fedsz import flower_compat as compat
from fedsz import plugins
from fedsz.arrays import StateDict
from fedsz.core.client import ClientSession
from fedsz.core.protocol import Request
from fedsz.core.settings import LEAST_BYTES
from fedsz.errors import ConfigError, NeedsKeyFrame, RefusedRequest
from fedsz.flower.differential_privacy import adds_noise, asks_noise
from fedsz.flower.guard import ClientGuard
from fedsz.flower.records import (
    KEY,
    is_sealed,
    layout_of,
    note_of,
    passthrough_of,
    replaced,
    sealed,
    stream_of,
    to_record,
    views_of,
    with_passthrough,
)
from fedsz.flower.store import ContextStore, FolderStore
from fedsz.safetensors_file import INITIAL, read_safetensors
from fedsz.stream import Limits
from fedsz.threads import allow

logger = logging.getLogger(__name__)

# How error replies begin of a client that lacks the model that a delta starts from.
NEEDS_KEY_FRAME: Final = "fedsz: key frame needed"

Store = ContextStore | FolderStore


class FedSZMod:
    """A Flower mod that unpacks the model of a `FedSZGrid` and compresses the app's reply.

    The server chooses codec, error bound and all else and sends them with every message; a message
    from a server without `FedSZGrid` passes through as it is, and so does its reply.

    Put it first among the mods: those after it see plain arrays.

    Args:
        initial: the model that training starts from, where this client has it: a .safetensors file,
            or a function that returns a state_dict. A `FedSZGrid` with ``shared_initial`` and a
            downlink that is not exact names its first model and does not send it. A client that
            has another, or none, says so, logs a warning, and is sent it in the same round.
        state_dir: a folder for the client's state: its reference model and its residual. Without
            one they are in Flower's Context, which a SuperNode forgets when it restarts, and which
            must stay below 2 GiB. Clients of one process, with a "partition-id" in their
            node_config, have a folder each in it.
        threads: that may code tensors at a time, 0 for one on each core; None for as many as the
            caller may use: one, unless `fedsz.threads.allow` says otherwise.
        secure: what this client asks of secure sums, and its limits; see `SecureMember`.

    Examples:
        >>> from flwr.clientapp import ClientApp
        >>> from fedsz.flower import FedSZMod
        >>> app = ClientApp(mods=[FedSZMod()])
    """

    def __new__(cls, initial: Any = None, *_: Any, **__: Any) -> Self:
        """Refuse to be called as a mod is, which happens where the class is given as one."""
        if isinstance(initial, Message):
            raise ConfigError(f"mods has the class {cls.__name__}: write {cls.__name__}()")
        return super().__new__(cls)

    def __init__(
        self,
        initial: str | Path | Callable[[], StateDict] | None = None,
        *,
        state_dir: str | Path | None = None,
        threads: int | None = None,
        secure: ClientGuard | None = None,
    ) -> None:
        self._initial, self._threads = initial, threads
        self._state_dir = None if state_dir is None else Path(state_dir)
        self._guard: ClientGuard = secure or plugins.client_guard()

    def initial_model(self, message: Message, context: Context) -> StateDict | None:  # noqa: ARG002
        """Return the model that training starts from, if it is here; subclasses may know it."""
        if callable(self._initial):
            return self._initial()
        return None if self._initial is None else read_safetensors(Path(self._initial), INITIAL)

    def limits(self, message: Message, context: Context) -> Limits:  # noqa: ARG002
        """Return what all streams of a message may ask for together; subclasses know the model."""
        return Limits()

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Run the rest of the app on plain arrays.

        Raises:
            CodecUnavailable: this machine lacks the codec that the server chose.
            CorruptStream: the message's stream is damaged.
            DivergedUpdate: training made NaN or infinities of a finite tensor. The reply is an
                error then, and the residual is forgotten.
            RefusedRequest: the client trains for secure sums only, or this is not one.
        """
        with allow(self._threads), ContextStore(context) as ours:
            if self._state_dir is None:
                return self._answer(message, context, call_next, ours)
            own = context.node_config.get("partition-id", "client")
            with FolderStore(self._state_dir / str(own)) as store:
                return self._answer(message, context, call_next, store)

    def _answer(
        self, message: Message, context: Context, call_next: ClientAppCallable, store: Store
    ) -> Message:
        asked = self._guard.request_in(message)
        if asked is not None and not compat.records_in(message.content, ArrayRecord):
            return self._guard.answer(asked, message, store.records)
        call_next = self._guard.guarded(message, call_next, store.records)
        # Before hours of training, not after: the codec may be missing here.
        note = note_of(message.content) if message.has_content() else None
        if note is None:
            if asked is not None:
                raise RefusedRequest("a secure sum of a model without a request of fedsz")
            return self._without_grid(message, context, call_next, store)
        request = Request.decode(note)
        session = ClientSession(
            request,
            store,
            sender=context.node_id % (1 << 64),
            initial=partial(self.initial_model, message, context),
            limits=self._limits_of(message, context),
        )
        try:
            plain = _received(message, session, store)
        except NeedsKeyFrame as err:
            way = "" if self._state_dir else "; FedSZMod(state_dir=DIR) keeps large models"
            logger.warning("the server sends the whole model: %s%s", err, way)
            code = compat.ErrorCode.MOD_FAILED_PRECONDITION
            return Message(Error(code, f"{NEEDS_KEY_FRAME}: {err}"), reply_to=message)
        return self._trained(message, context, call_next, store, session, plain, asked)

    def _trained(
        self,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
        store: Store,
        session: ClientSession,
        plain: dict[str, ArrayRecord],
        asked: ConfigRecord | None,
    ) -> Message:
        """Return the app's reply to plain arrays, compressed; or the reply that was kept."""
        request, noised = session.request, asks_noise(message.content)
        identity = b""
        if request.trains and (request.settings.keeps_state or noised):
            identity = _identity(message, request, session)
            if (kept := store.reply(identity)) is not None:
                return Message(kept, reply_to=message)
        if request.trains and adds_noise(message.content) != store.is_noisy:
            # A residual of an update without noise would go along with one that has some.
            store.forget_memory()
            store.is_noisy = adds_noise(message.content)
        mask = None
        if asked is not None:
            mask = self._guard.masking(asked, message, store, session)
        message.content = replaced(message.content, plain)
        reply = call_next(message, context)
        if reply.has_content():
            if mask is not None:
                mask(reply)
            else:
                _compress(reply, session)
        if request.trains:
            kept = reply.content if identity and reply.has_content() else None
            store.keep_reply(identity, kept)
        return reply

    def _without_grid(
        self, message: Message, context: Context, call_next: ClientAppCallable, store: Store
    ) -> Message:
        """Return the app's reply to a server without `FedSZGrid`.

        If noise is asked for, the same request again gets the same reply. Another would have other
        noise, and the two together tell more than is accounted for.
        """
        if not message.has_content() or not asks_noise(message.content):
            return call_next(message, context)
        identity = _identity(message, None, None)
        if (kept := store.reply(identity)) is not None:
            return Message(kept, reply_to=message)
        reply = call_next(message, context)
        store.keep_reply(identity, reply.content if reply.has_content() else None)
        return reply

    def _limits_of(self, message: Message, context: Context) -> Limits:
        """Return what all streams of a message may ask for together."""
        records = compat.records_in(message.content, ArrayRecord).values()
        sizes = (len(stream_of(record)) for record in records if is_sealed(record))
        return self.limits(message, context).together(sum(sizes))


def _received(message: Message, session: ClientSession, store: Store) -> dict[str, ArrayRecord]:
    """Return the models in a message by key, as plain records.

    Raises:
        NeedsKeyFrame, ReferenceMismatch, CorruptStream: as `ClientSession.receive`.
    """
    plain: dict[str, ArrayRecord] = {}
    for key, record in compat.records_in(message.content, ArrayRecord).items():
        if is_sealed(record):
            model = session.receive(key, stream_of(record))
            is_stored = key in session.request.reference
            own = store.reference_record(key) if is_stored else to_record(dict(model.arrays))
            plain[key] = with_passthrough(own, passthrough_of(record))
    return plain


def _compress(reply: Message, session: ClientSession) -> None:
    """Replace the arrays of a reply by streams, and say what that took.

    Raises:
        DivergedUpdate: a tensor that was finite is not any more.
    """
    records = compat.records_in(reply.content, ArrayRecord)
    replies: dict[str, ArrayRecord] = {}
    # Fewer bytes are not worth the error, and no smaller.
    if sum(layout_of(record).nbytes for record in records.values()) >= LEAST_BYTES:
        for key, record in records.items():
            if arrays := views_of(record):
                replies[key] = sealed(session.reply(key, arrays), passthrough_of(record))
    reply.content = replaced(reply.content, replies, session.note().encode())


def needs_key_frame(reply: Message) -> bool:
    """Say whether a reply tells that its sender lacks the model that a delta starts from."""
    return reply.has_error() and str(reply.error.reason).startswith(NEEDS_KEY_FRAME)


def _identity(message: Message, request: Request | None, session: ClientSession | None) -> bytes:
    """Return a digest that tells a message apart from all others, whatever way its model came."""
    models: Mapping[str, Any] = {} if session is None else session.models
    hashed = hashlib.sha256(f"{message.metadata.message_type}\0".encode())
    hashed.update(b"" if request is None else request.identity)
    for key, record in sorted(compat.data_of(message.content).items()):
        if key == KEY or (request and key in models and key in request.reference):
            continue
        data: Any = sorted(record.items())
        if isinstance(record, ArrayRecord):
            data = [array.data for array in record.values()]
        hashed.update(repr((key, data)).encode("utf-8", "surrogatepass"))
    return hashed.digest()
