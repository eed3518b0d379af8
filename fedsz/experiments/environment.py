"""Where and when a result was made: the columns that every row of a result table carries."""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from fedsz.system import cores, processor

DIGEST_LENGTH: Final = 16


@lru_cache(maxsize=1)
def environment() -> dict[str, Any]:
    """Return fedsz's version, Python's, torch's, the machine and its processors."""
    return {
        "fedsz_version": _version("fedsz"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "machine": f"{processor()}, {platform.system()} {platform.machine()}",
        "cores": cores(),
    }


def stamp() -> dict[str, Any]:
    """Return the environment, and the time to the second."""
    return {**environment(), "time": datetime.now(UTC).replace(microsecond=0)}


def threads() -> int:
    """Return how many threads computations may have: `cores`, or OMP_NUM_THREADS if that is less.

    Threads of OpenMP that wait for each other spin: on a busy machine one may be faster than two.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(asked)) if asked.isdecimal() and int(asked) else cores()


@lru_cache(maxsize=64)
def file_digest(path: str) -> str:
    """Return the start of a file's SHA-256, or "" if there is no such file."""
    with suppress(OSError), Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_LENGTH]
    return ""


def _version(distribution: str) -> str:
    from importlib import metadata  # and with it a parser of e-mail; --help needs neither

    with suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return ""
