"""A small web server in a thread of its own, for the live page or the metrics."""

from __future__ import annotations

import socket
import threading
import time
from asyncio import Transport
from typing import TYPE_CHECKING, Final, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedsz.errors import ConfigError
from fedsz.transport.address import Address, connections_for_web

if TYPE_CHECKING:
    from starlette.types import ASGIApp

PATIENCE: Final = 3  # seconds for answers that are under way when it ends


class _Connection(H11Protocol):
    """HTTP/1.1 by uvicorn, whose own limit of connections accepts all and answers 503."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Close a connection at once if too many are open: the run needs its descriptors."""
        super().connection_made(transport)
        if len(self.connections) > connections_for_web():
            transport.abort()


class WebServer:
    """Serves an app on an address from now on, until the block ends.

    Args:
        app: the application.
        address: to listen on.
        tls: the files of certificate and private key; None for plaintext.

    Attributes:
        address: with the port that it has.

    Raises:
        ConfigError: the certificate or its key cannot be used.
        LinkError: the port is in use.
    """

    def __init__(self, app: ASGIApp, address: Address, tls: tuple[str, str] | None = None) -> None:
        certificate, key = tls or (None, None)
        config = uvicorn.Config(
            app,
            http=_Connection,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=PATIENCE,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        try:
            config.load()  # here: errors in the thread would be lost
        except OSError as err:
            raise ConfigError(f"{certificate}: {err.strerror or err}") from err
        self._server = uvicorn.Server(config)
        self._socket: socket.socket = address.listen()
        self.address = address._replace(port=self._socket.getsockname()[1])
        self._scheme = "https" if tls else "http"
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="fedsz-web", daemon=True
        )

    @property
    def url(self) -> str:
        """The page's address, for a browser on this machine."""
        return f"{self._scheme}://{self.address}/"

    def __enter__(self) -> Self:
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            time.sleep(0.01)  # the first request need not wait for uvicorn's imports
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE + 1)
        self._socket.close()
