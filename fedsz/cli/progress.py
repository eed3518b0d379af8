"""A sweep on the screen."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fedsz.cli.output import print_table, say
from fedsz.control.record import RoundRecord
from fedsz.control.round_numbers import measured
from fedsz.experiments.scheme import DEFAULTS, Scheme, partition_name
from fedsz.experiments.sweep import Step, Sweep
from fedsz.experiments.sweep_plan import run_id
from fedsz.formatting import duration, metric, outcome
from fedsz.report.runs import Run, Spread
from fedsz.report.source import runs_of
from fedsz.training.options import RunConfig

# With 80 columns the data set goes below the model, and its partition below that.
FOLDED: Final = {"model, data": 13, "way": 15}


class SweepProgress:
    """Shows steps: a bar for the sweep with the time left, one for each run that is going on."""

    def __init__(self, console: Console, sweep: Sweep) -> None:
        self._console, self._jobs = console, sweep.config.jobs
        self._pending, self._ways = list(sweep.pending), sweep.config.way_names
        self._took: dict[tuple[str, str], list[float]] = {}
        note = TextColumn("{task.fields[note]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), note)
        self._progress = Progress(*columns, console=console, transient=True)
        self._done, self._total = sweep.done, sweep.done + len(sweep.pending)  # runs
        self._all = self._progress.add_task(
            "sweep", total=self._total, completed=self._done, note=""
        )
        self._tasks: dict[RunConfig, TaskID] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:  # else it would print an empty line
            self._progress.stop()

    def show(self, step: Step) -> None:
        """Take a step into the picture."""
        run = step.run
        if run not in self._tasks:
            self._tasks[run] = self._progress.add_task(self._named(run), total=run.rounds, note="")
        if not step.over:
            if step.round:
                note = outcome(step.round.accuracy, step.round.loss)
                self._progress.update(self._tasks[run], completed=step.round.round, note=note)
            return
        self._took.setdefault((run.model, run.dataset), []).append(step.seconds)
        self._progress.remove_task(self._tasks.pop(run))
        self._pending.remove(run)
        left = f"{duration(self._left())} left"
        self._done += 1
        self._progress.update(self._all, completed=self._done, note=left)
        more = f"; about {left}" if self._pending else ""
        say(
            f"{self._done} of {self._total}: {self._named(run)}: {_line(step)}{more}",
            console=self._console,
        )

    def _named(self, run: RunConfig) -> str:
        data = _data(run.dataset, partition_name(run.partitioner, run.alpha))
        return f"{run.model} {data} {self._ways.get(run) or Scheme.of_run(run)} seed {run.seed}"

    def _left(self) -> float:
        everything = [seconds for some in self._took.values() for seconds in some]
        alike = (self._took.get((run.model, run.dataset), everything) for run in self._pending)
        return sum(map(statistics.median, alike)) / min(self._jobs, max(len(self._pending), 1))


def print_summary(sweep: Sweep) -> None:
    """Print what came of the runs of a sweep's plan that its file holds, seeds together."""
    wanted = {run_id(run, sweep.config.grid) for run in sweep.config.runs}
    runs = runs_of(row for row in sweep.results.rows.to_pylist() if row["run"] in wanted)
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        of = run.conditions
        data = _data(of["dataset"], of["partition"])
        groups[f"{of['model']} {data}", run.name or str(run.way)].append(run)
    # A regression, or a language model, may have no accuracy.
    measured = any(math.isfinite(run.accuracy) for run in runs if not run.error)
    judge = "accuracy" if measured else "loss"
    numbers = (">seeds", f">{judge}", ">up", ">both", ">error/\nbound", ">failed")
    cells = ((*key, *_outcome(alike, judge)) for key, alike in groups.items())
    print_table(("model, data", "way", *numbers), cells, folded=FOLDED)


def _outcome(runs: Sequence[Run], judge: str) -> tuple[str, ...]:
    """Return seeds, the metric ``judge``, ratios, error and failures of runs of several seeds."""
    good = [run for run in runs if not run.error]
    failed = str(len(runs) - len(good)) if len(good) < len(runs) else ""
    if not good:
        return ("0", *["-"] * 4, failed)
    judged = Spread.of(getattr(run.rounds[-1], judge) for run in good)
    middle = metric(judged.middle if judged else None)
    ratios = zip(*(_ratios(run.trained) for run in good), strict=True)
    up, both = (f"{statistics.median(x):.1f}" if all(x) else "-" for x in ratios)
    error = max(run.max_error for run in good)
    return (str(len(good)), middle, up, both, measured(error), failed)


def _ratios(rounds: Sequence[RoundRecord]) -> tuple[float, float]:
    """Return how many times fewer bytes a whole run sent, up and both ways; 0 if not known."""
    names = ("raw_up", "sent_up", "raw_down", "sent_down")
    raw, sent, raw_down, sent_down = (sum(getattr(r, name) for r in rounds) for name in names)
    up = raw / sent if sent else 0.0
    return up, (raw + raw_down) / (sent + sent_down) if sent_down else 0.0


def _line(step: Step) -> str:
    if step.error:
        return f"failed: {step.error}"
    assert step.round is not None
    good = outcome(step.round.accuracy, step.round.loss)
    up, both = _ratios(step.rounds)
    smaller = (f" {up:.1f}x smaller up," if up else "") + (f" {both:.1f}x both ways," * bool(both))
    return f"{good},{smaller} {duration(step.seconds)}"


def _data(dataset: str, partition: str) -> str:
    """Return a data set, and how it is shared out if that is unusual."""
    return dataset if partition == DEFAULTS.partitioner else f"{dataset} {partition}"
