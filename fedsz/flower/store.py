"""Where a client keeps its reference model and its residual: Flower's Context, or a folder.

A residual fits one reply. So a client that is asked the same again, by a server that crashed before
it could count the reply, sends the same reply again: it is kept beside the residual.

The records of fedsz are taken out of the Context while the app runs: the app's state is its own.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final
from weakref import ref

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from fedsz.arrays import NDArray
from fedsz.core.client import Memory
from fedsz.core.reference import Reference
from fedsz.errors import FedszError
from fedsz.flower.records import to_record, views_of
from fedsz.flower_compat import data_of, make_config, make_content, make_record
from fedsz.transport.records_file import read_records, write_records
from fedsz.whole_files import lock_folder

logger = logging.getLogger(__name__)

_OURS: Final = "fedsz."  # what the names of our records begin with
_REFERENCE: Final = "fedsz.reference."  # and the key of a model
_MEMORY: Final = "fedsz.memory."  # likewise
_ABOUT: Final = "fedsz.about."  # likewise: the run and the round of that
_REPLY: Final = "fedsz.reply."  # and the key of a record of the last reply
_ANSWERED: Final = "fedsz.answered"  # the request of that reply
_NOISY: Final = "fedsz.noisy"  # is there if the last update had noise of this client's own

Record = ArrayRecord | ConfigRecord | MetricRecord
Records = dict[str, Record]


class RecordStore:
    """A `fedsz.core.client.Store` of named records.

    Records that cannot be read, because something else wrote into them, are an error in the log and
    count as absent.

    Args:
        records: by name; changed in place.
    """

    def __init__(self, records: Records) -> None:
        self.records = records

    def reference(self, key: str) -> Reference | None:
        """Do as `Store.reference`."""
        record = self.records.get(_REFERENCE + key)
        if not isinstance(record, ArrayRecord) or (arrays := _arrays(record)) is None:
            return None
        return Reference(arrays)

    def keep_reference(self, key: str, model: Reference) -> Reference:
        """Do as `Store.keep_reference`; the arrays are views of the record."""
        digest = model.digest
        record = to_record(model.arrays)
        self._put(_REFERENCE + key, record)
        return Reference(views_of(record), digest)

    def reference_record(self, key: str) -> ArrayRecord:
        """Return the reference model as a record of the caller's own, of the same bytes."""
        record = self.records[_REFERENCE + key]
        assert isinstance(record, ArrayRecord)
        return make_record(dict(record))

    def memory(self, key: str) -> tuple[Memory, bytes, int]:
        """Do as `Store.memory`."""
        record, about = self.records.get(_MEMORY + key), self.records.get(_ABOUT + key)
        known = about if isinstance(about, ConfigRecord) else {}
        run, of_round = known.get("run"), known.get("round")
        if not isinstance(run, bytes) or not isinstance(of_round, int):
            return {}, b"", 0
        arrays = _arrays(record) if isinstance(record, ArrayRecord) else {}
        return arrays or {}, run, of_round

    def keep_memory(self, key: str, memory: Memory, run: bytes, round_number: int) -> None:
        """Do as `Store.keep_memory`."""
        self._put(_MEMORY + key, None)  # before the new one is there as arrays and as a record
        self._put(_MEMORY + key, to_record(memory) if memory else None)
        self._put(_ABOUT + key, make_config({"run": run, "round": round_number}))

    @property
    def is_noisy(self) -> bool:
        """Whether the last update had noise of this client's own."""
        return _NOISY in self.records

    @is_noisy.setter
    def is_noisy(self, value: bool) -> None:
        self._put(_NOISY, make_config({}) if value else None)

    def forget_memory(self) -> None:
        """Forget all residuals, and all state of methods."""
        for name in [name for name in self.records if name.startswith((_MEMORY, _ABOUT))]:
            self._put(name, None)

    def reply(self, request: bytes) -> RecordDict | None:
        """Return the reply that was kept for a request of this identity, if any."""
        about = self.records.get(_ANSWERED)
        if not isinstance(about, ConfigRecord) or about.get("request") != request:
            return None
        reply = {name: r for name, r in self.records.items() if name.startswith(_REPLY)}
        return make_content({name.removeprefix(_REPLY): _own(r) for name, r in reply.items()})

    def keep_reply(self, request: bytes, reply: RecordDict | None) -> None:
        """Keep the reply to a request, over that to another one; None forgets it."""
        for name in [name for name in self.records if name.startswith(_REPLY)]:
            self._put(name, None)
        self._put(_ANSWERED, make_config({"request": request}) if reply else None)
        for key, record in (data_of(reply) if reply else {}).items():
            self._put(f"{_REPLY}{key}", _own(record))

    def _put(self, name: str, record: Record | None) -> None:
        if record is not None:
            self.records[name] = record
        else:
            self.records.pop(name, None)


class ContextStore(RecordStore):
    """The records of fedsz in a Flower Context, out of the app's sight.

    Use it as a context: until its end the Context has the app's records alone.
    """

    def __init__(self, context: Context) -> None:
        self._context, state = context, data_of(context.state)
        super().__init__({name: state.pop(name) for name in list(state) if name.startswith(_OURS)})

    def __enter__(self) -> ContextStore:
        return self

    def __exit__(self, *_: object) -> None:
        data_of(self._context.state).update(self.records)


class FolderStore(RecordStore):
    """The records of fedsz in a folder: a file of reference models, and one of everything else.

    They outlive the process, and do not travel with each message as a Context does. Use it as a
    context: changes are written at its end, each file whole, the residual and the reply together.

    Args:
        folder: is made if it is not there. It is locked until the end of the context.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # What was read; weak, so that memory of records that are replaced is free meanwhile.
        self._before: dict[str, dict[str, ref[Record]]] = {}
        super().__init__({})

    def __enter__(self) -> FolderStore:
        """Lock the folder and read it.

        Raises:
            ConfigError: another process answers a message with this folder, or it cannot be made.
        """
        self._lock = lock_folder(self._folder, "client")
        for name in _FILES:
            found = _read(self._folder / name)
            self._before[name] = {name: ref(record) for name, record in found.items()}
            self.records |= found
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what has changed; nothing after Ctrl-C, which may come before the reply is kept.

        Raises:
            ConfigError: a file cannot be written. The old one is there still.
        """
        with self._lock:
            if kind is not None and not issubclass(kind, Exception):
                return
            for file, holds_references in _FILES.items():
                now = {
                    name: record
                    for name, record in self.records.items()
                    if name.startswith(_REFERENCE) == holds_references
                }
                before = self._before[file]
                if now.keys() != before.keys() or any(now[n] is not before[n]() for n in now):
                    write_records(self._folder / file, make_content(now), private=True)


_FILES: Final = {"reference.fsr": True, "update.fsr": False}  # whether it has reference models


def _read(path: Path) -> Records:
    """Return the records in a file; none if it cannot be read."""
    try:
        return data_of(read_records(path))
    except FileNotFoundError:
        return {}
    except (OSError, FedszError) as err:
        logger.error("%s is not used: %s", path, err)
        return {}


def _own(record: Record) -> Record:
    """Return a record of ours: its user may empty the other one, or put arrays into it."""
    return make_record(dict(record)) if isinstance(record, ArrayRecord) else record


def _arrays(record: ArrayRecord) -> dict[str, NDArray] | None:
    try:
        return views_of(record)
    except FedszError as err:
        logger.error("a client's state cannot be read: %s", err)
        return None
