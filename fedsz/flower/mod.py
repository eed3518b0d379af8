"""The client side: training code that does not know it is being compressed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flwr.app import ConfigRecord, Context, Message

from fedsz.flower.records import (
    KEY,
    Arrays,
    Update,
    array_records,
    read_settings,
    replaced,
    report_record,
    seal,
    to_record,
)
from fedsz.update import DELTA, WEIGHTS, Reference

ClientAppCallable = Callable[[Message, Context], Message]


def the_one_for(
    key: str, sent: Mapping[str, Reference], replies: Mapping[str, object]
) -> Reference | None:
    """Return the model that a record of a reply comes from, by its name or as the only one."""
    if len(sent) == len(replies) == 1:
        return next(iter(sent.values()))
    return sent.get(key)


class FedSZMod:
    """A Flower mod that unpacks what a `FedSZGrid` sent and compresses what the app replies.

    The server chooses codec and error bound and sends them with every message; a message from a
    server without `FedSZGrid` passes through as it is, and so does its reply::

        app = ClientApp(mods=[FedSZMod()])

    Put it first among the mods: those after it see plain arrays.
    """

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Run the rest of the app on plain arrays.

        Raises:
            CodecUnavailable: this machine lacks the codec that the server chose.
            CorruptStream: the message's stream is damaged.
        """
        note = message.content.config_records.get(KEY) if message.has_content() else None
        if not isinstance(note, ConfigRecord):
            return call_next(message, context)
        # Before hours of training, not after: the codec may be missing here.
        settings = read_settings(note)
        delta = note.get("update", WEIGHTS) == DELTA
        plain = {
            key: to_record(Update(record).arrays())
            for key, record in array_records(message.content).items()
        }
        message.content = replaced(message.content, plain, None)
        # Before the app has it: what it does with its records is its own affair.
        sent = {key: Reference(Arrays(record)) for key, record in plain.items()} if delta else {}

        reply = call_next(message, context)

        if not reply.has_content():
            return reply
        sealed, report = {}, None
        records = array_records(reply.content)
        for key, record in records.items():
            arrays = Arrays(record)
            reference = the_one_for(key, sent, records)
            if reference and not reference.fits(arrays):
                reference = None  # another model, or other dtypes: its weights then
            sealed[key], report = seal(arrays, settings, reference)
        reply.content = replaced(reply.content, sealed, report_record(report) if report else None)
        return reply
