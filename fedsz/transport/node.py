"""A client's app: its node id, its Context, its replies, and its state on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from flwr.app import ConfigRecord, Context, Message, Metadata, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from msgspec.structs import replace

from fedsz.data_share import Share
from fedsz.errors import ConfigError, CorruptStream, FedszError, log_failure
from fedsz.flower_compat import SUPERLINK_NODE_ID, ErrorCode, error_reply
from fedsz.formatting import megabytes
from fedsz.transport.credentials import read_private
from fedsz.transport.frames import Hello, pack, unpack
from fedsz.transport.message_format import EncodedMessage, encode_message
from fedsz.transport.records_file import read_records, write_records
from fedsz.whole_files import lock_folder, remove_parts, write_whole

logger = logging.getLogger(__name__)

STATE: Final = "state"
HELLO: Final = "hello"
LASTING: Final = "fedsz.lasting."  # what names of records begin with that hold for all runs
_ABOUT: Final = "fedsz.client"


class StateFolder:
    """The state of one client of one run, on disk. No state is better than a wrong one.

    Its files are for their owner alone: the state of training tells of the data. Use it as a
    context; it is this process's own until the end.

    Raises:
        ConfigError: another client works in the folder, or it cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._hello = path / STATE, path / HELLO
        self._lock = lock_folder(path, "client")
        remove_parts(self.path)

    def read(self, run_id: int, node_id: int) -> RecordDict:
        """Return a client's state in a run; an empty one if that is not here, or is damaged."""
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
        """Write a state; if that fails, none remains, for the old one is no longer true."""
        about = ConfigRecord({"run-id": run_id, "node-id": node_id})
        try:
            write_records(self.path, RecordDict({**state, _ABOUT: about}), private=True)
        except ConfigError as err:
            logger.error("%s; after a crash this client begins anew", err)
            self.path.unlink(missing_ok=True)

    def resume(self, hello: Hello, *, named: bool) -> Hello:
        """Return a HELLO with the session key, and the share, of the process before.

        Args:
            hello: of this process; it is kept if there is none of a process before.
            named: the client id in it was not drawn; a drawn one is that of the process before.

        Raises:
            ConfigError: the folder cannot be written, or others can read the key.
        """
        last = None
        with suppress(CorruptStream):  # a damaged file is as good as none
            last = unpack(read_private(self._hello)) if self._hello.exists() else None
        if isinstance(last, Hello) and len(last.session_key) == len(hello.session_key):
            share = Share.of(last.node_config) if hello.wants_share else None
            config = {**hello.node_config, **(share.as_config() if share else {})}
            client_id = hello.client_id if named else last.client_id
            key = last.session_key
            hello = replace(hello, session_key=key, client_id=client_id, node_config=config)
        write_whole(self._hello, pack(hello), private=True)
        return hello

    def keep(self, hello: Hello) -> None:
        """Write the HELLO that the next process resumes."""
        try:
            write_whole(self._hello, pack(hello), private=True)
        except ConfigError as err:
            logger.error("%s; after a crash this client asks for any share", err)

    def clear(self) -> None:
        """Remove the state, and the HELLO."""
        for path in (self.path, self._hello):
            path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()


def node_id(client_id: str) -> int:
    """Return the node id of a client: the same in every run, positive, fits an int64."""
    digest = hashlib.sha256(client_id.encode()).digest()
    # 0 and 1 are taken: no node, and Flower's server.
    return max(int.from_bytes(digest[:8]) >> 1, SUPERLINK_NODE_ID + 1)


class Node:
    """A ClientApp with its configuration, and the state it keeps for as long as a run lasts.

    With a folder, the state is on disk before the reply that belongs to it can be sent.
    """

    def __init__(
        self,
        app: ClientApp,
        node_config: UserConfig,
        run_config: UserConfig | None = None,
        folder: StateFolder | None = None,
    ) -> None:
        self._app, self._folder = app, folder
        self._node_config = node_config
        self._make_context = partial(Context, run_config=dict(run_config or {}))
        self._context: Context | None = None

    def configure(self, node_config: UserConfig) -> None:
        """Have the app see another ``node_config`` from now on; the server may have changed it."""
        self._node_config = node_config
        if self._context is not None:
            self._context.node_config = dict(node_config)

    def answer(self, message: Message, *, limit: int) -> EncodedMessage:
        """Run the app and return its reply, or an error reply, ready for the wire.

        An exception of the app becomes the text of an error reply: one client's mistake must not
        end the run, nor its own part in it. The other end takes a reply of ``limit`` bytes.
        """
        asked = message.metadata
        try:
            reply = self._app(message, self._context_of(asked))
            if not isinstance(reply, Message):
                raise TypeError(f"the ClientApp returned {type(reply).__name__}, not a Message")
            encoded = encode_message(reply, asked.message_id)
            if encoded.size > limit:
                raise ConfigError(
                    f"a reply of {megabytes(encoded.size)}; the server takes {megabytes(limit)}"
                )
        except Exception as err:
            code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(err).__name__}: {err}"
            log_failure(logger, f"the ClientApp failed on a {asked.message_type!r} message", err)
            encoded = encode_message(error_reply(asked, code, reason), asked.message_id)
        if self._folder is not None and self._context is not None:
            self._folder.write(asked.run_id, asked.dst_node_id, self._context.state)
        return encoded

    def _context_of(self, asked: Metadata) -> Context:
        """Return the Context of the run that ``asked`` belongs to.

        Another run starts afresh, but for what is `lasting`: a server may call any run another.
        """
        if self._context is None or self._context.run_id != asked.run_id:
            run, node = asked.run_id, asked.dst_node_id
            state = self._folder.read(run, node) if self._folder is not None else RecordDict()
            if self._context is not None:
                state.update(lasting(self._context.state))
            own = dict(self._node_config)
            self._context = self._make_context(
                run_id=run, node_id=node, state=state, node_config=own
            )
        return self._context


def lasting(state: Mapping[str, Any]) -> RecordDict:
    """Return the records of a client's state that hold for all its runs, such as limits."""
    return RecordDict({name: r for name, r in state.items() if name.startswith(LASTING)})
