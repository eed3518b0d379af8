"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fedsz.errors import ConfigError


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, over one that is there; its folder is made if it is not there.

    Raises:
        ConfigError: it cannot be written. What was there is there still.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError as err:
        raise ConfigError(f"cannot write {path}: {err.strerror or err}") from err
    finally:  # also after Ctrl-C
        with contextlib.suppress(OSError):
            part.unlink()
