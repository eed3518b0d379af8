"""A run on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from rich.console import Console

from fedsz.cli.output import print_event, say
from fedsz.control.record import RoundRecord
from fedsz.formatting import size
from fedsz.training.events import Client, Done, Event, Listening

WIDTHS: Final = (5, 8, 6, 7, 8, 8, 5, 6, 6, 6, 5)  # eleven columns fit into 80 characters
HEADS: Final = (
    ("", "", "", "", "raw", "sent", "", "encode", "decode", "error/", "round"),
    ("round", "accuracy", "loss", "clients", "up", "up", "ratio", "s", "s", "bound", "s"),
)


class RunTable:
    """Shows events: a table that grows by a line a round, above a line that says what goes on.

    Finished lines are printed, not redrawn, so that a run of a thousand rounds scrolls as it should
    and reads the same in a file.
    """

    def __init__(self) -> None:
        self._console = Console()
        self._rows: list[RoundRecord] = []
        self._connected: set[str] = set()
        self._wanted = 0
        self._done: Done | None = None
        self._status = self._console.status("starting the server")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()
        if self._done:
            self._summary(self._done)

    def show(self, event: Event) -> None:
        """Take an event into the picture."""
        match event:
            case Listening():
                self._wanted = event.min_clients
                self._say(f"listening on port {event.port}, results in {event.run_dir}")
            case Client() if not self._done:
                change = self._connected.add if event.what == "joined" else self._connected.discard
                change(event.client_id)
                if event.what != "joined":
                    self._say(f"client {event.client_id} {event.what}: {event.detail}")
            case RoundRecord():
                if not self._rows:
                    for heads in HEADS:
                        self._print_row(heads, style="bold")
                self._rows.append(event)
                for failure in event.failures:
                    self._say(f"round {event.round} without {failure.client}: {failure.reason}")
                self._print_row(cells(event))
            case Done():
                self._done = event
        self._status.update(self._goes_on())

    def _goes_on(self) -> str:
        here = len(self._connected)
        if self._done:
            return "sending the clients home"
        if here < self._wanted and not self._rows:
            return f"waiting for clients: {here} of {self._wanted}"
        return f"round {len(self._rows)}, {here} clients"

    def _summary(self, done: Done) -> None:
        trained = [row for row in self._rows if row.round]
        names = ("raw_up", "sent_up", "wire_up", "raw_down", "sent_down")
        raw, sent, wire, model, down = (sum(getattr(row, n) for row in trained) for n in names)
        took = f"after {len(trained)} rounds in {done.seconds:.1f} s"
        lines = [f"accuracy {self._rows[-1].accuracy:.4f} {took}"]
        if sent:
            up = f"{size(raw)} of updates: {raw / sent:.2f}x smaller ({size(wire)} on the wire)"
            models = f"{size(model)} of models: {model / down:.2f}x smaller"
            error = max(row.max_error for row in trained)
            lines += [f"sent up {size(sent)} for {up}", f"sent down {size(down)} for {models}"]
            lines.append(f"largest error {error:.4f} of its bound")
        else:
            lines.append("no client sent an update that could be used")
        self._say("\n".join((*lines, f"results in {done.run_dir}")), style="")

    def _print_row(self, row: tuple[str, ...], style: str = "") -> None:
        padded = (f"{cell:>{width}}" for cell, width in zip(row, WIDTHS, strict=True))
        self._say(" ".join(padded), style)

    def _say(self, text: str, style: str = "dim") -> None:
        say(text, style, console=self._console)


def cells(row: RoundRecord) -> tuple[str, ...]:
    """Return a round as the cells of its line."""
    asked = row.replies + len(row.failures)
    loss = "-" if row.loss is None else f"{row.loss:.4f}"
    clients = f"{row.replies}/{asked}" if asked else "-"
    start = (str(row.round), f"{row.accuracy:.4f}", loss, clients)
    if row.ratio is None:
        return (*start, *["-"] * (len(WIDTHS) - len(start)))
    sent = (size(row.raw_up), size(row.sent_up), f"{row.ratio:.2f}")
    seconds = (f"{row.encode_seconds:.2f}", f"{row.decode_seconds:.2f}")
    return (*start, *sent, *seconds, f"{row.max_error:.4f}", f"{row.seconds:.1f}")


@contextmanager
def events_shown(*, json: bool) -> Iterator[Callable[[Event], None]]:
    """Give a function that prints events: as lines of JSON, or as a `RunTable`."""
    if json:
        yield print_event
    else:
        with RunTable() as table:
            yield table.show
