"""A folder in which a client keeps what it goes on with after a crash: its Context's state."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

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
CLIENT: Final = "client.json"
LASTING: Final = "fedsz.lasting."  # what names of records begin with that hold for all runs
_ABOUT: Final = "fedsz.client"
_Text = Annotated[str, msgspec.Meta(max_length=256)]


class Remembered(msgspec.Struct):
    """What a client's next process says of itself, as it stands in the folder."""

    session_key: bytes
    drawn_id: _Text = ""  # where the client has no name of its own
    share: Share | None = None  # of the data, that the server gave


_remembered: Final = msgspec.json.Decoder(Remembered)  # learned before any thread uses it


class StateFolder:
    """The state of one client of one run, on disk. No state is better than a wrong one.

    Its files are for their owner alone: what training left tells of the data.

    Use it as a context; it is this process's own until the end.

    Raises:
        ConfigError: another client works in the folder, or it cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / STATE
        self._remembered: Remembered
        self._lock = lock_folder(path, "client")
        remove_parts(self.path)

    def read(self, run_id: int, node_id: int) -> RecordDict:
        """Return a client's state in a run; what is `lasting` if another one's is here."""
        try:
            records: Any = read_records(self.path)
            about = records.pop(_ABOUT)
            if (about["run-id"], about["node-id"]) == (run_id, node_id):
                return RecordDict(dict(records))
            logger.info("%s is of another run or client: it is not used", self.path)
            return lasting(records)
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
        kept = self._remembered = self._read_client(hello)
        if not named:
            kept.drawn_id = kept.drawn_id or hello.client_id
        self._write_client()
        config = hello.node_config
        if hello.wants_share and kept.share is not None:
            config = {**config, **kept.share.as_config()}
        client_id = hello.client_id if named else kept.drawn_id
        changed = {"session_key": kept.session_key, "client_id": client_id, "node_config": config}
        return msgspec.structs.replace(hello, **changed)

    def keep_share(self, node_config: UserConfig) -> None:
        """Remember the share of the data that the server gave."""
        self._remembered.share = Share.of(node_config)
        try:
            self._write_client()
        except ConfigError as err:
            logger.error("%s; after a crash this client asks for any share", err)

    def _read_client(self, hello: Hello) -> Remembered:
        """Return what is in the folder, if that makes sense; else only the key of ``hello``."""
        path = self.path.with_name(CLIENT)
        with contextlib.suppress(msgspec.DecodeError):
            raw = read_private(path) if path.exists() else b""
            kept = _remembered.decode(raw)
            possible = kept.share is None or kept.share.is_possible
            if len(kept.session_key) == len(hello.session_key) and possible:
                return kept
        return Remembered(hello.session_key)

    def _write_client(self) -> None:
        write_whole(
            self.path.with_name(CLIENT), msgspec.json.encode(self._remembered), private=True
        )

    def clear(self) -> None:
        """Remove the state, and all that is remembered with it."""
        for name in (STATE, CLIENT):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(name).unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()


def lasting(state: Mapping[str, Any]) -> RecordDict:
    """Return the records of a client's state that hold for all its runs, such as limits."""
    return RecordDict({name: r for name, r in state.items() if name.startswith(LASTING)})
