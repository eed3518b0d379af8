"""What a run goes on from, after the server's end or a crash: one file a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from flwr.app import ConfigRecord, RecordDict

from fedsz.arrays import NDArray
from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError, CorruptStream, FedszError
from fedsz.flower.records import to_record, views_of
from fedsz.training.events import from_json
from fedsz.transport.records_file import read_records, write_records

_ABOUT, _MODEL, _STRATEGY = "about", "model", "strategy"
_GRID = "grid."  # and the name of a record of `FedSZGrid.state`


@dataclass(frozen=True)
class Checkpoint:
    """All that the rest of a run depends on once a round is over, beside the rounds before.

    There is no random state: each round seeds its own draws.

    Attributes:
        line: of rounds.jsonl, about the round that is over.
        model: the average.
        grid: what `fedsz.flower.FedSZGrid.state` returned.
        run_id: by which clients know the run.
        strategy: what the strategy keeps: its ``state``.
    """

    line: str
    model: Mapping[str, NDArray]
    grid: RecordDict
    run_id: int
    strategy: Mapping[str, NDArray] = field(default_factory=dict)

    @cached_property
    def done(self) -> RoundRecord:
        """The round that is over."""
        done = from_json(self.line)
        if not isinstance(done, RoundRecord):
            raise CorruptStream("the last round is no round")
        return done

    def write(self, path: Path, folder: Mapping[str, str | int]) -> None:
        """Write it whole, over that of the round before.

        Args:
            path: of the file.
            folder: what identifies the folder that it belongs to; `read` compares it.

        Raises:
            ConfigError: it cannot be written. What was there is there still.
        """
        about: dict[str, Any] = {"run-id": self.run_id, "line": self.line, **folder}
        records: dict[str, Any] = {
            _ABOUT: ConfigRecord(about),
            _MODEL: to_record(dict(self.model)),
            **({_STRATEGY: to_record(dict(self.strategy))} if self.strategy else {}),
            **{_GRID + name: record for name, record in self.grid.items()},
        }
        write_records(path, RecordDict(records))

    @classmethod
    def read(cls, path: Path) -> tuple[Self, dict[str, Any]]:
        """Return the checkpoint in a file, and the ``folder`` that it was written with.

        Raises:
            FileNotFoundError: there is none.
            ConfigError: it cannot be read, is damaged, or of another release.
        """
        try:
            records: Any = read_records(path)
            about = dict(records[_ABOUT])
            of_grid = {
                name.removeprefix(_GRID): records[name]
                for name in list(records)
                if name.startswith(_GRID)
            }
            model = views_of(records[_MODEL])
            strategy = views_of(records[_STRATEGY]) if _STRATEGY in records else {}
            run_id = about.pop("run-id")
            checkpoint = cls(about.pop("line"), model, RecordDict(of_grid), run_id, strategy)
            _ = checkpoint.done
            return checkpoint, about
        except FileNotFoundError:
            raise
        except (OSError, KeyError, TypeError, AttributeError, FedszError) as err:
            why = getattr(err, "strerror", None) or str(err)
            raise ConfigError(f"cannot resume from {path}: {why}") from err


class Resumed(NamedTuple):
    """What a run goes on from."""

    checkpoint: Checkpoint
    # Reads the rounds from 0 to the checkpoint's; they are not kept, since a fleet's of weeks are
    # gigabytes.
    history: Callable[[], Iterator[RoundRecord]]
