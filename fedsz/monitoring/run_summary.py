"""What there is to show of a run, read from its folder: a row a round, and a line a client."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from fedsz.control.record import RoundRecord
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
        failures: rounds without it.
        last_round: the last one that counted its update; None before that.
        reason: why the last round without it went on so; "" without one.
        bandwidth: of its way to the server, in bits a second; 0 where it is not known.
        sent_bytes: of its updates, after compression.
    """

    name: str
    replies: int = 0
    failures: int = 0
    last_round: int | None = None
    reason: str = ""
    bandwidth: float = 0.0
    sent_bytes: int = 0


class RunSummary:
    """Follows the run in a folder, finished or not: reads what is new when it is asked.

    It keeps no record: a thousand of a thousand clients are 300 MB. What cannot be read becomes a
    notice.

    Attributes:
        folder: the run's.
        config: its options; None where they cannot be read.
        rows: what charts show of each round, as JSON.
        clients: by their names.
        notices: what a reader should know, such as lines that could not be read.

    Raises:
        ConfigError: the folder holds no run.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / ROUNDS).is_file():
            raise ConfigError(f"{folder} holds no run: it has no {ROUNDS}")
        self.folder = folder
        self.config: RunConfig | None = None
        self.rows: list[bytes] = []
        self.clients: dict[str, ClientSummary] = {}
        self.notices: list[str] = []
        self._offset = self._lines = 0  # of the file, that have been read
        try:
            self.config = RunConfig.read(folder / CONFIG)
        except ConfigError as err:
            self.note(f"the run's options are not shown: {err}")

    @property
    def finished(self) -> bool:
        """Whether the run is over: nothing will go on from here."""
        return bool(self.rows) and not (self.folder / CHECKPOINT).exists()

    def poll(self) -> None:
        """Read the lines that are whole and have not been read yet."""
        try:
            with (self.folder / ROUNDS).open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self.note(f"{ROUNDS} is of another run now: open its page anew")
                    return
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    self._lines += 1
                    self._take(line)
        except OSError as err:
            self.note(f"cannot read {ROUNDS}: {err.strerror or err}")

    def note(self, notice: str) -> None:
        """Add a notice, once, and so many at most."""
        if notice not in self.notices and len(self.notices) < MOST_NOTICES:
            self.notices.append(notice)

    def _take(self, line: bytes) -> None:
        try:
            record = from_json(line)
        except FedszError:
            record = None
        if not isinstance(record, RoundRecord):
            self.note(f"line {self._lines} of {ROUNDS} is no round, and is left out")
            return
        for update in record.clients:
            if client := self._client(update.client or update.node):
                client.replies += 1
                client.last_round = record.round
                client.bandwidth = update.bandwidth or client.bandwidth
                client.sent_bytes += update.sent_bytes
        for failure in record.failures:
            if client := self._client(failure.client):
                client.failures += 1
                client.reason = one_line(failure.reason)
        self.rows.append(msgspec.json.encode(row_of(record)))

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
            "why": one_line(decision.why),
        }
    return row
