"""Files of keys and tokens; those with secrets, nobody but their owner may read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedsz.errors import ConfigError, cannot

Pathish = str | os.PathLike[str]
T = TypeVar("T")


def read_private(path: Pathish) -> bytes:
    """Return the bytes of a file with a secret.

    Raises:
        ConfigError: it cannot be read, or its owner, who reads it, lets others read it too.
    """
    raw = read_file(path)
    about = Path(path).stat()
    # As ssh has it: what another user owns is that user's business, such as a container's secrets.
    if about.st_uid == os.getuid() and about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(about.st_mode)
        raise ConfigError(f"{path} holds a secret and has mode {mode:04o}: chmod 600 {path}")
    return raw


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner may read.

    Raises:
        ConfigError: it exists, or cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with cannot(f"write {path}"), os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)


def read_file(path: Pathish) -> bytes:
    """Return the bytes of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}") from err


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
    for number, line in enumerate(read_file(path).decode(errors="replace").splitlines(), 1):
        try:
            found.append(parse(line))
        except ValueError:
            raise ConfigError(f"{path}, line {number}, is {otherwise}") from None
    return found
