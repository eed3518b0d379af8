"""A client on the screen."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console

from fedsz.cli.status import StatusLine
from fedsz.formatting import count, duration, size
from fedsz.transport.link_events import EventKind, LinkEvent

TRAIN: Final = "train"
# What an app does with a message of a type, and has done.
WORK: Final = {TRAIN: ("training", "trained"), "evaluate": ("evaluating", "evaluated")}
OTHER_WORK: Final = ("working on", "worked")


class ClientLines(StatusLine):
    """Shows a client's events: a line for each round, above a line that says what goes on."""

    def __init__(self, server: str) -> None:
        super().__init__(Console(), "starting the client")
        self._server = server
        self._said_why = False  # that it cannot reach the server, since it last could
        self._joined = False
        self._rounds = self._sent = 0  # rounds trained, and bytes of all replies
        self._received = 0  # bytes of the message in work
        self._work = LinkEvent(EventKind.WORKING, "")  # the last one
        self._begun = time.monotonic()  # when the work began
        self._took: float | None = None  # seconds, once it is done
        self._farewell = ""

    def __exit__(self, *error: object) -> None:
        super().__exit__()
        if self._joined:
            how = "ended early" if any(error) else self._farewell
            what = f"{count(self._rounds, 'round')} trained, {size(self._sent)} sent"
            self.say(f"{how}: {what}")

    def show(self, event: LinkEvent) -> None:
        """Take an event into the picture."""
        match event.kind:
            case EventKind.CONNECTING:
                text = f"connecting to {self._server}"
                self.update(text, at_once=not self._said_why)
            case EventKind.WAITING:
                text = f"no link to {self._server}: {event.detail}"
                self.update(text, at_once=not self._said_why)
                self._said_why = True
            case EventKind.JOINED:
                self._joined, self._said_why = True, False
                self.say(f"joined {self._server} as {event.client_id}")
                self._say_what_next()
            case EventKind.LEFT:
                self._farewell = event.detail
                self.update(f"{event.detail}; ending")
            case EventKind.RECEIVING:
                self.update(f"receiving the model: {_percent(event)}")
            case EventKind.RECEIVED:
                self._received = event.wire_bytes
            case EventKind.WORKING:
                self._work, self._begun, self._took = event, time.monotonic(), None
                self._say_what_next()
            case EventKind.SENDING:
                if self._took is None:  # else it is sent once more
                    self._took = time.monotonic() - self._begun
                self.update(f"uploading {_percent(event)}")
            case EventKind.SENT:
                self._count(event)
            case EventKind.FAILED:
                self._end(event.detail)

    def _count(self, sent: LinkEvent) -> None:
        self._sent += sent.wire_bytes
        if sent.detail:
            self._end(f"failed: {sent.detail}")
            return
        self._rounds += self._work.detail == TRAIN
        received, took = size(self._received), duration(self._took or 0.0)
        done = f"{_word(self._work, 1)} {took}, sent {size(sent.wire_bytes)}"
        self._end(f"received {received}, {done}")

    def _end(self, how: str) -> None:
        self.say(f"{_round(self._work)}: {how}")
        self._say_what_next()

    def _say_what_next(self) -> None:
        # An app works on without a link, and on what the server no longer waits for.
        works = self._work.message_id and self._took is None
        now = f"{_word(self._work, 0)} {_round(self._work)}"
        self.update(now if works else "waiting for the next round")


def _word(work: LinkEvent, tense: int) -> str:
    return WORK.get(work.detail, OTHER_WORK)[tense]


def _round(work: LinkEvent) -> str:
    return f"round {work.round}" if work.round else f"a {work.detail!r} message"


def _percent(way: LinkEvent) -> str:
    return f"{size(way.size)}, {100 * way.passed // way.size} %"
