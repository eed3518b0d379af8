"""The client side: training code that does not know it is being compressed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message

from fedsz import flower_compat as compat
from fedsz.arrays import NDArray
from fedsz.errors import DivergedUpdate, ReferenceMismatch
from fedsz.flower.client_state import ClientState
from fedsz.flower.instructions import Instructions
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import KEY, Arrays, layout_of, replaced, seal, streams_of, to_record
from fedsz.update.compress import Report
from fedsz.update.decompress import decompress
from fedsz.update.error_feedback import ErrorFeedback
from fedsz.update.reference import Reference, require_reference

ClientAppCallable = Callable[[Message, Context], Message]

# What an error reply begins with whose sender does not hold the model that it was sent less than.
LACKS_MODEL = "fedsz: the model is not here"


class FedSZMod:
    """A Flower mod that unpacks what a `FedSZGrid` sent and compresses what the app replies.

    The server chooses codec, error bound and all else and sends them with every message; a message
    from a server without `FedSZGrid` passes through as it is, and so does its reply::

        app = ClientApp(mods=[FedSZMod()])

    Put it first among the mods: those after it see plain arrays.
    """

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Run the rest of the app on plain arrays.

        Raises:
            CodecUnavailable: this machine lacks the codec that the server chose.
            CorruptStream: the message's stream is damaged.
            DivergedUpdate: training made NaN or infinities of a finite tensor. The reply is an
                error then, and what error feedback had kept is forgotten.
        """
        # Before hours of training, not after: the codec may be missing here.
        note = message.content.config_records.get(KEY) if message.has_content() else None
        if note is None:
            return call_next(message, context)
        told, state = Instructions.read(note), ClientState(context)
        try:
            sent = {
                key: _received(key, record, told, state)
                for key, record in message.content.array_records.items()
            }
        except ReferenceMismatch as err:
            code = compat.ErrorCode.MOD_FAILED_PRECONDITION
            return Message(Error(code, f"{LACKS_MODEL}: {err}"), reply_to=message)
        plain = {key: to_record(dict(model.arrays)) for key, model in sent.items()}
        for key, record in plain.items():
            state.keep_model(key, record if key in told.holds else None)
        message.content = replaced(message.content, plain, None)
        finite = {
            key: {name for name, x in model.arrays.items() if np.isfinite(x).all()}
            for key, model in sent.items()
        }
        if not told.config.sends_differences:
            sent.clear()

        reply = call_next(message, context)

        if not reply.has_content():
            return reply
        records = reply.content.array_records
        replies, note = {}, None
        for key, record in records.items():
            # A client may call its only model otherwise.
            origin = next(iter(finite)) if len(finite) == len(records) == 1 else key
            _check_finite(Arrays(record), finite.get(origin, set()), state, key)
            replies[key], report = _sealed(key, record, told, sent.get(origin), state)
            note = ConfigRecord({"encode-seconds": report.seconds, "max-error": report.max_error})
        reply.content = replaced(reply.content, replies, note)
        return reply


def lacks_model(reply: Message) -> bool:
    """Say whether a reply tells that its sender does not hold what it was sent less than."""
    return reply.has_error() and str(reply.error.reason).startswith(LACKS_MODEL)


def _received(key: str, record: ArrayRecord, told: Instructions, state: ClientState) -> Reference:
    """Return the model in a message, whole or as what it differs by from the one held here.

    Raises:
        ReferenceMismatch: it differs from a model that is not held here.
        CorruptStream: a stream is damaged.
    """
    if key not in told.holds:
        return Reference(ReceivedUpdate(record).arrays())
    model = state.model(key)
    for stream in streams_of(record):
        model = Reference(decompress(stream, reference=model, as_numpy=True))
    if model is None:
        raise ReferenceMismatch("the message holds nothing new, and nothing is held here")
    require_reference(told.holds[key], model)
    return model


def _sealed(
    key: str, record: ArrayRecord, told: Instructions, sent: Reference | None, state: ClientState
) -> tuple[ArrayRecord, Report]:
    """Return a reply's arrays as a stream: weights, or differences from what was sent."""
    arrays, config = Arrays(record), told.config
    if sent is None or not sent.fits(layout_of(record)):
        state.keep_residual(key, {}, told.turn)
        return seal(arrays, config)  # another model, or other dtypes
    if not config.feeds_back:
        state.keep_residual(key, {}, told.turn)
        return seal(arrays, config, sent)
    residual, age = state.residual(key, told.turn)
    meant = ErrorFeedback(arrays, residual, decay=config.decay, age=age)
    reply, report = seal(meant, config, sent, bounds=meant.bounds(config, sent))
    (stream,) = streams_of(reply)
    left = meant.left_out(decompress(stream, reference=sent, as_numpy=True))
    state.keep_residual(key, left, told.turn)
    return reply, report


def _check_finite(
    arrays: Mapping[str, NDArray], finite: set[str], state: ClientState, key: str
) -> None:
    """Raise `DivergedUpdate` for an update that has diverged, and forget its residual."""
    for name in finite:
        if name in arrays and not np.isfinite(arrays[name]).all():
            state.keep_residual(key, {}, 0)
            raise DivergedUpdate(f"training made NaN or infinities of {name!r}; nothing is sent")
