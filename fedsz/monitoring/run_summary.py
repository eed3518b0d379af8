"""What there is to show of a run, read from its folder: a row a round, and a line a client."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from fedsz.control.record import VERSION, RoundRecord
from fedsz.control.round_numbers import NUMBERS
from fedsz.errors import ConfigError, FedszError
from fedsz.formatting import one_line
from fedsz.training.events import from_json
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CHECKPOINT, CONFIG, ROUNDS

FAILED: Final = "failed"  # of what kind a failure is, where its record does not say
MOST_NOTICES: Final = 20
MOST_CLIENTS: Final = 10_000  # with a line of their own: clients of an open server choose names


class ClientSummary(msgspec.Struct, kw_only=True):
    """One client over the rounds so far.

    Attributes:
        name: what it calls itself; its node id where a Grid knows no names.
        replies: rounds that counted its update.
        failures: rounds without it, by kind.
        last_round: the last one that counted its update; None before that.
        reason: why the last round without it went on so; "" without one.
        bandwidth: of its way to the server, in bits a second; 0 where it is not known.
        sent_bytes: of its updates, after compression.
        energy_fraction, residual_ratio: of its last update; see `ClientRecord`.
        state: what it does now; None where nobody knows.
    """

    name: str
    replies: int = 0
    failures: dict[str, int] = {}
    last_round: int | None = None
    reason: str = ""
    bandwidth: float = 0.0
    sent_bytes: int = 0
    energy_fraction: float | None = None
    residual_ratio: float | None = None
    state: str | None = None


class RunSummary:
    """Grows with each round, and keeps no record: a thousand of a thousand clients are 300 MB.

    Attributes:
        rows: what charts show of each round, as JSON.
        clients: by their names.
        notices: what a reader should know, such as lines that could not be read.
    """

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.clients: dict[str, ClientSummary] = {}
        self.notices: list[str] = []

    def add(self, record: RoundRecord) -> None:
        """Take in the next round."""
        for update in record.clients:
            if client := self._client(update.client or update.node):
                client.replies += 1
                client.last_round = record.round
                client.bandwidth = update.bandwidth or client.bandwidth
                client.sent_bytes += update.sent_bytes
                client.energy_fraction = update.energy_fraction
                client.residual_ratio = update.residual_ratio
        for failure in record.failures:
            if client := self._client(failure.client):
                kind = failure.kind or FAILED
                client.failures[kind] = client.failures.get(kind, 0) + 1
                client.reason = one_line(failure.reason)
        self.rows.append(msgspec.json.encode(row_of(record)))
        if record.version > VERSION:
            self.note(
                f"rounds are of version {record.version}, and this release knows {VERSION}:"
                " what is new in them is not shown"
            )

    def note(self, notice: str) -> None:
        """Add a notice, once, and so many at most."""
        if notice not in self.notices and len(self.notices) < MOST_NOTICES:
            self.notices.append(notice)

    def _client(self, name: str) -> ClientSummary | None:
        name = one_line(name)
        if name not in self.clients and len(self.clients) >= MOST_CLIENTS:
            self.note(f"only the first {MOST_CLIENTS:,} clients have a line")
            return None
        return self.clients.setdefault(name, ClientSummary(name=name))


def row_of(record: RoundRecord) -> dict[str, Any]:
    """Return what charts show of a round: numbers, failures by kind, and how it was sent."""
    row: dict[str, Any] = {n.name: n.of(record) for n in NUMBERS.values() if n.on_page}
    row["refused"] = Counter(failure.kind or FAILED for failure in record.failures)
    row["uncounted"] = one_line(record.uncounted)
    if (decision := record.decision) is not None:
        config = decision.config
        row["decision"] = {
            "update": config.update,
            "bound": config.error_bound,
            "downlink": config.downlink,
            "codec": config.codec,
            "others": len(decision.codecs),  # clients with a codec of their own
            "why": one_line(decision.why),
        }
    return row


class Follower:
    """Follows the run in a folder, finished or not: reads what is new when it is asked.

    What cannot be read becomes a notice in the summary. If the file has become shorter it is that
    of another run, and the summary begins anew.

    Attributes:
        folder: the run's.
        config: its options; None where they cannot be read, as in folders of other releases.
        summary: of the rounds that have been read.
        generation: how often the summary has begun anew.
        lock: to be held by who reads, or uses what was read.

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

    def poll(self) -> RunSummary:
        """Read the lines that are whole and have not been read yet; return the summary."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._begin_anew()
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    self._lines += 1
                    self._take(line)
        except OSError as err:
            self.summary.note(f"cannot read {ROUNDS}: {err.strerror or err}")
        return self.summary

    def _take(self, line: bytes) -> None:
        try:
            event = from_json(line)
        except FedszError:
            event = None
        if isinstance(event, RoundRecord):
            self.summary.add(event)
        else:
            self.summary.note(f"line {self._lines} of {ROUNDS} is no round, and is left out")

    def _begin_anew(self) -> None:
        self._offset = self._lines = 0
        self.summary = RunSummary()
        self.generation += 1
        if self._trouble:
            self.summary.note(self._trouble)
