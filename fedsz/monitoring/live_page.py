"""The live page of a run: its routes, and who may see it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from fedsz import extras
from fedsz.errors import ConfigError
from fedsz.monitoring.live_round import LiveRound
from fedsz.monitoring.run_summary import ClientSummary, Follower
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
PAUSE_SECONDS: Final = 0.5  # between looks for news
QUIET_LOOKS: Final = 30  # without news, after which a page is told that the link is alive
COOKIE: Final = "fedsz-dashboard"
LEAST_LETTERS: Final = 16  # of a token

# The files that a page consists of, and their kinds; the first one is the page itself.
FILES: Final = {
    "index.html": "text/html",
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "charts.js": "text/javascript",
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
        self._follower = None if folder is None else Follower(folder)
        self._ended = False

    def show(self, event: Event) -> None:
        """Take an event of the run; from any thread."""
        if self._live:
            self._live.take(event)
        if isinstance(event, Listening):
            self._follower = Follower(Path(event.run_dir))

    def close(self) -> None:
        """End the streams to browsers."""
        self._ended = True

    def app(self) -> Starlette:
        """Return the page as an application that answers everybody; see `Access`."""
        from starlette.applications import Starlette
        from starlette.responses import Response, StreamingResponse
        from starlette.routing import Route

        def page(path: str, body: Callable[[], bytes], kind: str = "application/json") -> Route:
            return Route(path, lambda _: Response(body(), media_type=kind))

        async def events(request: Request) -> Response:
            last = request.headers.get("last-event-id", request.query_params.get("after", ""))
            return StreamingResponse(self._events(last), media_type="text/event-stream")

        static = resources.files("fedsz.monitoring") / "static"
        files = [page(f"/{name}", (static / name).read_bytes, kind) for name, kind in FILES.items()]
        return Starlette(
            routes=[
                page("/", (static / "index.html").read_bytes, "text/html"),
                *files,
                page("/colours.css", lambda: css().encode(), "text/css"),
                page("/api/run", self.run),
                page("/api/clients", self.clients),
                Route("/api/events", events),
            ]
        )

    def run(self) -> bytes:
        """Return the page's first data as JSON: the run, and a row for each round."""
        return _encoded(*self._rows(0))

    def clients(self) -> bytes:
        """Return the run's clients as JSON, with their present states where these are known."""
        states = self._live.states() if self._live else {}
        known: dict[str, ClientSummary] = {}
        if follower := self._follower:
            with follower.lock:
                known = {name: structs.replace(x) for name, x in follower.poll().clients.items()}
        for name, state in states.items():
            known.setdefault(name, ClientSummary(name=name)).state = state
        return msgspec.json.encode([*known.values()])

    def _rows(self, after: int) -> tuple[list[bytes], dict[str, Any]]:
        """Return the rows of rounds from ``after`` on, and the state of the run at that time."""
        follower = self._follower
        text = self._live.text() if self._live else ""
        state: dict[str, Any] = {"text": text, "count": 0, "generation": 0, "notices": []}
        if follower is None:
            return [], state
        with follower.lock:
            summary = follower.poll()
            rows = summary.rows[after:]
            state |= {
                "name": follower.folder.name,
                "finished": follower.finished,
                "count": len(summary.rows),
                "generation": follower.generation,
                "notices": list(summary.notices),
            }
        if config := follower.config:
            state |= {name: getattr(config, name) for name in SHOWN}
        return rows, state

    async def _events(self, last: str) -> AsyncIterator[bytes]:
        """Yield server-sent events: rows that came after ``last``, and states that differ.

        An event's id is the generation of the run's file and the number of rows so far.
        """
        found = re.fullmatch("([0-9]{1,9})-([0-9]{1,9})", last)
        generation, after = (int(found[1]), int(found[2])) if found else (0, 0)
        sent: dict[str, Any] = {}
        quiet = 0
        while not self._ended:
            rows, state = await asyncio.to_thread(self._rows, after)
            if generation != state["generation"]:
                yield b"event: reset\ndata: {}\n\n"
                return
            if rows or state != sent:
                after, sent, quiet = after + len(rows), state, 0
                yield b"id: %d-%d\ndata: %s\n\n" % (generation, after, _encoded(rows, state))
            elif (quiet := quiet + 1) % QUIET_LOOKS == 0:
                yield b": still here\n\n"
            await asyncio.sleep(PAUSE_SECONDS)


def _encoded(rows: list[bytes], state: dict[str, Any]) -> bytes:
    return b'{"state":%s,"rounds":[%s]}' % (msgspec.json.encode(state), b",".join(rows))


class Access:
    """Lets requests through to an app that only reads, and answers all others itself.

    Without a token only requests that name this machine pass. So a foreign page cannot have a
    browser here read the run by a name that leads to this machine.

    Args:
        app: the protected app.
        token: that requests must bring, once as ``/?token=`` by a browser or in each
            ``Authorization: Bearer`` header; "" for none.
        secure: whether the link is TLS, and a browser may send its cookie over nothing else.
    """

    def __init__(self, app: ASGIApp, token: str = "", *, secure: bool = False) -> None:
        self._app, self._token, self._secure = app, token, secure

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
        from starlette.responses import PlainTextResponse, RedirectResponse

        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page is only read\n", 405)
        if not self._token:
            if _names_this_machine(request):
                return None
            return PlainTextResponse("without a token, only this machine is answered\n", 403)
        if self._fits(request.query_params.get("token", "")):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(
                COOKIE, self._token, httponly=True, samesite="strict", secure=self._secure
            )
            return answer
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        shown = bearer.strip() if kind.lower() == "bearer" else request.cookies.get(COOKIE, "")
        if self._fits(shown):
            return None
        return PlainTextResponse("open this page as /?token=... with its token\n", 401)

    def _fits(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())


def _names_this_machine(request: Request) -> bool:
    from urllib.parse import urlsplit

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
    access: Any = Access(dashboard.app(), token, secure=tls is not None)
    with WebServer(access, address, tls) as server:
        try:
            yield server.url
        finally:
            dashboard.close()
