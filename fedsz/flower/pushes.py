"""What the messages of one push are for, and whether they hold one model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedsz.codecs import _stream
from fedsz.flower.records import EVALUATE, TRAIN
from fedsz.flower_compat import records_in

ROUND: Final = "server-round"  # as Flower's strategies name it
_LEGACY: Final = ("fitins.parameters", "evaluateins.parameters")  # keys of its records


def is_training(messages: Iterable[Message]) -> bool:
    """Say whether the replies to these messages go into an average."""
    return any(message.metadata.message_type.startswith(TRAIN) for message in messages)


def is_round(messages: Sequence[Message]) -> bool:
    """Say whether these messages hold the model for all whose replies are averaged together.

    Legacy servers push a message to each client from a thread of its own.
    """
    legacy = any(key in _LEGACY for message in messages for key in message.content)
    averaged = any(m.metadata.message_type.startswith((TRAIN, EVALUATE)) for m in messages)
    has_model = any(records_in(message.content, ArrayRecord) for message in messages)
    return averaged and has_model and not (legacy and len(messages) == 1)


def round_of(messages: Sequence[Message]) -> int | None:
    """Return the round of training that messages say they are of, where they hold a model.

    Flower's strategies say it in a ConfigRecord, its legacy servers by the messages' group.
    """
    for message in messages:
        content, metadata = message.content, message.metadata
        if not metadata.message_type.startswith(TRAIN) or not records_in(content, ArrayRecord):
            return None
        for record in records_in(content, ConfigRecord).values():
            number = record.get(ROUND)
            if isinstance(number, int) and not isinstance(number, bool):
                return number
        return int(metadata.group_id) if metadata.group_id.isdecimal() else None
    return None


def same_arrays(one: RecordDict, other: RecordDict) -> bool:
    """Say whether two contents hold the same arrays, be it in records of their own."""
    if one is other:
        return True
    ours, theirs = records_in(one, ArrayRecord), records_in(other, ArrayRecord)
    return list(ours) == list(theirs) and all(
        list(record) == list(theirs[key])
        and all(array.data == theirs[key][name].data for name, array in record.items())
        for key, record in ours.items()
    )


def purpose_of(pushed: Sequence[Message]) -> tuple[str, bytes]:
    """Return what a push is for, and what tells its model apart."""
    return pushed[0].metadata.message_type, fingerprint(pushed[0].content)


def fingerprint(content: RecordDict) -> bytes:
    """Return what tells contents of other arrays apart."""
    hashed = _stream.Xxh3()
    for record in records_in(content, ArrayRecord).values():
        for name, array in record.items():
            hashed.update(f"{name}\0{len(array.data)}\0".encode("utf-8", "surrogatepass"))
            hashed.update(array.data)
    return hashed.digest()
