"""The folder a run leaves behind: config.toml, rounds.jsonl, model.safetensors, maybe updates/.

Until the run has finished there is a checkpoint beside them. It is written first; what a crash
keeps from following it is made up for when the run goes on. Where clients add noise there is also
what has been released, written before they are asked: a round that a crash cut short is spent.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final, Self

import tomli_w
from flwr.app import ConfigRecord, RecordDict

from fedsz.arrays import NDArray
from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError, CorruptStream, FedszError, cannot
from fedsz.flower.records import to_record, views_of
from fedsz.flower.update import Update
from fedsz.formatting import count
from fedsz.training.events import from_json
from fedsz.training.options import RUN, SERVER, TRAVEL, WATCHING, RunConfig, options, options_of
from fedsz.transport.records_file import read_records, write_records
from fedsz.whole_files import append_line, lock_folder, remove_parts, write_whole

CONFIG = "config.toml"
ROUNDS = "rounds.jsonl"
MODEL = "model.safetensors"
CHECKPOINT = "checkpoint"
RELEASED = "released"
UPDATES = "updates"  # a folder of files that are named by the digests in rounds.jsonl

UPDATE: Final = "update"  # the record in each of them
_STATE: Final = "state"  # the record in RELEASED
_OF_FOLDER: Final = ("run_dir", "resume", "or_resume")  # options that name it
_MAY_DIFFER: Final = (*_OF_FOLDER, "data_dir")  # in a run that is resumed
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

    def write(self, path: Path, size: int) -> None:
        """Write it whole, over that of the round before.

        Args:
            path: of the file.
            size: of rounds.jsonl before the round, in bytes.

        Raises:
            ConfigError: it cannot be written. What was there is there still.
        """
        about: dict[str, Any] = {"run-id": self.run_id, "line": self.line, "rounds-size": size}
        records: dict[str, Any] = {
            _ABOUT: ConfigRecord(about),
            _MODEL: to_record(dict(self.model)),
            **({_STRATEGY: to_record(dict(self.strategy))} if self.strategy else {}),
            **{_GRID + name: record for name, record in self.grid.items()},
        }
        write_records(path, RecordDict(records))

    @classmethod
    def read(cls, path: Path) -> tuple[Self, int]:
        """Return the checkpoint in a file, and the ``size`` that it was written with.

        Raises:
            FileNotFoundError: there is none.
            ConfigError: it cannot be read, is damaged, or of another release.
        """
        try:
            records: Any = read_records(path)
            about: Any = records[_ABOUT]
            of_grid = {
                name.removeprefix(_GRID): records[name]
                for name in list(records)
                if name.startswith(_GRID)
            }
            model = views_of(records[_MODEL])
            strategy = views_of(records[_STRATEGY]) if _STRATEGY in records else {}
            grid = RecordDict(of_grid)
            checkpoint = cls(about["line"], model, grid, about["run-id"], strategy)
            _ = checkpoint.done
            return checkpoint, int(about["rounds-size"])
        except FileNotFoundError:
            raise
        except (OSError, KeyError, TypeError, AttributeError, FedszError) as err:
            why = getattr(err, "strerror", None) or str(err)
            raise ConfigError(f"cannot resume from {path}: {why}") from err


class RunFolder:
    """Where a run's results go, each as soon as it is there. One process at a time has it.

    Every method raises ``ConfigError`` for what cannot be written.

    Attributes:
        path: of the folder.
        checkpoint: what the run goes on from; None for a new one.
    """

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self.checkpoint: Checkpoint | None = None
        self._lock = lock  # held for as long as this lives
        self._size = 0  # bytes of rounds.jsonl so far

    @classmethod
    def create(cls, config: RunConfig) -> Self:
        """Make the folder of a new run.

        Raises:
            ConfigError: it holds another run, or cannot be written.
        """
        path = Path(config.run_dir or _fresh())
        lock = lock_folder(path, "server")
        if (path / ROUNDS).exists():
            raise ConfigError(
                f"{path} holds another run; go on with it by --resume {path}, or name an empty"
                " folder by --run-dir"
            )
        # All that is used but the folder itself: a repetition wants one of its own.
        used = {*options_of(RUN), *options_of(SERVER)}
        used -= {*_OF_FOLDER, *config.decided_by_policy}
        values = {name: value for name, value in config.as_dict().items() if name in used}
        text = f"# fedsz run --config {CONFIG}\n\n{tomli_w.dumps(values)}"
        write_whole(path / CONFIG, text.encode())
        write_whole(path / ROUNDS, b"")
        return cls(path, lock)

    @classmethod
    def resume(cls, path: Path, config: RunConfig) -> Self:
        """Open the folder of a run that has not finished, and mend what a crash left half done.

        Args:
            path: the folder.
            config: as `resumed_config` returned it.

        Raises:
            ConfigError: another server works in it, its run has finished, or its checkpoint is
                missing, damaged, of another release or of another run.
        """
        lock = lock_folder(path, "server")
        folder = cls(path, lock)
        for name in (CONFIG, ROUNDS, MODEL, CHECKPOINT, RELEASED):
            remove_parts(path / name)
        try:
            checkpoint, size = Checkpoint.read(path / CHECKPOINT)
        except FileNotFoundError:
            folder._begin_again(config)
            return folder
        folder._mend(checkpoint, size)
        strategy = folder._released(checkpoint)
        folder.checkpoint = dataclasses.replace(checkpoint, strategy=strategy)
        return folder

    def history(self) -> Iterator[RoundRecord]:
        """Read the rounds so far; they are not kept, since a fleet's of weeks are gigabytes."""
        return read_rounds(self.path)

    def keep(self, checkpoint: Checkpoint) -> None:
        """Write what the run goes on from, then the round's line, then its model."""
        checkpoint.write(self.path / CHECKPOINT, self._size)
        self._add(checkpoint.line)
        self._save(checkpoint)

    def keep_update(self, update: Update) -> None:
        """Write what a client sent, before it can count."""
        path = self.path / UPDATES / update.digest.hex()
        write_records(path, RecordDict({UPDATE: update.record}))

    def keep_release(self, state: Mapping[str, NDArray]) -> None:
        """Write what is spent once clients have been asked, before they are."""
        write_records(self.path / RELEASED, RecordDict({_STATE: to_record(dict(state))}))

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def finish(self) -> None:
        """Note that the run is over: nothing will go on from here."""
        for name in (CHECKPOINT, RELEASED):
            (self.path / name).unlink(missing_ok=True)
        self.close()

    def _released(self, checkpoint: Checkpoint) -> Mapping[str, NDArray]:
        """Return the strategy's state, with what has been released since the checkpoint."""
        try:
            record: Any = read_records(self.path / RELEASED)[_STATE]
            return views_of(record)
        except FileNotFoundError:
            return checkpoint.strategy
        except (OSError, KeyError, FedszError) as err:
            raise ConfigError(f"cannot resume from {self.path / RELEASED}: {err}") from err

    def _begin_again(self, config: RunConfig) -> None:
        """Accept a folder without a checkpoint whose run has not come to its first."""
        path = self.path / ROUNDS
        rounds = list(read_rounds(self.path)) if path.exists() else []
        if not rounds:
            write_whole(path, b"")
            return
        if rounds[-1].round >= config.rounds or rounds[-1].ended:
            over = count(rounds[-1].round, "round")
            raise ConfigError(
                f"the run in {self.path} has finished: {over}; --initial {self.path / MODEL}"
                " starts a new run from its model"
            )
        raise ConfigError(
            f"{self.path} has no {CHECKPOINT}; start a new run from its weights by"
            f" --initial {self.path / MODEL}"
        )

    def _mend(self, checkpoint: Checkpoint, size: int) -> None:
        """Bring rounds.jsonl and the model to where the checkpoint is.

        A crash can leave them before it, within a line or a file; never after it.
        """
        path, line = self.path / ROUNDS, f"{checkpoint.line}\n".encode()
        with cannot(f"write {path}"), path.open("r+b") as file:
            there = file.seek(0, os.SEEK_END)
            file.seek(size)
            if there < size or not line.startswith(file.read(len(line) + 1)):
                raise ConfigError(
                    f"{self.path / CHECKPOINT} is of another run than {path}; nothing was changed"
                )
            file.truncate(size)
        self._size = size
        self._add(checkpoint.line)
        self._save(checkpoint)

    def _add(self, line: str) -> None:
        append_line(self.path / ROUNDS, line)
        self._size += len(line.encode()) + 1

    def _save(self, checkpoint: Checkpoint) -> None:
        from safetensors.numpy import save

        write_whole(self.path / MODEL, save(dict(checkpoint.model)))


def holds_run(folder: Path) -> bool:
    """Return whether a run has begun in a folder. Its options are the first file there."""
    return (folder / CONFIG).exists()


def has_finished(folder: Path) -> bool:
    """Return whether a folder has a run that nothing is to be continued of.

    The checkpoint of a run is written before its model, and is removed once the run is over.
    """
    return (folder / MODEL).exists() and not (folder / CHECKPOINT).exists()


def resumed_config(folder: Path, given: Mapping[str, Any]) -> RunConfig:
    """Return the options of the run in a folder, and of ``given`` those that do not change it.

    Raises:
        ConfigError: there is no run, or one of ``given`` contradicts it.
    """
    path = folder / CONFIG
    run = RunConfig.read(path)
    asked = RunConfig.read(path, **given)
    for name, about in options().items():
        want, have = getattr(asked, name), getattr(run, name)
        if want != have and about.panel not in (TRAVEL, WATCHING) and name not in _MAY_DIFFER:
            raise ConfigError(
                f"--{name.replace('_', '-')} {want} contradicts {path}, which has {have!r}: a run"
                " goes on with its own options"
            )
    return dataclasses.replace(asked, resume=str(folder))


def read_rounds(folder: Path) -> Iterator[RoundRecord]:
    """Yield the rounds that a run's folder holds, in order, but for a line that a crash cut short.

    Raises:
        ConfigError: they cannot be read.
    """
    path = folder / ROUNDS
    with cannot(f"read {path}"), path.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            try:
                event = from_json(line)
            except FedszError as err:
                if not line.endswith("\n"):
                    return
                what = f"{path}, line {number}, is no round: {line[:80]!r}"
                raise ConfigError(f"cannot read rounds: {what}") from err
            if isinstance(event, RoundRecord):
                yield event


def _fresh() -> str:
    """Return a name under runs/ that does not exist yet."""
    base = time.strftime("runs/%Y%m%d-%H%M%S")
    names = itertools.chain([base], (f"{base}-{i}" for i in itertools.count(1)))
    return next(name for name in names if not Path(name).exists())
