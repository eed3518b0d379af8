"""Running a plan: jobs side by side, each row kept as soon as it is there, resumed where it was."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow.compute as pc

from fedsz.child_process import Child
from fedsz.control.fixed import FIXED
from fedsz.control.record import RoundRecord
from fedsz.errors import FedszError
from fedsz.experiments.environment import cores, dataset_digest, environment, file_digest
from fedsz.experiments.results import Results, round_columns
from fedsz.experiments.scheme import STORED, Scheme
from fedsz.experiments.sweep_plan import SweepConfig, defining_options, run_id, settings_of
from fedsz.experiments.sweep_worker import Finished, Job
from fedsz.training.options import RunConfig


@dataclass(frozen=True)
class Step:
    """What happened in a sweep.

    Attributes:
        run: which run it is about.
        round: of it, from 0, if one has been done; else None.
        error: why the run gave no result, or "".
        over: whether the run is over, and its rows are in the file.
        seconds: that it took, when it is over.
    """

    run: RunConfig
    round: RoundRecord | None = None
    error: str = ""
    over: bool = False
    seconds: float = 0.0


@dataclass
class Sweep:
    """A plan, its result file, and what of it is still to do.

    Attributes:
        config: the plan.
        results: its file, open.
        todo: the runs that the file does not hold yet.
        done: how many it does hold, of this plan.
    """

    config: SweepConfig
    results: Results
    todo: list[RunConfig] = field(init=False)
    done: int = field(init=False)

    def __post_init__(self) -> None:
        held = set(self.results.rows.column("run").to_pylist())
        runs = self.config.runs
        self.todo = [run for run in runs if run_id(run, self.config.grid) not in held]
        self.done = len(runs) - len(self.todo)

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
        waiting: queue.SimpleQueue[RunConfig] = queue.SimpleQueue()
        told: queue.SimpleQueue[_Told | None] = queue.SimpleQueue()
        for run in self.todo:
            waiting.put(run)
        jobs = min(self.config.jobs, len(self.todo))
        threads = max(1, cores() // max(jobs, 1))
        rounds: dict[RunConfig, list[RoundRecord]] = {}
        with ExitStack() as stack:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsz-")))
            workers = [_Worker(log / f"{i}.log", threads, self.config.grid) for i in range(jobs)]
            for worker in workers:
                stack.callback(worker.close)
                threading.Thread(target=_work, args=(worker, waiting, told), daemon=True).start()
            working = jobs
            while working:
                news = told.get()
                if news is None:
                    working -= 1
                elif isinstance(news.what, RoundRecord):
                    rounds.setdefault(news.run, []).append(news.what)
                    yield Step(news.run, news.what)
                else:
                    trained = rounds.pop(news.run, [])
                    self.results.add(rows_of(news.run, self.config, trained, news.what, threads))
                    yield Step(
                        news.run,
                        trained[-1] if trained else None,
                        error=news.what.error,
                        over=True,
                        seconds=sum(row.seconds for row in trained),
                    )


@dataclass(frozen=True)
class _Told:
    run: RunConfig
    what: RoundRecord | Finished


class _Worker:
    """A process for one run after another, started anew when one takes it down."""

    def __init__(self, log: Path, threads: int, grid: str) -> None:
        self._log, self._threads, self._grid = log, threads, grid
        self._process: Child | None = None
        self._closed = False
        self._lock = threading.Lock()

    def run(self, run: RunConfig) -> Iterator[RoundRecord | Finished]:
        """Make a run; the last that comes is its `Finished`."""
        process = self._started()
        process.tell(Job(run.as_dict(), self._grid))
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

    def _started(self) -> Child:
        with self._lock:
            if self._closed:
                raise FedszError("the sweep is over")
            if self._process is None or not self._process.is_running:
                self._log.unlink(missing_ok=True)  # last words are those of this process
                module = "fedsz.experiments.sweep_worker"
                self._process = Child(module, log=self._log, threads=self._threads)
            return self._process


_DECODER: Final = msgspec.json.Decoder(RoundRecord | Finished)


def _work(
    worker: _Worker,
    waiting: queue.SimpleQueue[RunConfig],
    told: queue.SimpleQueue[_Told | None],
) -> None:
    try:
        while True:
            run = waiting.get_nowait()
            for what in worker.run(run):
                told.put(_Told(run, what))
    except (queue.Empty, FedszError):
        pass
    finally:
        told.put(None)


def rows_of(
    run: RunConfig,
    sweep: SweepConfig,
    rounds: list[RoundRecord],
    finished: Finished,
    threads: int,
) -> list[Mapping[str, Any]]:
    """Return the rows of a run: one for each round, or one with its error.

    Args:
        run: what was run.
        sweep: what it is part of.
        rounds: all of its rounds.
        finished: how it ended.
        threads: processors that each of its processes might use.
    """
    bound = Scheme.of_run(run).bound
    own = ("model", "dataset", "seed", "policy", *STORED, *defining_options())
    same = {
        **{name: getattr(run, name) for name in own},
        **environment(),
        "initial": file_digest(run.initial) if run.initial else None,
        "run": run_id(run, sweep.grid),
        "codec_settings": settings_of(run.codec),
        "error_bound": f"{bound.kind}:{bound.value:g}" if bound else None,
        "bound_kind": bound.kind if bound else None,
        "bound_value": bound.value if bound else None,
        "tolerance": run.tolerance if run.policy != FIXED else None,
        "grid": sweep.grid,
        "threads": threads,
        "dataset_digest": _digest(run),
        "time": datetime.now(UTC).replace(microsecond=0),
    }
    if finished.error:
        return [{**same, "error": finished.error}]
    rows = [{**same, **round_columns(row)} for row in rounds]
    rows[-1]["distributions"] = [msgspec.to_builtins(found) for found in finished.distributions]
    return list(rows)


def _digest(run: RunConfig) -> str | None:
    try:
        return dataset_digest(run.dataset, run.data_dir)
    except FedszError:
        return None
