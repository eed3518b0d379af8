"""A folder in which a client keeps what it goes on with after a crash: its Context's state."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from flwr.app import ConfigRecord, RecordDict, UserConfig

from fedsz.data_share import Share
from fedsz.errors import ConfigError, FedszError
from fedsz.transport.frames import Hello
from fedsz.transport.private_files import read_private
from fedsz.transport.records_file import read_records, write_records
from fedsz.whole_files import lock_folder, remove_parts, write_whole

logger = logging.getLogger(__name__)

STATE: Final = "state"
KEY: Final = "session-key"
CLIENT_ID: Final = "client-id"  # that was drawn
SHARE: Final = "share"  # of the data, that the server gave
_ABOUT: Final = "fedsz.client"
_LONGEST: Final = 256  # characters of what is remembered


class StateFolder:
    """The state of one client of one run, on disk. No state is better than a wrong one.

    Its files are for their owner alone: what training left tells of the data.

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
            write_records(self.path, RecordDict({**state, _ABOUT: about}), private=True)
        except ConfigError as err:
            logger.error("%s; after a crash this client begins anew", err)
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()

    def remember(self, hello: Hello, *, named: bool) -> Hello:
        """Return what the process before would say: its session key, its drawn id, its share.

        Args:
            hello: what is said, and kept, where nothing is remembered.
            named: the client id in it was not drawn.

        Raises:
            ConfigError: the folder cannot be written, or others can read the key.
        """
        key = self.session_key(hello.session_key)
        client_id = hello.client_id if named else self._kept(CLIENT_ID) or hello.client_id
        if not named:
            write_whole(self.path.with_name(CLIENT_ID), client_id.encode(), private=True)
        config = hello.node_config
        if hello.wants_share and (share := Share.parse(self._kept(SHARE))) is not None:
            config = {**config, **share.as_config()}
        changed = {"session_key": key, "client_id": client_id, "node_config": config}
        return msgspec.structs.replace(hello, **changed)

    def keep_share(self, node_config: UserConfig) -> None:
        """Remember the share of the data that the server gave."""
        share = Share.of(node_config)
        try:
            write_whole(self.path.with_name(SHARE), str(share or "").encode(), private=True)
        except ConfigError as err:
            logger.error("%s; after a crash this client asks for any share", err)

    def _kept(self, name: str) -> str:
        """Return the text of a file; "" if it is missing or no line of text."""
        try:
            text = self.path.with_name(name).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return ""
        return text if text.isprintable() and len(text) <= _LONGEST else ""

    def session_key(self, fresh: bytes) -> bytes:
        """Return the key of the process before, whose place this one may take; or make one.

        Args:
            fresh: what is kept if there is none, or none that can be one.

        Raises:
            ConfigError: it cannot be written, or others can read it.
        """
        path = self.path.with_name(KEY)
        kept = read_private(path) if path.exists() else b""
        if len(kept) == len(fresh):
            return kept
        write_whole(path, fresh, private=True)
        return fresh

    def clear(self) -> None:
        """Remove the state, and all that is remembered with it."""
        for name in (STATE, KEY, CLIENT_ID, SHARE):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(name).unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()
