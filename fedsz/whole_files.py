"""Files that are written whole or not at all, and folders that one process works in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from fedsz import system
from fedsz.errors import ConfigError, cannot

if TYPE_CHECKING:
    from fedsz.arrays import Buffer

Pathish = str | os.PathLike[str]

LOCK: Final = ".lock"


def write_whole(path: Path, data: bytes | Iterable[Buffer], *, private: bool = False) -> None:
    """Write a file, over one that is there; its folder is made if it is not there.

    When this returns, the file outlasts a loss of power. ``data`` may come in pieces. A ``private``
    file may be read by its owner alone.

    Raises:
        ConfigError: it cannot be written. What was there is there still.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with cannot(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o600 if private else 0o666
            with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                make_durable(file)
            part.replace(path)
            system.make_names_durable(path.parent)
    finally:  # also after Ctrl-C
        with contextlib.suppress(OSError):
            part.unlink()


def append_line(path: Path, line: str) -> None:
    """Append a line to a file of text; when this returns, it outlasts a loss of power.

    Raises:
        ConfigError: it cannot be written. A part of it may be there.
    """
    with cannot(f"write {path}"), path.open("ab") as file:
        file.write(f"{line}\n".encode())
        make_durable(file)


def read_bytes(path: Pathish) -> bytes:
    """Return a file's bytes.

    Raises:
        ConfigError: it cannot be read.
    """
    with cannot(f"read {path}"):
        return Path(path).read_bytes()


def make_durable(file: IO[bytes]) -> None:
    """Have the disk hold what was written to a file."""
    file.flush()
    os.fsync(file.fileno())


def remove_parts(path: Path) -> None:
    """Remove what processes that were killed have left of writing ``path``."""
    for part in path.parent.glob(f".{path.name}.*"):
        with contextlib.suppress(OSError):
            part.unlink()


def lock_folder(folder: Path, what: str) -> IO[bytes]:
    """Make a folder this process's own, as `lock_file` does for ``what``: who works in it."""
    return lock_file(folder / LOCK, f"another {what} works in {folder}", of=folder)


def lock_file(path: Path, taken: str, *, of: Path) -> IO[bytes]:
    """Lock a file until the returned one is closed, or the process ends.

    The kernel frees the lock, so a killed process leaves none behind.

    Args:
        path: is made, with its folder, if it is not there.
        taken: what to say if another process has it.
        of: what the lock is for, for messages.

    Raises:
        ConfigError: another process has it, or it cannot be written to.
    """
    with cannot(f"write to {of}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    # Who had it may have removed it when this opened it.
    if not system.lock(file) or not os.fstat(file.fileno()).st_nlink:
        file.close()
        raise ConfigError(taken)
    return file
