"""A node as every Grid of ours sees it: its id, its Context, and how its app answers."""

from __future__ import annotations

import hashlib
import logging
from functools import partial

from flwr.app import Context, Message, Metadata, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from fedsz.errors import ConfigError, log_failure
from fedsz.flower_compat import SUPERLINK_NODE_ID, ErrorCode, error_reply
from fedsz.formatting import megabytes
from fedsz.transport.messages import EncodedMessage, encode_message
from fedsz.transport.state_folder import StateFolder, lasting

logger = logging.getLogger(__name__)


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
