"""The live page of a run: what it asks its server for, and the server's answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from fedsz import extras
from fedsz.errors import ConfigError
from fedsz.monitoring.access import Access, read_token
from fedsz.monitoring.live_round import LiveRound
from fedsz.monitoring.run_summary import ClientSummary, Follower
from fedsz.monitoring.web_server import WebServer
from fedsz.palette import css
from fedsz.training.events import Event, Listening
from fedsz.transport.address import Address
from fedsz.transport.channel import security

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PORT: Final = 8265
PAUSE_SECONDS: Final = 0.5  # between looks for news
QUIET_LOOKS: Final = 30  # without news, after which a page is told that the link is alive

# The files that a page consists of: paths, names and kinds.
FILES: Final = (
    ("/", "index.html", "text/html"),
    ("/dashboard.css", "dashboard.css", "text/css"),
    ("/dashboard.js", "dashboard.js", "text/javascript"),
    ("/charts.js", "charts.js", "text/javascript"),
    ("/uplot.css", "uplot.css", "text/css"),
    ("/uplot.js", "uplot.js", "text/javascript"),
)
# Options of the run that the page names.
SHOWN: Final = ("task", "dataset", "model", "policy", "rounds", "tolerance")


class Dashboard:
    """What the page of a run shows: its folder, and what goes on where this process serves it.

    Args:
        folder: of a run, finished or not; None until an event tells of it.
        live: what goes on; None where another process serves the run.

    Raises:
        ConfigError: the folder holds no run.
        MissingPackage: a package is not installed.
    """

    def __init__(self, folder: Path | None = None, live: LiveRound | None = None) -> None:
        extras.require(*extras.EXTRAS["dashboard"])
        self._live, self._lock = live, threading.Lock()
        self._follower: Follower | None = None
        self._ended = False
        if folder is not None:
            self._follower = Follower(folder)

    def show(self, event: Event) -> None:
        """Take an event of the run into the picture; from any thread."""
        with self._lock:
            if self._live:
                self._live.take(event)
        if isinstance(event, Listening):
            self._follower = Follower(Path(event.run_dir))

    def close(self) -> None:
        """Let browsers go."""
        self._ended = True

    def app(self) -> Starlette:
        """Return the page as an application that anybody may ask; see `Access`."""
        from starlette.applications import Starlette
        from starlette.responses import Response, StreamingResponse
        from starlette.routing import Route

        def page(path: str, body: Callable[[], bytes], kind: str = "application/json") -> Route:
            return Route(path, lambda _: Response(body(), media_type=kind))

        async def events(request: Request) -> Response:
            last = request.headers.get("last-event-id", request.query_params.get("after", ""))
            return StreamingResponse(self._events(last), media_type="text/event-stream")

        static = resources.files("fedsz.monitoring") / "static"
        return Starlette(
            routes=[
                *(page(path, (static / name).read_bytes, kind) for path, name, kind in FILES),
                page("/colours.css", lambda: css().encode(), "text/css"),
                page("/api/run", self.run),
                page("/api/clients", self.clients),
                Route("/api/events", events),
            ]
        )

    def run(self) -> bytes:
        """Return what the page begins with, as JSON: the run, and a row for each round."""
        return _told(*self._rows(0))

    def clients(self) -> bytes:
        """Return the run's clients as JSON, with what each does where that is known."""
        with self._lock:
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
        with self._lock:
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
        generation, after = _place(last)
        told: dict[str, Any] = {}
        quiet = 0
        while not self._ended:
            rows, state = await asyncio.to_thread(self._rows, after)
            if generation != state["generation"]:
                yield b"event: reset\ndata: {}\n\n"
                return
            if rows or state != told:
                after, told, quiet = after + len(rows), state, 0
                yield b"id: %d-%d\ndata: %s\n\n" % (generation, after, _told(rows, state))
            elif (quiet := quiet + 1) % QUIET_LOOKS == 0:
                yield b": still here\n\n"
            await asyncio.sleep(PAUSE_SECONDS)


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


def _told(rows: list[bytes], state: dict[str, Any]) -> bytes:
    return b'{"state":%s,"rounds":[%s]}' % (msgspec.json.encode(state), b",".join(rows))


def _place(last: str) -> tuple[int, int]:
    """Return the generation and the number of rows in an event's id; zeros for any other text."""
    found = re.fullmatch("([0-9]{1,9})-([0-9]{1,9})", last)
    return (int(found[1]), int(found[2])) if found else (0, 0)
