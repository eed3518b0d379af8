"""Files of keys and tokens; those with secrets, nobody but their owner may read."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from fedsz.errors import ConfigError
from fedsz.system import shares
from fedsz.whole_files import Pathish, read_bytes

T = TypeVar("T")


def line_of(what: object) -> bytes:
    """Return a line of JSON, which `parse_lines` reads with `reads`."""
    return msgspec.json.encode(what) + b"\n"


def reads(kind: type[T]) -> Callable[[str], T]:
    """Return a function that reads a line of JSON."""
    return msgspec.json.Decoder(kind).decode


def read_private(path: Pathish) -> bytes:
    """Return the bytes of a file with a secret.

    Raises:
        ConfigError: it cannot be read, or its owner, who reads it, lets others read it too.
    """
    raw = read_bytes(path)
    # As ssh has it: what another user owns is that user's business, such as a container's secrets.
    if shares(Path(path)):
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        raise ConfigError(f"{path} holds a secret and has mode {mode:04o}: chmod 600 {path}")
    return raw


def parse_lines(path: Pathish, parse: Callable[[str], T], otherwise: str) -> list[T]:
    """Return what the lines of a file say.

    Args:
        path: of the file.
        parse: reads a line, or raises ValueError.
        otherwise: what such a line is.

    Raises:
        ConfigError: it cannot be read, or one of its lines.
    """
    found = []
    for number, line in enumerate(read_bytes(path).decode(errors="replace").splitlines(), 1):
        try:
            found.append(parse(line))
        except (ValueError, msgspec.DecodeError):
            raise ConfigError(f"{path}, line {number}, is {otherwise}") from None
    return found
