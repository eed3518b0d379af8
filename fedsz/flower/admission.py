"""Admission: the one place where a reply is opened and checked before anybody uses its arrays.

A reply that passes holds plain arrays, or `AdmittedRecord`s for a strategy that decodes them as it
adds them up. Strategies ask for these by sending `StreamedRequest`s, which no wrapper between them
and the Grid has to know of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, RecordDict

from fedsz.arrays import Layout
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import (
    KEY,
    TRAIN,
    aside_of,
    is_sealed,
    layout_of,
    replaced,
    to_record,
    with_aside,
)
from fedsz.flower.reply_report import ReplyReport
from fedsz.transport.replies import StreamedRequest
from fedsz.update.reference import Reference


class AdmittedRecord(ArrayRecord):
    """A record that has passed admission, still sealed; ``received`` has its arrays."""

    def __init__(self, update: ReceivedUpdate) -> None:
        super().__init__()
        self.received = update


@dataclass(frozen=True)
class Admitted:
    """What there is to count of a reply, once it has been used.

    Attributes:
        node: who sent it.
        updates: its arrays, of which each says how long it took, and whether it was of use.
        report: what its sender says of it.
        trains: whether it goes into an average.
    """

    node: int
    updates: tuple[ReceivedUpdate, ...]
    report: ReplyReport
    trains: bool = True

    @property
    def refused(self) -> str:
        """Why it was of no use after all, or ""."""
        return next((update.refused for update in self.updates if update.refused), "")


def admit(
    reply: Message,
    expected: Mapping[str, Layout],
    references: Mapping[bytes, Reference],
    *,
    sealed: bool,
) -> Admitted:
    """Check a reply's arrays, and put what its receiver takes into their place.

    Args:
        reply: without an error; its content is replaced.
        expected: by key, what its records must look like; others may look like anything.
        references: by digest, what they may be differences from.
        sealed: whether its receiver decodes them itself; else they are decoded here.

    Raises:
        FedszError: a record is damaged, or not of the model. The reply is as it was.
    """
    records = reply.content.array_records
    if len(records) == len(expected) == 1:
        # A client may call its model otherwise.
        expected = dict(zip(records, expected.values(), strict=True))
    updates = {
        key: ReceivedUpdate(record, expected.get(key), references)
        for key, record in records.items()
        if is_sealed(record) or layout_of(record).shapes
    }
    taken: dict[str, ArrayRecord] = {}
    for key, update in updates.items():
        if sealed:
            taken[key] = AdmittedRecord(update)
        else:
            taken[key] = with_aside(to_record(update.arrays()), aside_of(records[key]))
            update.forget()
    report = ReplyReport.read(reply.content.config_records.get(KEY))
    reply.content = replaced(reply.content, taken, None)
    metadata = reply.metadata
    trains = metadata.message_type.startswith(TRAIN)
    return Admitted(metadata.src_node_id, tuple(updates.values()), report, trains)


def update_of(record: ArrayRecord) -> ReceivedUpdate:
    """Return a record's arrays as admitted; if a Grid checks nothing, raise `FedszError` here."""
    return record.received if isinstance(record, AdmittedRecord) else ReceivedUpdate(record)


def streamed(messages: Iterable[Message]) -> list[Message]:
    """Return messages whose replies are to come sealed; those that share a content still do."""
    asked = list(messages)
    contents = {id(message.content): StreamedRequest(dict(message.content)) for message in asked}
    originals = [message.content for message in asked]  # or an id could be used again
    for message, content in zip(asked, originals, strict=True):
        message.content = contents[id(content)]
    return asked


def release(content: RecordDict) -> None:
    """Free the arrays of a message that nobody needs any more.

    Flower's records refer to each other in circles, so without this they would stay until the
    garbage collector comes by, and megabytes do not make it come sooner.
    """
    for record in content.array_records.values():
        if isinstance(record, AdmittedRecord):
            record.received.release()
        record.clear()
