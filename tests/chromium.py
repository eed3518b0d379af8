"""Chromium without a window, spoken to over a pipe (the DevTools protocol)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

PATIENCE = 60.0  # seconds for an answer; the machine may be busy


def executable() -> str | None:
    """Where Chromium is, under any of its names."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Page:
    """A page of a browser; `events` are all that it told unasked."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def attach(self) -> Self:
        target = self("Target.createTarget", url="about:blank")["targetId"]
        session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        return self

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def open(self, place: Path | str) -> None:
        """Load a file or an address, and wait until all of it is there."""
        self.events.clear()
        self("Page.navigate", url=place if isinstance(place, str) else place.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON; None for undefined."""
        done = self("Runtime.evaluate", expression=f"JSON.stringify({expression})")
        assert "exceptionDetails" not in done, done
        return json.loads(done["result"].get("value", "null"))

    def wait_until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.value(f"!!({expression})"):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.1)

    def show(self, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Be a screen of a width, or paper; phones below 600 pixels."""
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self("Emulation.setEmulatedMedia", media=media, features=features)

    def shot(self) -> bytes:
        """Return all of the page as PNG."""
        shot = self("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        return base64.b64decode(shot)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            block = os.read(self._read, 1 << 20)
            assert block, "the browser has ended"
            self._buffer += block
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@contextlib.contextmanager
def browser(path: str) -> Iterator[Page]:
    """A blank page of a fresh browser, which has ended when the block has."""
    # It reads from 3 and writes to 4.
    shell = ["sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null', "sh"]
    with tempfile.TemporaryDirectory(prefix="fedsz-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                *shell, path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={profile}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdin
        assert process.stdout
        try:
            yield Page(process.stdout.fileno(), process.stdin.fileno()).attach()
        finally:
            process.stdin.close()  # it ends when nobody commands it any more
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
