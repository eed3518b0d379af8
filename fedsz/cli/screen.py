"""A run on the screen: a line for each round, above a line that says what goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Final, Self

import click
from rich.console import Console

from fedsz.cli.output import plain, print_event, say
from fedsz.control.record import RoundRecord
from fedsz.control.round_numbers import NUMBERS
from fedsz.formatting import ALL_ZERO, count, duration, outcome, size
from fedsz.monitoring.live_round import LiveRound
from fedsz.training.events import Client, Done, Event, Listening, Watched
from fedsz.transport.link_events import EventKind, LinkEvent

QUIET_SECONDS: Final = 30.0  # without a line, after which a log is told what goes on

NAMED: Final = 4  # clients that the summary names
FAILED: Final = "failed"  # a failure of unknown kind
CLIENTS: Final = "clients"  # a column of two numbers: how many replied, of how many
WIDTHS: Final = {  # eleven columns fit into 80 characters
    "round": 5, "accuracy": 8, "loss": 6, CLIENTS: 7, "raw_up": 8, "sent_up": 8, "ratio": 5,
    "energy_fraction": 6, "residual_ratio": 6, "max_error": 6, "seconds": 5,
}  # fmt: skip
# Under differential privacy nothing is fed back, so there are no residuals.
PRIVATE: Final = {("epsilon" if n == "residual_ratio" else n): w for n, w in WIDTHS.items()}

TRAIN: Final = "train"
# What an app does with a message of a type, and has done.
WORK: Final = {TRAIN: ("training", "trained"), "evaluate": ("evaluating", "evaluated")}
OTHER_WORK: Final = ("working on", "worked")


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


def heads_of(widths: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Return the lines above the columns."""
    return tuple(zip(*(NUMBERS[n].heads if n != CLIENTS else ("", n) for n in widths), strict=True))


HEADS: Final = heads_of(WIDTHS)


class RunTable(StatusLine):
    """Shows events: a table that grows by a line a round, above a line that says what goes on.

    Finished lines are printed, not redrawn, so that a run of a thousand rounds scrolls as it should
    and reads the same in a file.
    """

    def __init__(self) -> None:
        super().__init__(Console(), "starting the server")
        self._round: RoundRecord | None = None
        self._is_zero = False  # whether the last round's updates were
        self._live = LiveRound()
        self._listening: Listening | None = None
        self._done: Done | None = None

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._done:
            self._summary(self._done)
        elif self._listening and self._round:
            way_on = f"continue with --resume {self._listening.run_dir}"
            self.say(f"stopped in round {self._live.number}; {way_on}")

    def show(self, event: Event) -> None:
        """Take an event into the picture."""
        self._live.take(event)
        match event:
            case Watched(what, url):
                self.say(f"{what} at {url}", "dim")
            case Listening():
                self._listening = event
                self.say(f"listening on port {event.port}, results in {event.run_dir}", "dim")
                if event.privacy:
                    self.say(event.privacy, "dim")
            case Client(client_id, what, detail) if not self._done:
                if what not in ("joined", "received"):
                    self.say(f"client {client_id} {what}: {detail}", "dim")
            case RoundRecord():
                if not self._round:
                    for heads in heads_of(_widths(event)):
                        self._print_row(heads, style="bold")
                self._round = event
                for failure in event.failures:
                    self.say(
                        f"round {event.round} without {failure.client}: {failure.reason}", "dim"
                    )
                self._print_row(cells(event))
                if event.uncounted:
                    self.say(f"round {event.round} does not count: {event.uncounted}", "dim")
                if event.is_zero and not self._is_zero:
                    self.say(f"round {event.round}: {ALL_ZERO}")
                self._is_zero = event.is_zero
                if event.ended:
                    self.say(f"the run ends after round {event.round}: {event.ended}")
            case Done():
                self._done = event
        self.update(self._live.text(), at_once=not self._round)

    def _summary(self, done: Done) -> None:
        if not self._round:
            self.say(f"all rounds were over; results in {done.run_dir}")
            return
        of = done.totals
        rounds = "round" if done.rounds == 1 else "rounds"
        took = f"after {done.rounds} {rounds} in {done.round_seconds:.1f} s"
        lines = [f"{outcome(self._round.accuracy, self._round.loss)} {took}"]
        if of.sent_up:
            ratio = f"{of.raw_up / of.sent_up:.2f}x smaller ({size(of.wire_up)} on the wire)"
            lines.append(f"sent up {size(of.sent_up)} for {size(of.raw_up)} of updates: {ratio}")
            had = of.sent_down == 0
            ratio = ", which clients had" if had else f": {of.raw_down / of.sent_down:.2f}x smaller"
            models = f"{size(of.raw_down)} of models{ratio}"
            lines.append(f"sent down {size(of.sent_down)} for {models}")
            if of.max_error:
                lines.append(f"largest error {of.max_error:.4f} of its bound")
        else:
            lines.append("no client sent an update that could be used")
        lines += failure_lines(done.failures)
        self.say("\n".join((*lines, f"results in {done.run_dir}")))

    def _print_row(self, row: tuple[str, ...], style: str = "") -> None:
        padded = (f"{cell:>{width}}" for cell, width in zip(row, WIDTHS.values(), strict=True))
        self.say(" ".join(padded), style)


def failure_lines(failures: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a line for each of the clients that rounds went on without most often."""
    ranked = sorted(failures.items(), key=lambda item: -sum(item[1].values()))
    lines = [
        f"rounds without {client}: "
        + ", ".join(f"{times} {kind or FAILED}" for kind, times in kinds.items())
        for client, kinds in ranked[:NAMED]
    ]
    more = len(ranked) - len(lines)
    return [*lines, f"and rounds without {more} more clients"] if more else lines


def _widths(row: RoundRecord) -> Mapping[str, int]:
    return WIDTHS if row.epsilon is None else PRIVATE


def cells(row: RoundRecord) -> tuple[str, ...]:
    """Return a round as the cells of its line."""
    asked = row.replies + len(row.failures)
    clients = f"{row.replies}/{asked}" if asked else "-"
    found = [clients if name == CLIENTS else NUMBERS[name].text(row) for name in _widths(row)]
    if row.ratio is None:  # nobody sent anything that the other columns could be about
        found[4:] = ["-"] * len(found[4:])
    return tuple(found)


@contextmanager
def events_shown(*, json: bool) -> Iterator[Callable[[Event], None]]:
    """Give a function that prints events: as lines of JSON, or as a `RunTable`.

    Raises:
        click.exceptions.Exit: with status 1, if the run is over and no update of it could be used.
    """
    replies = None

    def note(event: Event) -> None:
        nonlocal replies
        if isinstance(event, Done):
            replies = event.totals.replies
        show(event)

    with nullcontext() if json else RunTable() as table:
        show = table.show if table else print_event
        yield note
    if replies == 0:
        raise click.exceptions.Exit(1)


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
