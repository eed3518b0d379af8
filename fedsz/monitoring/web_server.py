"""A small web server in a thread, beside whatever else the process does."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Final, Self

from fedsz.errors import ConfigError
from fedsz.transport.address import Address

if TYPE_CHECKING:
    from starlette.types import ASGIApp

PATIENCE: Final = 3  # seconds for answers that are under way when it ends


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
        import uvicorn

        from fedsz.monitoring.web_connection import WebConnection

        certificate, key = tls or (None, None)
        config = uvicorn.Config(
            app,
            http=WebConnection,
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
            config.load()  # here, and not in the thread, where nobody would hear of it
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
        """What a browser on this machine is told."""
        return f"{self._scheme}://{self.address}/"

    def __enter__(self) -> Self:
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            time.sleep(0.01)  # or the first to ask would wait for what uvicorn still imports
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE + 1)
        self._socket.close()
