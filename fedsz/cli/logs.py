"""What commands say on stderr: warnings and errors in a line each, the log if asked, or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from fedsz.formatting import WARNING

ERRORS: Final = "fedsz.command"  # the logger of what ends a command
# Loggers whose warnings an operator must hear: a link is plaintext, a tracker is left out.
HEARD: Final = ("fedsz.security", "fedsz.monitoring")


class JsonFormatter(logging.Formatter):
    """A line of JSON for each message: time (ISO 8601, UTC), level, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a message as JSON; an exception's traceback is a field of its own."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def set_up(*, verbose: bool = False, as_json: bool = False) -> None:
    """Say errors, warnings that must be heard, and with ``verbose`` the log."""
    level = logging.INFO if verbose else logging.ERROR
    log = _handler("%(asctime)s %(name)s: %(message)s", as_json=as_json)
    logging.basicConfig(level=level, handlers=[log])
    for name in HEARD:
        _say(name, f"{WARNING}%(message)s", as_json=as_json)
    say_errors(as_json=as_json)
    # Flower gives its logger a level and a handler when it is imported; a filter outlasts that.
    flower = logging.getLogger("flwr")
    flower.propagate = False
    if not verbose:
        flower.addFilter(lambda record: record.levelno >= logging.ERROR)


def say_errors(*, as_json: bool = False) -> None:
    """Say what ends a command."""
    _say(ERRORS, "fedsz: %(message)s", as_json=as_json)


def _say(name: str, text: str, *, as_json: bool) -> None:
    logger = logging.getLogger(name)
    logger.handlers, logger.propagate = [_handler(text, as_json=as_json)], False
    logger.setLevel(logging.WARNING)


def _handler(text: str, *, as_json: bool) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(text))
    return handler
