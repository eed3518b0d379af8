"""Running a plan: jobs side by side, each row kept as soon as it is there, resumed where it was."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow.compute as pc

from fedsz.child_process import Child
from fedsz.control.policy import FIXED
from fedsz.control.record import RoundRecord
from fedsz.control.round_numbers import numbers
from fedsz.errors import FedszError
from fedsz.experiments.environment import dataset_digest, file_digest, stamp, threads
from fedsz.experiments.results import OPTION_COLUMNS, Results
from fedsz.experiments.scheme import Scheme
from fedsz.experiments.sweep_plan import SweepConfig, run_id, settings_of
from fedsz.experiments.sweep_worker import Finished
from fedsz.training.options import RunConfig
from fedsz.training.task import load_task


@dataclass(frozen=True)
class Step:
    """What happened in a sweep."""

    run: RunConfig
    rounds: Sequence[RoundRecord]  # that are done, from 0
    error: str = ""  # why the run gave no result
    over: bool = False  # and the run's rows are in the file

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

    def __post_init__(self) -> None:
        held = set(self.results.rows.column("run").to_pylist())
        runs = self.config.runs
        self.pending = [run for run in runs if run_id(run, self.config.grid) not in held]
        self.done = len(runs) - len(self.pending)

    def forget_failures(self) -> None:
        """Take runs that failed out of the file, so that they run again."""
        self.results.keep(pc.is_null(self.results.rows.column("error")))
        self.__post_init__()

    def run(self) -> Generator[Step, None, None]:
        """Make the runs that are to do, and tell of what happens.

        A run that fails, or takes its process with it, is a row with its error. All processes
        have ended when the generator has, however it ends.

        Raises:
            FedszError: rows cannot be written.
        """
        jobs = max(min(self.config.jobs, len(self.pending)), 1)
        each = max(1, threads() // jobs)
        # Each run goes to one thread, and each thread ends by a None of its own.
        waiting: deque[RunConfig | None] = deque([*self.pending, *jobs * [None]])
        told: queue.SimpleQueue[tuple[RunConfig, RoundRecord | Finished]] = queue.SimpleQueue()

        def work(worker: _Worker) -> None:
            for run in iter(waiting.popleft, None):
                try:
                    for news in worker.run(run):
                        told.put((run, news))
                except Exception as err:  # such as no memory for a process
                    told.put((run, Finished(error=f"{type(err).__name__}: {err}")))

        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsz-")))
            for i in range(jobs):
                worker = _Worker(folder / f"{i}.log", each, self.config.grid)
                thread = threading.Thread(target=work, args=(worker,), daemon=True)
                thread.start()
                stack.callback(thread.join)  # once its worker is closed, which starts nothing more
                stack.enter_context(closing(worker))
            rounds: dict[RunConfig, list[RoundRecord]] = defaultdict(list)
            left = len(self.pending)
            while left:
                run, news = told.get()
                if isinstance(news, RoundRecord):
                    rounds[run].append(news)
                    yield Step(run, rounds[run])
                    continue
                left -= 1
                made = rounds.pop(run, [])
                self.results.add(rows_of(run, self.config, made, news, each))
                yield Step(run, made, news.error, over=True)


def check(config: SweepConfig) -> None:
    """Check what all runs of a plan ask for by name, before the first of them begins.

    Raises:
        ConfigError: there is no such task, model, data set, partitioner or device.
        TaskError: a task of somebody's own cannot be made.
    """
    seen: set[tuple[str, ...]] = set()
    for run in config.runs:
        named = run.task, run.model, run.dataset, run.partitioner, run.device
        if named not in seen:
            load_task(run)
            seen.add(named)


class _Worker:
    """A process for one run after another, started anew when one takes it down."""

    def __init__(self, log: Path, threads: int, grid: str) -> None:
        self._log, self._threads, self._grid = log, threads, grid
        self._process: Child | None = None
        self._closed = False
        self._lock = threading.Lock()

    def run(self, run: RunConfig) -> Iterator[RoundRecord | Finished]:
        """Make a run; the last that comes is its `Finished`."""
        with self._lock:
            if self._closed:
                raise FedszError("the sweep is over")
            if self._process is None or not self._process.is_running:
                self._log.unlink(missing_ok=True)  # last words are those of this process
                module = "fedsz.experiments.sweep_worker"
                self._process = Child(module, log=self._log, threads=self._threads)
            process = self._process
        process.tell((run.as_dict(), self._grid))
        for line in process.lines():
            told: RoundRecord | Finished = _DECODER.decode(line)
            yield told
            if isinstance(told, Finished):
                return
        words = process.last_words() or "it left no word"
        yield Finished(error=f"the process ended with {process.wait()}: {words}")

    def close(self) -> None:
        """End the process, in the middle of a run too."""
        with self._lock:
            self._closed = True
            if self._process:
                self._process.end()


_DECODER: Final = msgspec.json.Decoder(RoundRecord | Finished)


def rows_of(
    run: RunConfig, sweep: SweepConfig, rounds: list[RoundRecord], finished: Finished, threads: int
) -> list[Mapping[str, Any]]:
    """Return the rows of a run, one for each of its rounds, or one with its error.

    ``threads`` is how many processors each of its processes might use.
    """
    bound, digest = Scheme.of_run(run).bound, None
    if run.task == RunConfig.task:
        with suppress(FedszError):
            digest = dataset_digest(run.dataset, run.data_dir)
    same = {
        **{name: getattr(run, name) for name in OPTION_COLUMNS},
        **stamp(),
        "initial": file_digest(run.initial) if run.initial else None,
        "run": run_id(run, sweep.grid),
        "codec_settings": settings_of(run.codec),
        "error_bound": f"{bound.kind}:{bound.value:g}" if bound else None,
        "bound_kind": bound.kind if bound else None,
        "bound_value": bound.value if bound else None,
        "tolerance": run.tolerance if run.policy != FIXED else None,
        "grid": sweep.grid,
        "threads": threads,
        "dataset_digest": digest,
    }
    if finished.error:
        return [{**same, "error": finished.error}]
    rows = [{**same, **numbers(row)} for row in rounds]
    rows[-1]["distributions"] = msgspec.to_builtins(finished.distributions)
    return list(rows)
