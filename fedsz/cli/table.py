"""A run on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Final

import typer
from rich.console import Console

from fedsz.cli.output import print_event
from fedsz.cli.status import StatusLine
from fedsz.control.record import RoundRecord
from fedsz.control.round_numbers import NUMBERS
from fedsz.formatting import ALL_ZERO, outcome, size
from fedsz.monitoring.live_round import LiveRound
from fedsz.training.events import Client, Done, Event, Listening, Watched

NAMED: Final = 4  # clients that the summary names
FAILED: Final = "failed"  # a failure of unknown kind
CLIENTS: Final = "clients"  # a column of two numbers: how many replied, of how many
WIDTHS: Final = {  # eleven columns fit into 80 characters
    "round": 5, "accuracy": 8, "loss": 6, CLIENTS: 7, "raw_up": 8, "sent_up": 8, "ratio": 5,
    "energy_fraction": 6, "residual_ratio": 6, "max_error": 6, "seconds": 5,
}  # fmt: skip
# Under differential privacy nothing is fed back, so there are no residuals.
PRIVATE: Final = {("epsilon" if n == "residual_ratio" else n): w for n, w in WIDTHS.items()}


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
        typer.Exit: with status 1, if the run is over and no update of it could be used.
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
        raise typer.Exit(1)
