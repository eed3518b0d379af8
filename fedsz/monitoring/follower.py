"""Reads the rounds of a run's folder as they are written."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError, FedszError
from fedsz.monitoring.run_summary import RunSummary
from fedsz.training.events import from_json
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CHECKPOINT, CONFIG, ROUNDS
from fedsz.update.config import DEFAULT

PAUSE_SECONDS: Final = 0.5  # between looks at the file


class Follower:
    """Follows the run in a folder, finished or not, in a thread of its own.

    What cannot be read becomes a notice in the summary. If the file has become shorter it is that
    of another run, and the summary begins anew.

    Attributes:
        folder: the run's.
        config: its options; None where they cannot be read, as in folders of other releases.
        summary: of the rounds so far.
        generation: how often the summary has begun anew.
        lock: is held while the summary changes.

    Raises:
        ConfigError: the folder holds no run.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / ROUNDS).is_file():
            raise ConfigError(f"{folder} holds no run: it has no {ROUNDS}")
        self.folder = folder
        self.config: RunConfig | None = None
        self.summary, self.generation, self.lock = RunSummary(), 0, threading.Lock()
        self._path = folder / ROUNDS
        self._offset = self._lines = 0  # of the file, that have been read
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="fedsz-follower", daemon=True)
        self._trouble = ""
        try:
            self.config = RunConfig.read(folder / CONFIG)
        except ConfigError as err:
            self._trouble = f"the run's options are not shown: {err}"
            self.summary.note(self._trouble)

    @property
    def finished(self) -> bool:
        """Whether the run is over: nothing will go on from here."""
        return bool(self.summary.rows) and not (self.folder / CHECKPOINT).exists()

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._ended.set()

    def poll(self) -> None:
        """Read the lines that are whole and have not been read yet."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._begin_anew()
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n") or self._ended.is_set():
                        return
                    self._offset += len(line)
                    self._lines += 1
                    self._take(line)
        except OSError as err:
            with self.lock:
                self.summary.note(f"cannot read {ROUNDS}: {err.strerror or err}")

    def _take(self, line: bytes) -> None:
        base = self.config.compression if self.config else DEFAULT
        try:
            event = from_json(line, base)
        except FedszError:
            event = None
        with self.lock:
            if isinstance(event, RoundRecord):
                self.summary.add(event)
            else:
                self.summary.note(f"line {self._lines} of {ROUNDS} is no round, and is left out")

    def _begin_anew(self) -> None:
        with self.lock:
            self._offset = self._lines = 0
            self.summary = RunSummary()
            self.generation += 1
            if self._trouble:
                self.summary.note(self._trouble)

    def _follow(self) -> None:
        while not self._ended.is_set():
            self.poll()
            self._ended.wait(PAUSE_SECONDS)
