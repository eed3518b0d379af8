"""A line that says what goes on, below the lines that are printed."""

from __future__ import annotations

import threading
import time
from typing import Final, Self

from rich.console import Console

from fedsz.cli.output import plain, say

QUIET_SECONDS: Final = 30.0  # without a line, after which a log is told what goes on


class StatusLine:
    """What goes on: one line that is updated on a terminal, and a line now and then in a log.

    A log gets the text when `QUIET_SECONDS` have passed since its last line, if it does not have it
    yet. All methods may be called from any thread.
    """

    def __init__(self, console: Console, text: str) -> None:
        self._console, self._text = console, text
        self._spinner = console.status(plain(text))
        self._lock = threading.Lock()  # over what follows
        self._said = ""  # the last text in the log
        self._last = time.monotonic()  # when its last line was printed
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._spinner.start()
        else:
            threading.Thread(target=self._remind, name="fedsz-status", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._spinner.stop()

    def update(self, text: str, *, at_once: bool = False) -> None:
        """Say that this goes on now; ``at_once`` also in a log."""
        self._text = text
        self._spinner.update(plain(text))
        if at_once and not self._console.is_terminal:
            self._log()

    def say(self, text: str, style: str = "") -> None:
        """Print lines above."""
        with self._lock:
            self._last = time.monotonic()
            say(text, style, console=self._console)

    def _log(self) -> None:
        with self._lock:
            if self._text != self._said:
                self._said, self._last = self._text, time.monotonic()
                say(self._text, console=self._console)

    def _remind(self) -> None:
        while not self._ended.wait(1.0):
            if time.monotonic() - self._last >= QUIET_SECONDS:
                self._log()
