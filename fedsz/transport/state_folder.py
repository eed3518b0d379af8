"""A folder in which a client keeps what it goes on with after a crash: its Context's state."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, Final, Self

from flwr.app import ConfigRecord, RecordDict

from fedsz.errors import ConfigError, FedszError
from fedsz.transport.private_files import read_private, write_private
from fedsz.transport.records_file import read_records, write_records
from fedsz.whole_files import lock_folder, remove_parts

logger = logging.getLogger(__name__)

STATE: Final = "state"
KEY: Final = "session-key"
_ABOUT: Final = "fedsz.client"


class StateFolder:
    """The state of one client of one run, on disk. No state is better than a wrong one.

    Use it as a context; it is this process's own until the end.

    Raises:
        ConfigError: another client works in the folder, or it cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / STATE
        self._lock = lock_folder(path, "client")
        remove_parts(self.path)

    def read(self, run_id: int, node_id: int) -> RecordDict:
        """Return a client's state in a run; an empty one if that of neither is here, or whole."""
        try:
            records: Any = read_records(self.path)
            about = records.pop(_ABOUT)
            if (about["run-id"], about["node-id"]) == (run_id, node_id):
                return RecordDict(dict(records))
            logger.info("%s is of another run or client: it is not used", self.path)
        except FileNotFoundError:
            pass
        except (OSError, KeyError, TypeError, FedszError) as err:
            logger.error("%s is not used: %s", self.path, err)
        return RecordDict()

    def write(self, run_id: int, node_id: int, state: RecordDict) -> None:
        """Write a state; if that fails, none is left, for the old one is no longer true."""
        about = ConfigRecord({"run-id": run_id, "node-id": node_id})
        try:
            write_records(self.path, RecordDict({**state, _ABOUT: about}))
        except ConfigError as err:
            logger.error("%s; after a crash this client begins anew", err)
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()

    def session_key(self, fresh: bytes) -> bytes:
        """Return the key of the process before, whose place this one may take; or make one.

        Args:
            fresh: what is kept if there is none, or none that can be one.

        Raises:
            ConfigError: it cannot be written, or others can read it.
        """
        path = self.path.with_name(KEY)
        if path.exists():
            kept = read_private(path)
            if len(kept) == len(fresh):
                return kept
            path.unlink()  # a loss of power came before its bytes were there
        write_private(path, fresh)
        return fresh

    def clear(self) -> None:
        """Remove the state, and the key with it."""
        for path in (self.path, self.path.with_name(KEY)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()
