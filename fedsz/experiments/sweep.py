"""Running a plan: a process for each run, a file of JSON for each that is over, then one table.

A run that is over is a file in the folder ``NAME.runs`` beside the sweep's Parquet file, which
the files are joined to when the sweep begins and when it ends, also in an error.
"""

from __future__ import annotations

import datetime
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
from fedsz.experiments.environment import file_digest, stamp
from fedsz.experiments.environment import threads as cores_to_use
from fedsz.experiments.results import OPTION_COLUMNS, SWEEP, Results
from fedsz.experiments.scheme import Scheme
from fedsz.experiments.sweep_plan import SweepConfig, deciding, run_id
from fedsz.training.options import RunConfig
from fedsz.training.task import load_task
from fedsz.whole_files import write_whole

WORKER: Final = "fedsz.experiments.sweep_worker"

Row = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A run of a sweep that has ended."""

    run: RunConfig
    rounds: Sequence[RoundRecord]  # from 0
    error: str = ""  # why the run gave no result

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
        self.pending = [run for run in runs if run_id(run) not in held]
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
        """Make the runs that are to do, and yield each one that has ended.

        A run that fails, or takes its process with it, is a row with its error. All processes
        have ended when the generator has, however it ends.

        Raises:
            FedszError: rows cannot be written.
        """
        jobs = max(min(self.config.jobs, len(self.pending)), 1)
        threads = max(1, cores_to_use() // jobs)
        children, stopping = list[Child](), threading.Event()
        with (
            tempfile.TemporaryDirectory(prefix="fedsz-") as folder,
            ThreadPoolExecutor(jobs) as pool,
        ):

            def work(number: int, run: RunConfig) -> Step:
                if error := _missing(run):
                    return Step(run, [], error)
                try:
                    with Child(WORKER, log=Path(folder, f"{number}.log"), threads=threads) as child:
                        children.append(child)
                        if stopping.is_set():
                            return Step(run, [], "stopped")
                        child.tell(run.as_dict())
                        return _listen(run, child)
                except Exception as err:  # such as no memory for a process
                    return Step(run, [], f"{type(err).__name__}: {err}")

            try:
                work_of = [pool.submit(work, i, run) for i, run in enumerate(self.pending)]
                for ended in as_completed(work_of):
                    step = ended.result()
                    self.failed += bool(step.error)
                    self._write(step, threads)
                    yield step
            finally:
                stopping.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for child in children:
                    child.end()
                self._join()

    @property
    def _folder(self) -> Path:
        return self.results.path.with_suffix(".runs")

    def _write(self, step: Step, threads: int) -> None:
        encoded = msgspec.json.encode(rows_of(self.config, step, threads))
        write_whole(self._folder / f"{run_id(step.run)}.json", encoded)

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


def _listen(run: RunConfig, child: Child) -> Step:
    """Return what became of a run that a process makes."""
    rounds: list[RoundRecord] = []
    for line in child.lines():
        news: RoundRecord | str = msgspec.json.decode(line, type=RoundRecord | str)
        if isinstance(news, str):
            return Step(run, rounds, news)
        rounds.append(news)
    words = child.last_words() or "it left no word"
    return Step(run, rounds, f"the process ended with {child.wait()}: {words}")


def rows_of(sweep: SweepConfig, step: Step, threads: int) -> list[Row]:
    """Return the rows of a run, one for each of its rounds, or one with its error.

    ``threads`` is how many processors each of its processes might use.
    """
    run, bound = step.run, Scheme.of_run(step.run).bound
    usual = SweepConfig.__dataclass_fields__
    more = {
        name: x
        for name, x in deciding(run).items()
        if name not in SWEEP.columns and x != usual[name].default
    }
    same: Mapping[str, Any] = {
        **{name: getattr(run, name) for name in OPTION_COLUMNS},
        **stamp(),
        "initial": file_digest(run.initial) if run.initial else None,
        "run": run_id(run),
        "way": sweep.way_names.get(run),
        "more_options": msgspec.json.encode(more).decode() if more else None,
        "error_bound": f"{bound.kind}:{bound.value:g}" if bound else None,
        "bound_kind": bound.kind if bound else None,
        "bound_value": bound.value if bound else None,
        "tolerance": run.tolerance if run.policy != FIXED else None,
        "threads": threads,
    }
    if step.error:
        return [{**same, "error": step.error}]
    return [{**same, **numbers(row)} for row in step.rounds]
