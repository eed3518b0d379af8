"""A run on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Self

from rich.console import Console

from fedsz.cli.output import print_event
from fedsz.cli.status import StatusLine
from fedsz.control.record import RoundRecord
from fedsz.formatting import metric, outcome, share, size
from fedsz.monitoring.live_round import LiveRound
from fedsz.training.events import Client, Done, Event, Listening, Watched

NAMED: Final = 4  # clients that the summary names
FAILED: Final = "failed"  # what records of older releases do not say more of
WIDTHS: Final = (5, 8, 6, 7, 8, 8, 5, 6, 6, 6, 5)  # eleven columns fit into 80 characters
HEADS: Final = (
    ("", "", "", "", "raw", "sent", "", "energy", "rounds", "error/", "round"),
    ("round", "accuracy", "loss", "clients", "up", "up", "ratio", "kept", "behind", "bound", "s"),
)


class RunTable:
    """Shows events: a table that grows by a line a round, above a line that says what goes on.

    Finished lines are printed, not redrawn, so that a run of a thousand rounds scrolls as it should
    and reads the same in a file.
    """

    def __init__(self) -> None:
        self._rows: list[RoundRecord] = []
        self._live = LiveRound()
        self._listening: Listening | None = None
        self._done: Done | None = None
        self._status = StatusLine(Console(), "starting the server")

    def __enter__(self) -> Self:
        self._status.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.__exit__()
        if self._done:
            self._summary(self._done)
        elif self._listening and self._rows:
            way_on = f"continue with --resume {self._listening.run_dir}"
            self._say(f"stopped in round {self._live.number}; {way_on}", style="")

    def show(self, event: Event) -> None:
        """Take an event into the picture."""
        self._live.take(event)
        match event:
            case Watched(what, url):
                self._say(f"{what} at {url}")
            case Listening():
                self._listening = event
                self._say(f"listening on port {event.port}, results in {event.run_dir}")
            case Client(client_id, what, detail) if not self._done:
                if what not in ("joined", "received"):
                    self._say(f"client {client_id} {what}: {detail}")
            case RoundRecord():
                if not self._rows:
                    for heads in HEADS:
                        self._print_row(heads, style="bold")
                self._rows.append(event)
                for failure in event.failures:
                    self._say(f"round {event.round} without {failure.client}: {failure.reason}")
                self._print_row(cells(event))
                if event.uncounted:
                    self._say(f"round {event.round} does not count: {event.uncounted}")
            case Done():
                self._done = event
        self._status.update(self._live.text(), at_once=not self._rows)

    def _summary(self, done: Done) -> None:
        if not self._rows:
            self._say(f"all rounds were over; results in {done.run_dir}", style="")
            return
        trained = [row for row in self._rows if row.round]
        names = ("raw_up", "sent_up", "wire_up", "raw_down", "sent_down")
        raw, sent, wire, model, down = (sum(getattr(row, n) for row in trained) for n in names)
        rounds = "round" if len(trained) == 1 else "rounds"
        took = f"after {len(trained)} {rounds} in {done.seconds:.1f} s"
        last = self._rows[-1]
        lines = [f"{outcome(last.accuracy, last.loss)} {took}"]
        if sent:
            up = f"{size(raw)} of updates: {raw / sent:.2f}x smaller ({size(wire)} on the wire)"
            ratio = f": {model / down:.2f}x smaller" if down else ", which clients had"
            models = f"{size(model)} of models{ratio}"
            error = max(row.max_error for row in trained)
            lines += [f"sent up {size(sent)} for {up}", f"sent down {size(down)} for {models}"]
            lines.append(f"largest error {error:.4f} of its bound")
        else:
            lines.append("no client sent an update that could be used")
        lines += failure_lines(done.failures)
        self._say("\n".join((*lines, f"results in {done.run_dir}")), style="")

    def _print_row(self, row: tuple[str, ...], style: str = "") -> None:
        padded = (f"{cell:>{width}}" for cell, width in zip(row, WIDTHS, strict=True))
        self._say(" ".join(padded), style)

    def _say(self, text: str, style: str = "dim") -> None:
        self._status.say(text, style)


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


def cells(row: RoundRecord) -> tuple[str, ...]:
    """Return a round as the cells of its line."""
    asked = row.replies + len(row.failures)
    clients = f"{row.replies}/{asked}" if asked else "-"
    start = (str(row.round), metric(row.accuracy), metric(row.loss), clients)
    if row.ratio is None:
        return (*start, *["-"] * (len(WIDTHS) - len(start)))
    sent = (size(row.raw_up), size(row.sent_up), f"{row.ratio:.2f}")
    arrived = share(row.kept), "-" if row.lag is None else f"{row.lag:.2f}"
    return (*start, *sent, *arrived, f"{row.max_error:.4f}", f"{row.seconds:.1f}")


@contextmanager
def events_shown(*, json: bool) -> Iterator[Callable[[Event], None]]:
    """Give a function that prints events: as lines of JSON, or as a `RunTable`."""
    if json:
        yield print_event
    else:
        with RunTable() as table:
            yield table.show
