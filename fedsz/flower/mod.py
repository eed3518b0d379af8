"""The client side: training code that does not know it is being compressed."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable

from fedsz import flower_compat as compat
from fedsz.arrays import NDArray, StateDict, as_arrays
from fedsz.errors import ConfigError, DivergedUpdate, ReferenceMismatch, log_failure
from fedsz.flower.client_state import ClientState, log_misfits
from fedsz.flower.instructions import Instructions
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import (
    KEY,
    LEAST_BYTES,
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
from fedsz.flower.reply_report import ReplyReport
from fedsz.methods import History
from fedsz.methods.combinators import by_step
from fedsz.safetensors_file import INITIAL, read_safetensors
from fedsz.stream import Limits, Reader
from fedsz.update.bound_encoder import UpdateEncoder
from fedsz.update.chained import ChainEncoder
from fedsz.update.compress import Report, compress_measured
from fedsz.update.config import CompressionConfig
from fedsz.update.decompress import decompress
from fedsz.update.error_feedback import ErrorFeedback
from fedsz.update.lattice import place_first
from fedsz.update.reference import Reference, require_reference, shown
from fedsz.update.shift import NO_SHIFT, agreed_shift, shift_after, shifted, with_shift
from fedsz.update.step import Arrival, energies, scales_of_step

logger = logging.getLogger(__name__)

# What an error reply begins with whose sender does not hold the model that it was sent less than,
LACKS_MODEL = "fedsz: the model is not here"
# and one whose sender holds the model, although its app failed.
KEEPS_MODEL = "fedsz: the app failed"


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

    def __init__(self, initial: str | Path | Callable[[], StateDict] | None = None) -> None:
        self._initial = initial

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
        """
        # Before hours of training, not after: the codec may be missing here.
        note = message.content.get(KEY) if message.has_content() else None
        if not isinstance(note, ConfigRecord):
            return call_next(message, context)
        told, state = Instructions.read(note), ClientState(context)
        initial = partial(self._initial_point, message, context, told.config)
        try:
            plain, sent = _unpacked(message, told, state, initial, self.limits(message, context))
        except ReferenceMismatch as err:
            state.forget_residuals()  # they are of another past than the server's
            code = compat.ErrorCode.MOD_FAILED_PRECONDITION
            return Message(Error(code, f"{LACKS_MODEL}: {err}"), reply_to=message)
        asked = _digest(message, sent) if told.trains and told.config.keeps_state else b""
        if asked and (kept := state.reply(asked)) is not None:
            return Message(kept, reply_to=message)
        message.content = replaced(message.content, plain, None)
        try:
            if told.trains:
                state.settle(told)
            reply = call_next(message, context)
            if reply.has_content():
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
        self, message: Message, context: Context, config: CompressionConfig
    ) -> Reference | None:
        """Return the initial model as the server's lattice has it."""
        try:
            state = self.initial_model(message, context)
            if state is None:
                return None
            arrays = as_arrays(state)
            points = {**arrays, **place_first(arrays, config).points}
            return Reference(dict(sorted(points.items())))  # files do not keep a model's order
        except Exception as err:  # of any function
            logger.warning("no initial model here, the server sends it: %s", err)
            return None


def lacks_model(reply: Message) -> bool:
    """Say whether a reply tells that its sender does not hold what it was sent less than."""
    return reply.has_error() and str(reply.error.reason).startswith(LACKS_MODEL)


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
            state.keep_model(key, plain[key] if key in told.holds else None)
            plain[key] = with_aside(plain[key], aside_of(record))
    return plain, sent


def _received(
    key: str,
    record: ArrayRecord,
    told: Instructions,
    state: ClientState,
    initial: Callable[[], Reference | None],
    limits: Limits,
) -> Reference:
    """Return the model in a message, whole or as what it differs by from the one held here.

    ``initial`` returns that which training starts from, if it is here.

    Raises:
        ReferenceMismatch: it differs from a model that is not held here.
        CorruptStream: a stream is damaged, or asks for more than ``limits``.
    """
    if key not in told.holds:
        return Reference(ReceivedUpdate(record, limits=limits).arrays())
    before = model = state.model(key)
    if model is not None and model.digest == told.holds[key]:
        model.history = _history(key, told, state, None, model)
        return model  # it has been here before a crash of the server, which knows of an older one
    streams = streams_of(record)
    if not is_sealed(record) and layout_of(record).shapes:
        model = Reference(views_of(record))  # smaller as it is
    elif model is None:
        wanted = Reader(streams[0], limits).header.reference if streams else told.holds[key]
        model = initial() if wanted else None
        if model is not None and model.digest != wanted:
            have, want = shown(model.digest), shown(wanted or b"")
            logger.warning("the initial model here is %s, the server's %s: it sends it", have, want)
    for stream in streams:
        model = Reference(decompress(stream, reference=model, as_numpy=True, limits=limits))
    if model is None:
        raise ReferenceMismatch("the server sent no model, and this client holds none")
    require_reference(told.holds[key], model)
    model.history = _history(key, told, state, before, model)
    return model


def _history(
    key: str, told: Instructions, state: ClientState, before: Reference | None, now: Reference
) -> History | None:
    """Return what broadcasts have shown on the way to a model, as the server has it; and keep it.

    The server goes on with what it had, or starts anew by this broadcast; None where it has shown
    this client another, or nothing.
    """
    found, wanted = None, told.histories.get(key)
    if wanted is not None:
        kept = state.history(key)
        if before is None:
            found = kept if kept.digest == wanted else None
        else:
            digests = before.digest + now.digest
            known = (h for h in (kept, History()) if h.digest_after(digests) == wanted)
            earlier = next(known, None)
            found = earlier.beyond(before, now) if earlier else None
    state.keep_history(key, found)
    return found


def _digest(message: Message, sent: Mapping[str, Reference]) -> bytes:
    """Return what tells a request apart from all others; our own record says run and turn."""
    content = message.content
    hashed = hashlib.sha256(f"{message.metadata.message_type}\0".encode())
    for key, record in sorted(content.items()):
        told: Any = sorted(record.items())
        if isinstance(record, ArrayRecord):
            told = sent[key].digest if key in sent else [array.data for array in record.values()]
        hashed.update(repr((key, told)).encode("utf-8", "surrogatepass"))
    return hashed.digest()


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
    if sum(layout_of(record).nbytes for record in records.values()) < LEAST_BYTES:
        return  # not worth the error, and no smaller
    for key, record in records.items():
        # A client may call its only model otherwise.
        origin = sent.get(next(iter(sent)) if len(sent) == len(records) == 1 else key)
        arrays = views_of(record)
        if not arrays:
            continue  # nothing that a stream could hold
        if origin is not None and origin.fits(layout_of(record)):
            stream, report, arrived = _update(key, arrays, told, origin, state)
            arrivals.append(arrived)
        else:  # another model, or other dtypes
            if origin is not None:
                _check_finite(arrays, origin, state, key)
            if told.trains:
                state.forget_residual(key)
            stream, report = compress_measured(arrays, told.config)
        reports.append(report)
        if len(stream) < plain_bytes(arrays, record):
            replies[key] = sealed([stream], aside_of(record))
    note = None
    if reports:
        feeds_back = told.trains and told.config.feeds_back
        note = ReplyReport.of(reports, arrivals, feeds_back=feeds_back).record()
    reply.content = replaced(reply.content, replies, note)


def _update(
    key: str, arrays: Mapping[str, NDArray], told: Instructions, sent: Reference, state: ClientState
) -> tuple[bytes, Report, Arrival]:
    """Return what a client made of the model it was sent, as a stream: weights, or differences."""
    config, chain = told.config, told.config.chain
    keeps_state = config.keeps_state and told.trains
    kept, age = state.residual(key, told) if keeps_state else ({}, 1)
    base, shift = sent if config.sends_differences else None, NO_SHIFT
    encoder: UpdateEncoder | ChainEncoder
    if chain is None:
        meant = ErrorFeedback(arrays, kept, decay=config.decay, age=age)
        encoder = UpdateEncoder(meant, config, sent)
    else:
        shift = agreed_shift(kept, digest := told.shifts.get(key))
        if digest and not shift:
            logger.error("%r starts anew: the server has another shift than is kept here", key)
        base = shifted(sent, shift)
        scales = scales_of_step(energies(arrays, sent, config)) if by_step(chain) else {}
        encoder = ChainEncoder(
            chain,
            seed=told.seed,
            round=told.turn,
            sender=state.sender,
            kept=kept,
            sent=sent,
            history=sent.history,
            scales=scales,
        )
    stream, report = compress_measured(arrays, config, base, encoder=encoder)
    log_misfits(key, encoder.misfits)
    _check_finite(arrays, sent, state, key, encoder.steps)
    if keeps_state:
        if chain is not None and config.learns_shifts:
            assert base is not None
            shift = shift_after(stream, base, shift, chain)
        left = with_shift(encoder.left, shift) if shift else encoder.left
        state.keep_residual(key, left, told)
    elif told.trains:
        state.forget_residual(key)
    return stream, report, encoder.arrived


def _check_finite(
    arrays: Mapping[str, NDArray],
    sent: Reference,
    state: ClientState,
    key: str,
    steps: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Raise `DivergedUpdate` for an update that has diverged, and forget its residual.

    Tensors whose step has a finite norm in ``steps`` have not.
    """
    for name, before in sent.arrays.items():
        if name not in arrays or math.isfinite(steps.get(name, math.nan)):
            continue
        if not np.isfinite(arrays[name]).all() and np.isfinite(before).all():
            state.forget_residual(key)
            raise DivergedUpdate(f"training made NaN or infinities of {name!r}; nothing is sent")
