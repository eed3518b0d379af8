"""What commands print: text, tables and JSON on stdout; warnings, errors and the log on stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from fedsz import system
from fedsz.errors import FedszError
from fedsz.formatting import WARNING, one_line, printable

if TYPE_CHECKING:
    from fedsz.training.events import Event
    from fedsz.training.options import RunConfig

COMMAND: Final = "fedsz.command"  # the logger of a command's own warnings, and of its error
# Loggers whose warnings an operator must hear: a link is plaintext, a tracker is left out.
HEARD: Final = ("fedsz.security", "fedsz.monitoring")

_printing = threading.Lock()


def print_json(value: Any) -> None:
    """Print a line of JSON at once."""
    import msgspec

    _print(msgspec.json.encode(value).decode())


def print_event(event: Event) -> None:
    """Print an event as a line of JSON at once."""
    from fedsz.training.events import to_json

    _print(to_json(event))


def say(text: str, *, err: bool = False) -> None:
    """Print text at once, without what a terminal takes for commands; ``err``: on stderr."""
    _print(printable(text), err=err)


def _print(text: str, *, err: bool = False) -> None:
    """Print lines; if nobody reads stdout any more, end the command."""
    with _printing:  # print() gives way to other threads before the end of a long line
        try:
            print(text, flush=True, file=sys.stderr if err else sys.stdout)
        except BrokenPipeError:
            close_stdout()
            _end()


def _end() -> None:
    """End the command without a word: in another thread, as SIGTERM does."""
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(1)
    system.interrupt()


def close_stdout() -> None:
    """Send nowhere what is still printed, also what is buffered: the reader of stdout has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def failure_as_json(*, json: bool) -> Iterator[None]:
    """With ``--json``, print a `FedszError` as an event, for the process that started this one."""
    from fedsz.training.events import Failed

    try:
        yield
    except FedszError as err:
        if json:
            print_event(Failed(str(err)))
        raise


def warn_of_update(config: RunConfig) -> None:
    """Warn if a run's pipeline loses for good what it leaves out."""
    sends = config.compression
    if sends.pipeline is not None and sends.pipeline.biased:
        what = f"update {sends.update!r} is biased, and what it leaves out is lost"
        warn(f"{what}: write feedback> before its methods")


def warn(why: str) -> None:
    """Print a warning on stderr."""
    logging.getLogger(COMMAND).warning("warning: %s", why)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; its lines are as long as they must be.

    Args:
        heads: of the columns, of one line or two; ``>`` before one says that it holds numbers.
        rows: the cells of each.
    """
    height = max(head.count("\n") for head in heads)
    padded = ("\n" * (height - head.count("\n")) + head.removeprefix(">") for head in heads)
    lines = [*zip(*(head.split("\n") for head in padded), strict=True)]
    lines += [tuple(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            f"{cell:>{width}}" if head.startswith(">") else f"{cell:{width}}"
            for head, cell, width in zip(heads, line, widths, strict=True)
        )
        say("  ".join(cells).rstrip())


class JsonFormatter(logging.Formatter):
    """A line of JSON for each message: time (ISO 8601, UTC), level, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a message as JSON; an exception's traceback is a field of its own."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logs(*, verbose: bool = False, as_json: bool = False) -> None:
    """Log errors, warnings that must be heard, and with ``verbose`` all else, to stderr."""
    level = logging.INFO if verbose else logging.ERROR
    log = _handler("%(asctime)s %(name)s: %(message)s", as_json=as_json)
    logging.basicConfig(level=level, handlers=[log])
    for name in HEARD:
        _log(name, f"{WARNING}%(message)s", as_json=as_json)
    log_errors(as_json=as_json)
    # Flower gives its logger a level and a handler when it is imported; a filter outlasts that.
    flower = logging.getLogger("flwr")
    flower.propagate = False
    if not verbose:
        flower.addFilter(lambda record: record.levelno >= logging.ERROR)


def log_errors(*, as_json: bool = False) -> None:
    """Log what ends a command, to stderr."""
    _log(COMMAND, "fedsz: %(message)s", as_json=as_json)


def _log(name: str, text: str, *, as_json: bool) -> None:
    logger = logging.getLogger(name)
    logger.handlers, logger.propagate = [_handler(text, as_json=as_json)], False
    logger.setLevel(logging.WARNING)


def _handler(text: str, *, as_json: bool) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(text))
    return handler
