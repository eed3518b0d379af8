"""A client's app: its node id, its Context, its replies, and its state on disk."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
from flwr.app import ConfigRecord, Context, Message, Metadata, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from fedsz.data_share import Share
from fedsz.errors import ConfigError, FedszError, log_failure
from fedsz.flower_compat import SUPERLINK_NODE_ID, ErrorCode, error_reply
from fedsz.formatting import megabytes
from fedsz.transport.credentials import read_private
from fedsz.transport.frames import Hello
from fedsz.transport.message_format import EncodedMessage, encode_message
from fedsz.transport.records_file import read_records, write_records
from fedsz.whole_files import lock_folder, remove_parts, write_whole

logger = logging.getLogger(__name__)

STATE: Final = "state"
CLIENT: Final = "client.json"
LASTING: Final = "fedsz.lasting."  # what names of records begin with that hold for all runs
_ABOUT: Final = "fedsz.client"


class Remembered(msgspec.Struct, frozen=True):
    """What a client's next process says of itself."""

    session_key: bytes
    drawn_id: Annotated[str, msgspec.Meta(max_length=256)] = ""  # of a client without a name
    share: Share | None = None  # of the data, that the server gave


_remembered: Final = msgspec.json.Decoder(Remembered)  # made before any thread uses it


class StateFolder:
    """The state of one client of one run, on disk. No state is better than a wrong one.

    Its files are for their owner alone: the state of training tells of the data. Use it as a
    context; it is this process's own until the end.

    Raises:
        ConfigError: another client works in the folder, or it cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._client = path / STATE, path / CLIENT
        self._remembered: Remembered
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

    def remember(self, hello: Hello, *, named: bool) -> Hello:
        """Return a HELLO with the session key, the drawn id and the share of the process before.

        Args:
            hello: what is said, and remembered, if nothing was.
            named: the client id in it was not drawn.

        Raises:
            ConfigError: the folder cannot be written, or others can read the key.
        """
        last = self._read_client(len(hello.session_key)) or Remembered(hello.session_key)
        if not named:
            last = msgspec.structs.replace(last, drawn_id=last.drawn_id or hello.client_id)
        self._write_client(last)
        config = hello.node_config
        if hello.wants_share and last.share is not None:
            config = {**config, **last.share.as_config()}
        client_id = hello.client_id if named else last.drawn_id
        changed = {"session_key": last.session_key, "client_id": client_id, "node_config": config}
        return msgspec.structs.replace(hello, **changed)

    def keep_share(self, node_config: UserConfig) -> None:
        """Remember the share of the data that the server gave."""
        share = Share.of(node_config)
        try:
            self._write_client(msgspec.structs.replace(self._remembered, share=share))
        except ConfigError as err:
            logger.error("%s; after a crash this client asks for any share", err)

    def _read_client(self, key_bytes: int) -> Remembered | None:
        """Return what is remembered; None for a damaged file or none."""
        with contextlib.suppress(msgspec.DecodeError):
            last = _remembered.decode(read_private(self._client)) if self._client.exists() else None
            if last is not None and len(last.session_key) == key_bytes:
                return last if last.share is None or last.share.is_possible else None
        return None

    def _write_client(self, remembered: Remembered) -> None:
        self._remembered = remembered
        write_whole(self._client, msgspec.json.encode(remembered), private=True)

    def clear(self) -> None:
        """Remove the state, and all that is remembered with it."""
        for path in (self.path, self._client):
            path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()


def node_id(client_id: str) -> int:
    """Return the node id of a client: the same in every run, positive, fits an int64."""
    digest = hashlib.sha256(client_id.encode()).digest()
    # 0 and 1 are taken: nobody, and Flower's server.
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
        if node_config == self._node_config:
            return
        self._node_config = node_config
        if self._context is not None:
            self._context.node_config = dict(node_config)
        if self._folder is not None:
            self._folder.keep_share(node_config)

    def answer(self, message: Message, *, limit: int) -> EncodedMessage:
        """Run the app and return its reply, or an error reply, ready for the wire.

        Whatever the app raises becomes the text of an error reply: one client's mistake must not
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
