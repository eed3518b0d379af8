"""Running a plan: a process for each run, a file of JSON for each that is over, then one table.

A run that is over is a file in the folder ``NAME.runs`` beside the sweep's Parquet file, which
the files are joined to when the sweep begins and when it ends, also in an error.
"""

from __future__ import annotations

import datetime
import queue
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow.compute as pc

from fedsz import codecs
from fedsz.child_process import Child
from fedsz.control.policy import FIXED
from fedsz.control.record import RoundRecord
from fedsz.control.round_numbers import numbers
from fedsz.errors import FedszError
from fedsz.experiments.environment import dataset_digest, file_digest, stamp
from fedsz.experiments.environment import threads as cores_to_use
from fedsz.experiments.results import OPTION_COLUMNS, Results
from fedsz.experiments.scheme import Scheme
from fedsz.experiments.sweep_plan import SweepConfig, run_id, settings_of, unusual
from fedsz.training.options import RunConfig
from fedsz.training.task import load_task
from fedsz.whole_files import write_whole

WORKER: Final = "fedsz.experiments.sweep_worker"

Row = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """What happened in a sweep."""

    run: RunConfig
    rounds: Sequence[RoundRecord]  # that are done, from 0
    error: str = ""  # why the run gave no result
    over: bool = False  # and the run's rows are on disk

    @property
    def round(self) -> RoundRecord | None:
        """The last that is done."""
        return self.rounds[-1] if self.rounds else None

    @property
    def seconds(self) -> float:
        """What the rounds took."""
        return sum(done.seconds for done in self.rounds)


@dataclass
class Sweep:
    """A plan, its result file, and what of it is still to do."""

    config: SweepConfig
    results: Results  # open
    pending: list[RunConfig] = field(init=False)  # the runs that the file does not hold yet
    done: int = field(init=False)  # how many it does hold, of this plan
    failed: int = field(init=False, default=0)  # how many have failed since

    def __post_init__(self) -> None:
        self._join()
        held = set(self.results.rows.column("run").to_pylist())
        runs = self.config.runs
        self.pending = [run for run in runs if run_id(run, self.config.grid) not in held]
        self.done = len(runs) - len(self.pending)

    def forget_failures(self) -> None:
        """Take runs that failed out of the file, so that they run again."""
        self.results.keep(pc.is_null(self.results.rows.column("error")))
        self.__post_init__()

    @property
    def missing(self) -> dict[str, int]:
        """Why codecs cannot be had here, and how many of the pending runs ask for each."""
        counts: dict[str, int] = defaultdict(int)
        for run in self.pending:
            if why := _missing(run):
                counts[why] += 1
        return counts

    def run(self) -> Generator[Step, None, None]:
        """Make the runs that are to do, and tell of what happens.

        A run that fails, or takes its process with it, is a row with its error. All processes
        have ended when the generator has, however it ends.

        Raises:
            FedszError: rows cannot be written.
        """
        jobs = max(min(self.config.jobs, len(self.pending)), 1)
        each = max(1, cores_to_use() // jobs)
        outbox: queue.SimpleQueue[tuple[RunConfig, RoundRecord | str]] = queue.SimpleQueue()
        children, stopping = dict[RunConfig, Child](), threading.Event()
        rounds: dict[RunConfig, list[RoundRecord]] = defaultdict(list)
        with (
            tempfile.TemporaryDirectory(prefix="fedsz-") as folder,
            ThreadPoolExecutor(jobs) as pool,
        ):

            def work(number: int, run: RunConfig) -> None:
                log = Path(folder, f"{number}.log")
                try:
                    if error := _missing(run):
                        outbox.put((run, error))
                        return
                    with Child(WORKER, log=log, threads=each) as child:
                        children[run] = child
                        if stopping.is_set():
                            return
                        child.tell((run.as_dict(), self.config.grid))
                        outbox.put((run, _listen(run, child, outbox)))
                except Exception as err:  # such as no memory for a process
                    outbox.put((run, f"{type(err).__name__}: {err}"))

            try:
                for number, run in enumerate(self.pending):
                    pool.submit(work, number, run)
                left = len(self.pending)
                while left:
                    run, news = outbox.get()
                    if isinstance(news, RoundRecord):
                        rounds[run].append(news)
                        yield Step(run, rounds[run])
                        continue
                    left -= 1
                    made = rounds.pop(run, [])
                    self.failed += bool(news)
                    self._write(run, rows_of(run, self.config, made, news, each))
                    yield Step(run, made, news, over=True)
            finally:
                stopping.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for child in list(children.values()):
                    child.end()
                self._join()

    @property
    def _folder(self) -> Path:
        return self.results.path.with_suffix(".runs")

    def _write(self, run: RunConfig, rows: Sequence[Row]) -> None:
        encoded = msgspec.json.encode(rows)
        write_whole(self._folder / f"{run_id(run, self.config.grid)}.json", encoded)

    def _join(self) -> None:
        """Add finished runs to the table; if that fails, their files stay."""
        files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        held = set(self.results.rows.column("run").to_pylist())
        rows = [
            {**row, "time": datetime.datetime.fromisoformat(row["time"])}
            for file in files
            if file.stem not in held
            for row in msgspec.json.decode(file.read_bytes(), type=list[Row])
        ]
        if rows:
            self.results.add(rows)
        for file in files:
            file.unlink()
        with suppress(OSError):  # it is not there
            self._folder.rmdir()


def check(config: SweepConfig) -> None:
    """Check what all runs of a plan ask for by name, before the first of them begins.

    Raises:
        ConfigError: there is no such task, model, data set, partitioner or device.
        TaskError: a task of somebody's own cannot be made.
    """
    named = {(run.task, run.model, run.dataset, run.partitioner, run.device): run
             for run in reversed(config.runs)}  # fmt: skip
    for run in reversed(named.values()):
        load_task(run)


def _missing(run: RunConfig) -> str:
    """Say why a run's codec cannot be had here; "" if it can."""
    return codecs.parse(run.codec).missing() or ""


def _listen(
    run: RunConfig, child: Child, outbox: queue.SimpleQueue[tuple[RunConfig, RoundRecord | str]]
) -> str:
    """Pass on a run's rounds, and return its error; "" if there is none."""
    for line in child.lines():
        news: RoundRecord | str = msgspec.json.decode(line, type=RoundRecord | str)
        if isinstance(news, str):
            return news
        outbox.put((run, news))
    words = child.last_words() or "it left no word"
    return f"the process ended with {child.wait()}: {words}"


def rows_of(
    run: RunConfig, sweep: SweepConfig, rounds: Sequence[RoundRecord], error: str, threads: int
) -> list[Row]:
    """Return the rows of a run, one for each of its rounds, or one with its error.

    ``threads`` is how many processors each of its processes might use.
    """
    bound, digest = Scheme.of_run(run).bound, None
    if run.task == RunConfig.task:
        with suppress(FedszError):
            digest = dataset_digest(run.dataset, run.data_dir)
    more = {name: x for name, x in unusual(run).items() if name not in OPTION_COLUMNS}
    same: Mapping[str, Any] = {
        **{name: getattr(run, name) for name in OPTION_COLUMNS},
        **stamp(),
        "initial": file_digest(run.initial) if run.initial else None,
        "run": run_id(run, sweep.grid),
        "way": sweep.way_names.get(run),
        "more_options": msgspec.json.encode(more).decode() if more else None,
        "codec_settings": settings_of(run.codec),
        "error_bound": f"{bound.kind}:{bound.value:g}" if bound else None,
        "bound_kind": bound.kind if bound else None,
        "bound_value": bound.value if bound else None,
        "tolerance": run.tolerance if run.policy != FIXED else None,
        "grid": sweep.grid,
        "threads": threads,
        "dataset_digest": digest,
    }
    if error:
        return [{**same, "error": error}]
    return [{**same, **numbers(row)} for row in rounds]
