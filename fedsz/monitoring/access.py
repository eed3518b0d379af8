"""Who may see a page: this machine, or whoever has the token."""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from fedsz.errors import ConfigError
from fedsz.transport.address import is_loopback
from fedsz.transport.credentials import read_private

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "fedsz-dashboard"
LEAST_LETTERS: Final = 16  # of a token

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


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        ConfigError: others can read it, or it is too short to be a secret.
    """
    token = read_private(path).decode("utf-8", "replace").strip()
    if len(token) < LEAST_LETTERS or not (token.isascii() and token.isalnum()):
        raise ConfigError(f"{path} holds no token: it takes {LEAST_LETTERS} letters and digits")
    return token


class Access:
    """Lets requests through to an app that only reads, and answers all others itself.

    Without a token only requests that name this machine pass. So no page of somebody else's can
    have a browser here read the run by a name that leads to this machine.

    Args:
        app: what is protected.
        token: that requests must bring, once as ``/?token=`` by a browser or in each
            ``Authorization: Bearer`` header; "" for none.
        secure: whether the link is TLS, and a browser may send its cookie over nothing else.
    """

    def __init__(self, app: ASGIApp, token: str = "", *, secure: bool = False) -> None:
        self._app, self._token = app, token
        self._attributes = "; HttpOnly; SameSite=Strict; Path=/" + "; Secure" * secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        from starlette.responses import PlainTextResponse, RedirectResponse, Response

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        answer: ASGIApp | Response
        if scope["method"] not in ("GET", "HEAD"):
            answer = PlainTextResponse("this page is only read\n", 405)
        elif not self._token and not _names_this_machine(headers.get("host", "")):
            answer = PlainTextResponse("without a token, only this machine is answered\n", 403)
        elif self._token and given and self._fits(given):
            answer = RedirectResponse("/", 303)
            answer.headers["set-cookie"] = f"{COOKIE}={self._token}{self._attributes}"
        elif self._token and not self._fits(_shown(headers)):
            answer = PlainTextResponse("open this page as /?token=... with its token\n", 401)
        else:
            answer = self._app
        await answer(scope, receive, send_with_headers)

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _shown(headers: dict[str, str]) -> str:
    """Return the token that a request shows; "" for none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie else ""


def _names_this_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return bool(name) and is_loopback(str(name))
