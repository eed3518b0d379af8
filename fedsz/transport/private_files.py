"""Files with secrets: private keys and tokens, which nobody but their owner may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedsz.errors import ConfigError

Pathish = str | os.PathLike[str]


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
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    except OSError as err:
        raise ConfigError(f"cannot write {path}: {err.strerror}") from err


def read_file(path: Pathish) -> bytes:
    """Return the bytes of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}") from err
