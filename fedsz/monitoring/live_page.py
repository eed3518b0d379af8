"""The live page of a run: its routes, and who may see it."""

from __future__ import annotations

import base64
import contextlib
import hmac
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from fedsz import extras
from fedsz.errors import ConfigError
from fedsz.monitoring.live_round import LiveRound
from fedsz.monitoring.run_summary import RunSummary
from fedsz.palette import css
from fedsz.training.events import Event, Listening
from fedsz.transport.address import Address, is_loopback
from fedsz.transport.channel import security
from fedsz.transport.credentials import read_private

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PORT: Final = 8265
LEAST_LETTERS: Final = 16  # of a token

# The files that a page consists of, and their kinds.
FILES: Final = {
    "index.html": "text/html",
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "uplot.css": "text/css",
    "uplot.js": "text/javascript",
}
# Options of the run that the page names.
SHOWN: Final = ("task", "dataset", "model", "policy", "rounds", "tolerance")
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
        " connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Dashboard:
    """The content of a run's page: its folder, and the live round if this process serves it.

    Args:
        folder: of a run, finished or not; None until an event tells of it.
        live: the round that is going on; None if another process serves the run.

    Raises:
        ConfigError: the folder holds no run.
        MissingPackage: a package is not installed.
    """

    def __init__(self, folder: Path | None = None, live: LiveRound | None = None) -> None:
        extras.require(*extras.EXTRAS["dashboard"])
        self._live = live
        self._summary = None if folder is None else RunSummary(folder)
        self._lock = threading.Lock()  # over reading the summary

    def show(self, event: Event) -> None:
        """Take an event of the run; from any thread."""
        if self._live:
            self._live.take(event)
        if isinstance(event, Listening):
            self._summary = RunSummary(Path(event.run_dir))

    def app(self) -> Starlette:
        """Return the page as an application that answers everybody; see `Access`."""
        from starlette.applications import Starlette
        from starlette.responses import Response
        from starlette.routing import Route

        def page(path: str, body: bytes, kind: str) -> Route:
            return Route(path, lambda _: Response(body, media_type=kind))

        def run(request: Request) -> Response:
            after = request.query_params.get("after", "")
            rounds = int(after) if after.isdecimal() and len(after) < 10 else 0
            return Response(self.run(rounds), media_type="application/json")

        static = resources.files("fedsz.monitoring") / "static"
        files = [
            page(f"/{name}", (static / name).read_bytes(), kind) for name, kind in FILES.items()
        ]
        return Starlette(
            routes=[
                page("/", (static / "index.html").read_bytes(), "text/html"),
                *files,
                page("/colours.css", css().encode(), "text/css"),
                Route("/api/run", run),
            ]
        )

    def run(self, after: int = 0) -> bytes:
        """Return as JSON the state of the run, its clients, and its rounds but the first ones.

        ``after`` says how many rounds are left out: the page has them.
        """
        text = self._live.text() if self._live else ""
        states = self._live.states() if self._live else {}
        state: dict[str, Any] = {"text": text, "notices": []}
        rows: list[bytes] = []
        clients = {name: {"name": name} for name in states}
        if summary := self._summary:
            with self._lock:
                summary.poll()
                rows = summary.rows[after:]
                clients |= {k: msgspec.to_builtins(x) for k, x in summary.clients.items()}
                notices = list(summary.notices)
            state |= {
                "name": summary.folder.name,
                "finished": summary.finished,
                "notices": notices,
            }
            if config := summary.config:
                state |= {name: getattr(config, name) for name in SHOWN}
        lines = [{**client, "state": states.get(name)} for name, client in clients.items()]
        told = (msgspec.json.encode(state), b",".join(rows), msgspec.json.encode(lines))
        return b'{"state":%s,"rounds":[%s],"clients":%s}' % told


class Access:
    """Lets requests through to an app that only reads, and answers all others itself.

    Without a token only requests that name this machine pass. So a foreign page cannot have a
    browser here read the run by a name that leads to this machine.

    Args:
        app: the protected app.
        token: the password that requests must bring (HTTP Basic, of any user); "" for none.
    """

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        from starlette.requests import Request

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        answer = self._answer(Request(scope)) or self._app
        await answer(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that does not pass; None if it does."""
        from starlette.responses import PlainTextResponse

        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page is only read\n", 405)
        if not self._token:
            if _names_this_machine(request):
                return None
            return PlainTextResponse("without a token, only this machine is answered\n", 403)
        if hmac.compare_digest(_password(request), self._token.encode()):
            return None
        asks = {"www-authenticate": 'Basic realm="fedsz"'}
        return PlainTextResponse("the password is this page's token\n", 401, asks)


def _password(request: Request) -> bytes:
    """Return the password of HTTP Basic; empty if there is none."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value).partition(b":")[2]
    except ValueError:
        return b""


def _names_this_machine(request: Request) -> bool:
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return False
    return bool(host) and is_loopback(str(host))


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        ConfigError: others can read it, or it is too short to be a secret.
    """
    token = read_private(path).decode("utf-8", "replace").strip()
    if len(token) < LEAST_LETTERS or not (token.isascii() and token.isalnum()):
        raise ConfigError(f"{path} holds no token: it takes {LEAST_LETTERS} letters and digits")
    return token


@contextlib.contextmanager
def served(
    dashboard: Dashboard,
    where: str,
    token_file: str = "",
    tls: tuple[str, str] | None = None,
) -> Iterator[str]:
    """Serve a dashboard while the block lasts, and give the address for a browser.

    Args:
        dashboard: to serve.
        where: ``HOST:PORT``, or one of the two.
        token_file: a file with the token that browsers need; "" for none.
        tls: the files of certificate and private key, for other hosts than loopback.

    Raises:
        ConfigError: the host is not loopback and there is no token, or the token is none.
        LinkError: the port is in use.
    """
    from fedsz.monitoring.web_server import WebServer

    address = Address.parse(where, PORT)
    if not address.is_loopback and not token_file:
        raise ConfigError(
            f"a dashboard on {address.host} needs --dashboard-token FILE: others reach it"
        )
    token = read_token(Path(token_file)) if token_file else ""
    tls = None if address.is_loopback else tls
    if not (address.is_loopback or tls):
        security.warning("the dashboard on %s is plaintext: others can read its token", address)
    access: Any = Access(dashboard.app(), token)
    with WebServer(access, address, tls) as server:
        yield server.url
