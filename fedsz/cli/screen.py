"""A run in lines: one for each round, and what goes on now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Final, Self

import click

from fedsz.cli.output import print_event, say
from fedsz.control.record import RoundRecord
from fedsz.control.round_numbers import NUMBERS
from fedsz.formatting import ALL_ZERO, count, duration, outcome, size
from fedsz.monitoring.live_round import LiveRound
from fedsz.training.events import Client, Done, Event, Listening, Watched
from fedsz.transport.link_events import EventKind, LinkEvent

QUIET_SECONDS: Final = 30.0  # without a line, after which what goes on is printed

NAMED: Final = 4  # clients that the summary names
FAILED: Final = "failed"  # a failure of unknown kind
CLIENTS: Final = "clients"  # a column of two numbers: how many replied, of how many
WIDTHS: Final = {  # eleven columns fit into 80 characters
    "round": 5, "accuracy": 8, "loss": 6, CLIENTS: 7, "raw_up": 8, "sent_up": 8, "ratio": 5,
    "energy_fraction": 6, "residual_ratio": 6, "max_error": 6, "seconds": 5,
}  # fmt: skip
# Under differential privacy nothing is fed back, so there are no residuals.
PRIVATE: Final = {("epsilon" if n == "residual_ratio" else n): w for n, w in WIDTHS.items()}
TRAIN: Final = "train"  # the type of a message


def heads_of(widths: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Return the lines above the columns."""
    return tuple(zip(*(NUMBERS[n].heads if n != CLIENTS else ("", n) for n in widths), strict=True))


HEADS: Final = heads_of(WIDTHS)


class RunTable:
    """Shows events: a table that grows by a line a round, so that it reads the same in a file.

    If no line was printed for `QUIET_SECONDS`, a line says what goes on. `show` may be called from
    any thread.
    """

    def __init__(self) -> None:
        self._round: RoundRecord | None = None
        self._is_zero = False  # whether the last round's updates were
        self._live = LiveRound()
        self._listening: Listening | None = None
        self._done: Done | None = None
        self._shown = ""  # the last text of what goes on
        self._quiet = False  # whether no line was printed since the reminder's last look
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._remind, name="fedsz-reminder", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._done:
            self._summary(self._done)
        elif self._listening and self._round:
            way_on = f"continue with --resume {self._listening.run_dir}"
            self._say(f"stopped in round {self._live.number}; {way_on}")

    def show(self, event: Event) -> None:
        """Take an event into the picture."""
        self._live.take(event)
        match event:
            case Watched(what, url):
                self._say(f"{what} at {url}")
            case Listening():
                self._listening = event
                self._say(f"listening on port {event.port}, results in {event.run_dir}")
                if event.privacy:
                    self._say(event.privacy)
            case Client(client_id, what, detail) if not self._done:
                if what not in ("joined", "received"):
                    named = f"client {client_id}" if client_id else "a client"
                    self._say(f"{named} {what}: {detail}")
            case RoundRecord():
                self._end_round(event)
            case Done():
                self._done = event
        if not self._round:
            self._say_what_goes_on()

    def _say(self, text: str) -> None:
        self._quiet = False
        say(text)

    def _say_what_goes_on(self) -> None:
        """Say it once."""
        text = self._live.text()
        if text != self._shown:
            self._shown = text
            self._say(text)

    def _remind(self) -> None:
        while not self._ended.wait(QUIET_SECONDS):
            if self._quiet:
                self._say_what_goes_on()
            self._quiet = True

    def _end_round(self, record: RoundRecord) -> None:
        if not self._round:
            for heads in heads_of(_widths(record)):
                self._print_row(heads)
        self._round = record
        for failure in record.failures:
            self._say(f"round {record.round} without {failure.client}: {failure.reason}")
        self._print_row(cells(record))
        if record.uncounted:
            self._say(f"round {record.round} does not count: {record.uncounted}")
        if record.is_zero and not self._is_zero:
            self._say(f"round {record.round}: {ALL_ZERO}")
        self._is_zero = record.is_zero
        if record.ended:
            self._say(f"the run ends after round {record.round}: {record.ended}")

    def _summary(self, done: Done) -> None:
        if not self._round:
            self._say(f"all rounds were over; results in {done.run_dir}")
            return
        of = done.totals
        took = f"after {count(done.rounds, 'round')} in {done.round_seconds:.1f} s"
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
        self._say("\n".join((*lines, f"results in {done.run_dir}")))

    def _print_row(self, row: tuple[str, ...]) -> None:
        padded = (f"{cell:>{width}}" for cell, width in zip(row, WIDTHS.values(), strict=True))
        self._say(" ".join(padded))


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


class ClientLines:
    """Prints a client's events: a line for each round."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._joined = False
        self._said_why = False  # that it cannot reach the server, since it last could
        self._rounds = self._sent = 0  # rounds trained, and bytes of all replies
        self._received = 0  # bytes of the message in work
        self._work = LinkEvent(EventKind.WORKING, "")  # the last one
        self._began = time.monotonic()  # when the work did
        self._farewell = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._joined:
            how = "ended early" if any(error) else self._farewell
            say(f"{how}: {count(self._rounds, 'round')} trained, {size(self._sent)} sent")

    def show(self, event: LinkEvent) -> None:
        """Take an event into the picture."""
        match event.kind:
            case EventKind.CONNECTING if not self._said_why:
                say(f"connecting to {self._server}")
            case EventKind.WAITING if not self._said_why:
                say(f"no link to {self._server}: {event.detail}")
                self._said_why = True
            case EventKind.JOINED:
                self._joined, self._said_why = True, False
                say(f"joined {self._server} as {event.client_id}")
            case EventKind.LEFT:
                self._farewell = event.detail
            case EventKind.RECEIVED:
                self._received = event.size
            case EventKind.WORKING:
                self._work, self._began = event, time.monotonic()
            case EventKind.FAILED:
                say(f"{self._work_name}: {event.detail}")
            case EventKind.SENT:
                self._count(event)

    def _count(self, sent: LinkEvent) -> None:
        self._sent += sent.size
        if sent.detail:
            say(f"{self._work_name}: failed: {sent.detail}")
            return
        trains = self._work.detail == TRAIN
        self._rounds += trains
        work, took = "trained" if trains else "worked", duration(time.monotonic() - self._began)
        sizes = f"received {size(self._received)}, sent {size(sent.size)}"
        say(f"{self._work_name}: {sizes}; {work} and sent in {took}")

    @property
    def _work_name(self) -> str:
        round_ = self._work.round
        return f"round {round_}" if round_ else f"a {self._work.detail!r} message"
