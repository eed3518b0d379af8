"""Bytes that wait on disk: what is sent for hours, and what may never be read again."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from dataclasses import dataclass
from typing import IO

from fedsz.arrays import Buffer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parked:
    """Bytes of a `Shelf`, to be read in pieces and by many at once."""

    file: IO[bytes]
    place: range

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, part: slice) -> memoryview:
        place, pieces = self.place[part], list[bytes]()
        while place:  # one read takes 2 GiB at most
            pieces.append(os.pread(self.file.fileno(), len(place), place.start))
            place = place[len(pieces[-1]) :]
        return memoryview(b"".join(pieces))


class Shelf:
    """A file without a name, which is there as long as anything that was put there."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def put(self, what: str, *pieces: Buffer) -> Parked | None:
        """Return bytes that are on disk from now on.

        None if there is no room, which the log says of ``what`` they are: a full disk is no reason
        to end a run.
        """
        with self._lock:
            try:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - see above
                start = end = self._file.seek(0, os.SEEK_END)
                for piece in pieces:
                    view, written = memoryview(piece), 0
                    while written < len(view):  # one write takes 2 GiB at most
                        written += self._file.write(view[written:])
                    end += written
            except OSError as err:
                logger.warning("%s stays in memory: %s", what, err.strerror or err)
                return None
        return Parked(self._file, range(start, end))
