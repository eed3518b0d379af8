"""The client side: training code that does not know it is being compressed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable

from fedsz import flower_compat as compat
from fedsz.arrays import LOSSY_DTYPES, Layout, NDArray, StateDict, cast
from fedsz.core.ahead import ahead_of, less_head_start
from fedsz.core.client import check_finite, coded_update, initial_point, received
from fedsz.core.encode import compress_measured
from fedsz.core.framed import framed
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference
from fedsz.core.reply_report import ReplyReport
from fedsz.core.settings import LEAST_BYTES, Settings
from fedsz.errors import ConfigError, ReferenceMismatch, RefusedRequest, log_failure
from fedsz.flower.client_state import SENT, UNMASKED, ClientState
from fedsz.flower.differential_privacy import adds_noise
from fedsz.flower.local_noise import LocalNoise
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import (
    KEY,
    TRAIN,
    aside_of,
    is_sealed,
    layout_of,
    plain_bytes,
    replaced,
    sealed,
    streams_of,
    to_record,
    views_of,
    with_aside,
)
from fedsz.flower.secure_member import SECURE, SecureMember
from fedsz.methods import Eigen
from fedsz.safetensors_file import INITIAL, read_safetensors
from fedsz.stream import Limits

logger = logging.getLogger(__name__)

# What an error reply begins with whose sender does not hold the model that it was sent less than,
LACKS_MODEL = "fedsz: the model is not here"
# and one whose sender holds the model, although its app failed.
KEEPS_MODEL = "fedsz: the app failed"
# What the error reply of a release says that does not know the method, or the codec's setting.
LACKS_METHOD = f"no method {Eigen.name!r}", "has no setting 'shrink'"


class FedSZMod:
    """A Flower mod that unpacks what a `FedSZGrid` sent and compresses what the app replies.

    The server chooses codec, error bound and all else and sends them with every message; a message
    from a server without `FedSZGrid` passes through as it is, and so does its reply.

    Put it first among the mods: those after it see plain arrays.

    Args:
        initial: the model that training starts from, where this client has it: a .safetensors file,
            or a function that returns a state_dict. A `FedSZGrid` with ``shared_initial`` and a
            downlink that is not exact names its first model and does not send it. A client that
            has another, or none, says so, logs a warning, and is sent it in the same round.
        secure: what this client asks of secure sums; see `SecureMember`.

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
        secure: SecureMember | None = None,
    ) -> None:
        self._initial = initial
        self._member = secure or SecureMember(required=False)

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

        An app that fails makes an error reply, as ever. Where the client is to keep the model that
        it was sent, the reply says that it has, so that the model is not sent again.

        Raises:
            CodecUnavailable: this machine lacks the codec that the server chose.
            CorruptStream: the message's stream is damaged.
            DivergedUpdate: training made NaN or infinities of a finite tensor. The reply is an
                error then, and what error feedback had kept is forgotten.
            RefusedRequest: the client trains for secure sums only, or this is not one.
        """
        request = self._member.request_in(message)
        if request is not None and not compat.records_in(message.content, ArrayRecord):
            return self._member.answer(request, message, context)
        # Before hours of training, not after: the codec may be missing here.
        note = message.content.get(KEY) if message.has_content() else None
        if not isinstance(note, ConfigRecord):
            if request is not None:
                raise RefusedRequest("a secure sum of a model without instructions")
            asks = message.has_content() and LocalNoise.is_asked(message.content)
            asked = _digest(message, {}) if asks else b""
            return _noised_once(call_next, message, context, asked, SENT)
        told, state = Instructions.read(note), ClientState(context)
        initial = partial(self._initial_point, message, context, told.config)
        try:
            plain, sent = _unpacked(message, told, state, initial, self.limits(message, context))
        except ReferenceMismatch as err:
            state.doubt_residuals()
            code = compat.ErrorCode.MOD_FAILED_PRECONDITION
            return Message(Error(code, f"{LACKS_MODEL}: {err}"), reply_to=message)
        again = told.config.keeps_state or LocalNoise.is_asked(message.content)
        asked = _digest(message, sent) if told.trains and again else b""
        if asked and (kept := state.reply(asked)) is not None:
            return Message(kept, reply_to=message)
        masking, noised_for = None, b""
        if request is not None:
            masking = self._member.masking(request, message, context)
            if told.trains and masking.noised_before:
                noised_for = _digest(message, sent, without=SECURE)
        try:
            if told.trains:
                state.settle(told)
                state.begin_reply(noised=adds_noise(message.content))
            if masking is not None:
                masking.require_first(told, state)
                plain = dict(masking.begin(plain, sent, told, state))
            elif told.trains:
                _begin_ahead(plain, sent, told, state)
            message.content = replaced(message.content, plain, None)
            reply = _noised_once(call_next, message, context, noised_for, UNMASKED)
            if masking is not None and reply.has_content():
                masking.mask(reply, sent, told, state)
            elif reply.has_content():
                _compress(reply, sent, told, state)
            if told.trains:
                state.keep_reply(asked, reply.content if asked and reply.has_content() else None)
            return reply
        except Exception as err:
            if not told.holds:
                raise
            # An exception would lose the Context, and with it the model that was just received.
            reason = f"{type(err).__name__}: {err}"
            log_failure(logger, "the app failed", err)
            code = compat.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code, f"{KEEPS_MODEL}: {reason}"), reply_to=message)

    def _initial_point(
        self, message: Message, context: Context, config: Settings
    ) -> Reference | None:
        """Return the initial model as the server's lattice has it."""
        try:
            state = self.initial_model(message, context)
            return None if state is None else initial_point(state, config)
        except Exception as err:  # of any function
            logger.warning("no initial model here, the server sends it: %s", err)
            return None


def _noised_once(
    call_next: ClientAppCallable, message: Message, context: Context, asked: bytes, kept_as: str
) -> Message:
    """Return what `_noised` does; to a request for noise of the same digest again, the same reply.

    Another would have other noise, and the two together tell more than is accounted for. An empty
    digest is of no such request.
    """
    if not asked:
        return _noised(call_next, message, context)
    state = ClientState(context)
    if (kept := state.reply(asked, kept_as)) is not None:
        return Message(kept, reply_to=message)
    reply = _noised(call_next, message, context)
    state.keep_reply(asked, reply.content if reply.has_content() else None, kept_as)
    return reply


def _noised(call_next: ClientAppCallable, message: Message, context: Context) -> Message:
    """Return the app's reply, with noise if a training message asks for it; see `LocalNoise`."""
    if not message.has_content() or not message.metadata.message_type.startswith(TRAIN):
        return call_next(message, context)
    noise = LocalNoise.asked(message.content, context.node_config)
    if noise and noise.summed:  # which `Masking` adds
        if not isinstance(message.content.get(SECURE), ConfigRecord):
            raise RefusedRequest("a share of a secure sum's noise, and no secure sum: too little")
        return call_next(message, context)
    starts = list(compat.records_in(message.content, ArrayRecord).values())
    start = views_of(starts[0]) if noise and len(starts) == 1 else {}
    reply = call_next(message, context)
    if noise and reply.has_content():
        records = compat.records_in(reply.content, ArrayRecord)
        if len(starts) != 1 or len(records) != 1:
            raise ConfigError(f"{len(records)} ArrayRecords cannot be noised as one update")
        ((key, record),) = records.items()
        reply.content[key] = noise.added(record, start)
    return reply


def lacks_model(reply: Message) -> bool:
    """Say whether a reply tells that its sender does not hold what it was sent less than."""
    return reply.has_error() and str(reply.error.reason).startswith(LACKS_MODEL)


def lacks_method(reply: Message) -> bool:
    """Say whether a reply tells that its sender's release cannot code as it was told."""
    return reply.has_error() and any(what in str(reply.error.reason) for what in LACKS_METHOD)


def keeps_model(reply: Message) -> bool:
    """Say whether the sender of a reply holds what it was sent."""
    return not reply.has_error() or str(reply.error.reason).startswith(KEEPS_MODEL)


def _unpacked(
    message: Message,
    told: Instructions,
    state: ClientState,
    initial: Callable[[], Reference | None],
    limits: Limits,
) -> tuple[dict[str, ArrayRecord], dict[str, Reference]]:
    """Return the models in a message by key, as plain records and as views of these; keep them.

    ``limits`` are of all its streams together: a message of a kilobyte can have many.

    Raises:
        ReferenceMismatch, CorruptStream: as `_received`.
    """
    plain: dict[str, ArrayRecord] = {}
    sent: dict[str, Reference] = {}
    records = compat.records_in(message.content, ArrayRecord)
    streams = [len(stream) for record in records.values() for stream in streams_of(record)]
    limits = limits.together(sum(streams))
    for key, record in records.items():
        if key in told.holds or is_sealed(record):
            model = _received(key, record, told, state, initial, limits)
            if is_sealed(record):
                limits = limits.less(sum(x.nbytes for x in model.arrays.values()))
            plain[key] = to_record(model.arrays)
            sent[key] = model.again(views_of(plain[key]))
            del model
            digest = told.holds.get(key)
            state.keep_model(key, plain[key] if digest is not None else None, digest or b"")
            plain[key] = with_aside(plain[key], aside_of(record))
    return plain, sent


def _begin_ahead(
    plain: dict[str, ArrayRecord],
    sent: Mapping[str, Reference],
    told: Instructions,
    state: ClientState,
) -> None:
    """Have the app begin with part of what it has not sent yet, where the server says so."""
    kept = state.residual_keys()
    for key, model in sent.items():
        # A client may call its only model otherwise.
        kept_as = kept[0] if len(sent) == len(kept) == 1 else key
        moved = ahead_of(model, *state.residual(kept_as, told), told.config)
        if not moved:
            continue
        begun = to_record({name: moved.get(name, x) for name, x in model.arrays.items()})
        views = views_of(begun)
        model.begun = {name: views[name] for name in moved}
        plain[key] = with_aside(begun, aside_of(plain[key]))


def _received(
    key: str,
    record: ArrayRecord,
    told: Instructions,
    state: ClientState,
    initial: Callable[[], Reference | None],
    limits: Limits,
) -> Reference:
    """Return the model in a message; see `fedsz.core.client.received`."""
    if key not in told.holds:
        return Reference(ReceivedUpdate(record, limits=limits).arrays())
    plain = {} if is_sealed(record) else views_of(record)
    return received(key, streams_of(record), plain, told, state, initial, limits, framed)


def _digest(message: Message, sent: Mapping[str, Reference], without: str = "") -> bytes:
    """Return what tells a request apart from all others; our own record says run and turn.

    A record ``without`` tells nothing.
    """
    content = message.content
    hashed = hashlib.sha256(f"{message.metadata.message_type}\0".encode())
    for key, record in sorted((k, record) for k, record in content.items() if k != without):
        told: Any = sorted(record.items())
        if isinstance(record, ArrayRecord):
            told = sent[key].digest if key in sent else [array.data for array in record.values()]
        hashed.update(repr((key, told)).encode("utf-8", "surrogatepass"))
    return hashed.digest()


def _in_dtypes_of(sent: Reference, arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return a reply's floats in the dtypes of the model, as its receiver would cast them."""
    found = dict(arrays)
    for name, x in arrays.items():
        like = sent.arrays.get(name)
        if like is not None and {x.dtype, like.dtype} <= LOSSY_DTYPES:
            with np.errstate(over="ignore"):
                found[name] = cast(x, like.dtype)
    return found


def _compress(
    reply: Message, sent: Mapping[str, Reference], told: Instructions, state: ClientState
) -> None:
    """Replace the arrays of a reply by streams, and say what that took.

    Raises:
        DivergedUpdate: a tensor that was finite is not any more.
    """
    records = compat.records_in(reply.content, ArrayRecord)
    replies: dict[str, ArrayRecord] = {}
    reports, arrivals = [], []
    layouts = {key: layout_of(record) for key, record in records.items()}
    # Not worth the error, and no smaller.
    small = sum(layout.nbytes for layout in layouts.values()) < LEAST_BYTES
    for key, record in records.items():
        # A client may call its only model otherwise.
        origin = sent.get(next(iter(sent)) if len(sent) == len(records) == 1 else key)
        arrays = views_of(record)
        if not arrays:
            continue  # nothing that a stream could hold
        if origin is not None:
            arrays = _in_dtypes_of(origin, arrays)
        fits = origin is not None and origin.fits(Layout.of(arrays))
        if small:
            if origin is not None and fits and origin.begun:  # what is held back stays here
                own = to_record(dict(less_head_start(arrays, origin)))
                replies[key] = with_aside(own, aside_of(record))
            continue
        if origin is not None and fits:
            stream, report, arrived = coded_update(key, arrays, told, origin, state)
            arrivals.append(arrived)
        else:  # another model
            if origin is not None:
                check_finite(key, arrays, origin, state)
            if told.trains:
                state.forget_residual(key)
            stream, report = compress_measured(arrays, told.config)
        reports.append(report)
        if len(stream) < plain_bytes(arrays, record):
            replies[key] = sealed([stream], aside_of(record))
    note = None
    if reports:
        feeds_back = told.trains and told.config.feeds_back
        said = ReplyReport.of(reports, arrivals, feeds_back=feeds_back)
        note = compat.make_note(said.written())
    reply.content = replaced(reply.content, replies, note)
