"""`GrpcGrid`: a Flower Grid whose nodes are clients connected by gRPC."""

from __future__ import annotations

import asyncio
import copy
import logging
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Final, Self

import grpc
from flwr.app import Error, Message

from fedsz.errors import ConfigError, FedszError, LinkError
from fedsz.flower_compat import error_reply
from fedsz.transport.address import Address, connections_for_clients
from fedsz.transport.channel import (
    DEFAULT_MAX_MESSAGE_BYTES,
    METHOD,
    SERVER_OPTIONS,
    SERVICE,
    warn_of_plaintext,
)
from fedsz.transport.credentials import ClientFile
from fedsz.transport.grid_base import GridBase, open_reply
from fedsz.transport.grpc_server import Hub, now
from fedsz.transport.link_events import Counters, NodeConfig, OnEvent, tell
from fedsz.transport.message_format import EncodedMessage
from fedsz.transport.server_session import Delivery, Outcome, ServerSession, Settler, Stored
from fedsz.whole_files import Pathish

logger = logging.getLogger(__name__)

_Outcomes = SimpleQueue[tuple[Delivery, Outcome]]
_FINISHED = "the run has finished"
SPOOL_MEMORY_BYTES: Final = 64 << 10  # of each reply; a larger one waits on disk
_CLOSE_SECONDS = 5.0  # for BYE to reach the clients


class GrpcGrid(GridBase):
    """A Flower Grid over gRPC: unmodified ServerApps and strategies run on it.

    Clients connect with `run_client` and stay connected. Messages of any size go out in chunks.
    Replies wait in temporary files until they are asked for (`tempfile` puts them into TMPDIR), so
    the server's memory does not grow with its clients.

    The grid serves between `start` and `close`, or inside a ``with`` block. Its methods may be
    called from any thread.

    Args:
        host: the address to listen on; ``0.0.0.0`` or ``::`` for all interfaces.
        port: 0 takes any free one; see `port`.
        credentials: for TLS, see `server_credentials`; None sends plain text.
        max_message_bytes: the largest reply accepted; a client that sends more is refused.
        reconnect_grace: seconds in which a client that lost its connection may come back before
            the replies it owes are given up.
        client_file: the fleet's clients; a certificate or token that is revoked there is refused.
            Clients from whom TLS asks for no certificate need a token of it.
        run_id: identifies the run to the ClientApps, whose Contexts last as long as it does. A
            server that is restarted to continue a run passes the same; None draws one.
        on_event: receives events of clients and messages, from the grid's own thread: must not
            block.
        max_connections: in all, with one stream each; others are closed. None takes what file
            descriptors allow, of which this process gets as many as it may have; see
            `fedsz.transport.address`.
        shares: of the data, to give to clients that ask for one. No two connected clients have the
            same share, asked for or named. None gives none and checks none.
        why_unfit: called with the ``node_config`` of a client that joins. It returns why the client
            is refused, which the client logs, or "". It must not block.

    Raises:
        ConfigError: the port is out of range, or the file of clients is not what it should be, or
            there are no ``credentials`` for it.

    Examples:
        >>> from fedsz.flower import GrpcGrid
        >>> with GrpcGrid(port=0) as grid:
        ...     (grid.port > 0, list(grid.get_node_ids()))
        (True, [])
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        credentials: grpc.ServerCredentials | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        reconnect_grace: float = 10.0,
        client_file: Pathish | None = None,
        run_id: int | None = None,
        on_event: OnEvent | None = None,
        max_connections: int | None = None,
        shares: int | None = None,
        why_unfit: Callable[[NodeConfig], str] = lambda _: "",
    ) -> None:
        super().__init__(run_id)
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"port must lie in [0, 65535], got {port}")
        if client_file is not None and credentials is None:
            raise ConfigError("a file of clients needs TLS: --client-file goes with --tls-cert")
        self._address, self._credentials = Address(host, port), credentials
        self.max_connections = max_connections or connections_for_clients()
        session = ServerSession(
            max_message_bytes=max_message_bytes,
            reconnect_grace=reconnect_grace,
            open_sink=partial(tempfile.SpooledTemporaryFile, SPOOL_MEMORY_BYTES),
            tell=partial(tell, on_event),
            shares=shares,
            why_unfit=why_unfit,
        )
        self._hub = Hub(session, ClientFile(client_file))
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # while serving
        # Over _loop: what is posted is posted before the end. The garbage collector may free a
        # `_Replies` in the middle of a call, in the same thread, and that one calls as well.
        self._lock = threading.RLock()
        self._farewell: asyncio.Future[tuple[str, bool]]
        # Outcomes by message id, the oldest first.
        self._unpulled: dict[str, tuple[Delivery, Outcome]] = {}

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._address.port

    @property
    def counters(self) -> Counters:
        """Bytes that have crossed the links; the difference of two snapshots is of a round."""
        return copy.copy(self._hub.counters)

    @property
    def bandwidths(self) -> Mapping[int, float]:
        """By node id, the bandwidth of its way here, in bits a second, as last measured."""
        return self._hub.session.bandwidths.copy()  # in one step, as the hub's thread sees it

    def client_name(self, node: int) -> str:
        """Return the id by which a client has named itself; its node id if it never has."""
        return self._hub.session.names.get(node, str(node))

    def start(self) -> Self:
        """Begin to listen.

        Raises:
            LinkError: the address cannot be had; names it and says why.
        """
        if self._thread is not None:
            raise LinkError("this grid has been started before")
        self._address.listen().close()  # which has a better reason than gRPC where it fails
        ready: Future[int] = Future()
        # A daemon, so that a script that never closes its grid still ends.
        self._thread = threading.Thread(
            target=self._run_loop, args=(ready,), name="fedsz-grid", daemon=True
        )
        self._thread.start()
        self._address = self._address._replace(port=ready.result())
        logger.info("listening on %s", self._address)
        if self._credentials is None:
            warn_of_plaintext(f"on {self._address}")
        return self

    def close(self, reason: str = _FINISHED, *, failed: bool = False) -> None:
        """Disconnect all clients, with a reason, and stop listening.

        ``failed`` says that the run has not finished: clients wait until it is resumed. This takes
        a few seconds at most. Replies still awaited become error replies.
        """
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.call_soon_threadsafe(self._farewell.set_result, (reason, failed))
        self._thread.join(2 * _CLOSE_SECONDS)
        with self._lock:
            for _, outcome in self._unpulled.values():
                _discard(outcome)
            self._unpulled.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, _: object
    ) -> None:
        if kind is None:
            self.close()
        else:
            why = str(err) if isinstance(err, FedszError) else kind.__name__
            why = "it was interrupted" if isinstance(err, KeyboardInterrupt) else why
            self.close(f"the server stopped before the run had finished: {why}", failed=True)

    def get_node_ids(self) -> list[int]:
        """Return the node ids of the clients that are connected now."""
        return list(self._hub.session.connected)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send ``messages`` and return their ids; a missing reply is an error after its ttl.

        Replies wait to be pulled. Beyond `max_connections`, the oldest ones are dropped.

        Raises:
            ConfigError: a message is no request, or holds what cannot be sent.
            LinkError: the grid is not started, or closed.
        """
        return [d.message_id for d in self._post(messages, None, self._keep_outcome)]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the outcomes that are known by now, each once."""
        with self._lock:
            found = [self._unpulled.pop(i) for i in message_ids if i in self._unpulled]
        return [_open(*both) for both in found]

    def _keep_outcome(self, delivery: Delivery, outcome: Outcome) -> None:
        """Keep an outcome until it is pulled; each reply among them may be an open file."""
        sent = EncodedMessage(delivery.message_id, (), 0)  # the model may be one, too
        delivery.out = delivery.out._replace(encoded=sent)
        with self._lock:
            self._unpulled[delivery.message_id] = delivery, outcome
            surplus = len(self._unpulled) - self.max_connections
            for late in list(islice(self._unpulled, max(0, surplus))):
                logger.warning("the reply to %s is dropped: it was not pulled in time", late)
                _discard(self._unpulled.pop(late)[1])

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send ``messages`` now and yield the outcomes as they come; see `GridBase`.

        Closing the iterator gives up the replies it has not yielded.

        Raises:
            LinkError: the grid is not started, or closed.
        """
        outcomes: _Outcomes = SimpleQueue()
        deliveries = self._post(messages, timeout, lambda d, outcome: outcomes.put((d, outcome)))
        return _Replies(deliveries, outcomes, self._call)

    def _post(
        self, messages: Iterable[Message], timeout: float | None, settle: Settler
    ) -> list[Delivery]:
        deliveries = [
            Delivery(out, out.metadata.ttl if timeout is None else timeout, settle)
            for out in self._prepare(messages)
        ]
        if not self._call(lambda hub: hub.session.post(deliveries, now())):
            way_out = "call start() first, and nothing after close()"
            raise LinkError(f"this grid is not serving: {way_out}")
        return deliveries

    def _call(self, action: Callable[[Hub], None]) -> bool:
        """Have the hub's thread do ``action``; return False where there is none."""
        with self._lock:
            if self._loop is None:
                return False
            self._loop.call_soon_threadsafe(action, self._hub)
            return True

    def _run_loop(self, ready: Future[int]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as err:
            if ready.done():
                raise
            ready.set_exception(err)

    async def _serve(self, ready: Future[int]) -> None:
        most = ("grpc.max_allowed_incoming_connections", self.max_connections)
        server = grpc.aio.server(options=(*SERVER_OPTIONS, most))
        handlers = {METHOD: grpc.stream_stream_rpc_method_handler(self._hub.serve)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        address = str(self._address)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
            await server.start()
        except RuntimeError as err:
            raise LinkError(f"cannot listen on {address}: {err}") from err
        self._loop = asyncio.get_running_loop()
        self._farewell = self._loop.create_future()
        ready.set_result(port)
        watch = asyncio.create_task(self._hub.watch())
        reason, failed = await self._farewell
        watch.cancel()
        self._hub.session.shut(reason, failed=failed)
        await server.stop(_CLOSE_SECONDS)


class _Replies:
    """An iterator over outcomes as they come; closing it gives up those that are missing."""

    def __init__(
        self,
        deliveries: list[Delivery],
        outcomes: _Outcomes,
        call: Callable[[Callable[[Hub], None]], bool],
    ) -> None:
        self._deliveries, self._outcomes, self._call = deliveries, outcomes, call
        self._missing = len(deliveries)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        if not self._missing:
            raise StopIteration
        delivery, outcome = self._outcomes.get()
        self._missing -= 1
        return _open(delivery, outcome)

    def give_up_after(self, seconds: float) -> None:
        """Await the missing replies for so long from when they were asked for."""
        if self._missing:
            deliveries = self._deliveries
            self._call(lambda hub: hub.session.hasten(deliveries, seconds, now()))

    def close(self) -> None:
        """Await no more replies."""
        if not self._missing:
            return
        self._missing = 0
        deliveries, outcomes = self._deliveries, self._outcomes

        def give_up(hub: Hub) -> None:
            hub.session.forget(deliveries)
            while not outcomes.empty():
                _discard(outcomes.get()[1])

        self._call(give_up)  # in the hub's thread, so that nothing comes in meanwhile

    def __del__(self) -> None:
        self.close()


def _open(delivery: Delivery, outcome: Outcome) -> Message:
    """Return the message an outcome stands for, and free the file it was in."""
    if isinstance(outcome, Error):
        return error_reply(delivery.out.metadata, outcome.code, outcome.reason or "")
    with outcome.file as file:
        file.seek(0)
        return open_reply(file, outcome.size, delivery.out, delivery.client_id)


def _discard(outcome: Outcome) -> None:
    if isinstance(outcome, Stored):
        outcome.file.close()
