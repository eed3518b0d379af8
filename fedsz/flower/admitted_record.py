"""Records that have passed admission and are still sealed, for strategies that decode them."""

from __future__ import annotations

import logging
from collections import UserDict
from functools import cached_property

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedsz import flower_compat as compat
from fedsz.core.broadcast import Broadcast
from fedsz.errors import FedszError
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import aside_of, to_record, with_aside
from fedsz.flower.refusal import refusing_failures, told

logger = logging.getLogger(__name__)


class AdmittedRecord(ArrayRecord):
    """A record that has passed admission, still sealed.

    Its arrays are decoded when they are first looked at. From then on they count as they stand
    here: a strategy around the one that averages may have put others in their place.

    Looking at them raises `FedszError` if they must not count; see `checked`.

    Attributes:
        received: what was sent.
        broadcast: of the model that it is of: its ``model`` is what clients are sent now; None
            where that is not known.
    """

    def __init__(self, update: ReceivedUpdate, broadcast: Broadcast | None = None) -> None:
        super().__init__()
        self.received, self.broadcast = update, broadcast
        self._decoded = _Decoded(update)
        self.__dict__["_data"] = self._decoded  # where all of Flower's methods find the arrays

    @property
    def is_sealed(self) -> bool:
        """Whether nobody has looked at its arrays."""
        return not self._decoded.is_decoded

    def copy(self) -> ArrayRecord:  # type: ignore[override] # what is decoded is sealed no more
        """Return a plain record of its arrays."""
        return compat.make_record(dict(self))

    def clear(self) -> None:
        """Free its arrays; those that are still sealed are not decoded for that."""
        self._decoded.data = {}


class _Decoded(UserDict[str, Array]):
    """The arrays of an update by name, decoded when they are first asked for."""

    def __init__(self, update: ReceivedUpdate) -> None:
        self._update = update

    @cached_property
    def data(self) -> dict[str, Array]:  # type: ignore[override] # where all its methods look
        aside = aside_of(self._update.record)
        return dict(with_aside(to_record(self._update.arrays()), aside))

    @property
    def is_decoded(self) -> bool:
        """Whether somebody has asked for one."""
        return "data" in self.__dict__


def update_of(record: ArrayRecord) -> ReceivedUpdate:
    """Return a record's arrays, to be added up.

    Raises:
        FedszError: it is no `AdmittedRecord`, of a Grid that checks nothing, and does not pass.
    """
    if not isinstance(record, AdmittedRecord):
        return ReceivedUpdate(record)
    return record.received if record.is_sealed else record.received.replaced(record.copy())


def checked(reply: Message) -> Message:
    """Return a reply whose sealed arrays all decode and may count, or an error reply in its place.

    Whoever decodes them after that is spared what they may raise.
    """
    records = [] if reply.has_error() else compat.records_in(reply.content, ArrayRecord).values()
    for update in [record.received for record in records if isinstance(record, AdmittedRecord)]:
        try:
            with refusing_failures():
                update.judge(update.measured())
        except FedszError as err:
            update.refused = err
            logger.warning("node %d left out: %s", reply.metadata.src_node_id, told(err))
            return compat.error_in_place_of(reply, told(err))
    return reply


def release(content: RecordDict) -> None:
    """Free the arrays of a message that nobody needs any more.

    Flower's records refer to each other in circles, so without this they would stay until the
    garbage collector comes by, and megabytes do not make it come sooner.
    """
    for record in compat.records_in(content, ArrayRecord).values():
        if isinstance(record, AdmittedRecord):
            record.received.release()
        record.clear()
