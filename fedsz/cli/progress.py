"""A sweep on the screen."""

from __future__ import annotations

import statistics
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fedsz.cli.output import print_table, say
from fedsz.experiments.scheme import DEFAULTS, Scheme, partition_name
from fedsz.experiments.sweep import Step, Sweep
from fedsz.experiments.sweep_plan import run_id
from fedsz.formatting import duration
from fedsz.training.options import RunConfig

# On a narrow screen a data set and its partition take two lines, rather than the way none.
FOLDED: Final = {"dataset": 13, "way": 17}


class SweepProgress:
    """Shows steps: a bar for the sweep with the time left, one for each run that is going on."""

    def __init__(self, console: Console, sweep: Sweep) -> None:
        self._console, self._jobs = console, sweep.config.jobs
        self._todo = list(sweep.todo)
        self._took: dict[tuple[str, str], list[float]] = {}
        note = TextColumn("{task.fields[note]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), note)
        self._progress = Progress(*columns, console=console, transient=True)
        total = sweep.done + len(sweep.todo)
        self._all = self._progress.add_task("sweep", total=total, completed=sweep.done, note="")
        self._tasks: dict[RunConfig, TaskID] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, step: Step) -> None:
        """Take a step into the picture."""
        run = step.run
        if run not in self._tasks:
            self._tasks[run] = self._progress.add_task(_named(run), total=run.rounds, note="")
        if not step.over:
            if step.round:
                note = f"accuracy {step.round.accuracy:.4f}"
                self._progress.update(self._tasks[run], completed=step.round.round, note=note)
            return
        self._took.setdefault((run.model, run.dataset), []).append(step.seconds)
        self._progress.remove_task(self._tasks.pop(run))
        self._todo.remove(run)
        self._progress.update(self._all, advance=1, note=f"{duration(self._left())} left")
        say(_line(step), console=self._console)

    def _left(self) -> float:
        everything = [seconds for some in self._took.values() for seconds in some]
        alike = (self._took.get((run.model, run.dataset), everything) for run in self._todo)
        return sum(map(statistics.median, alike)) / min(self._jobs, max(len(self._todo), 1))


def print_summary(sweep: Sweep) -> None:
    """Print the last round of every run of a sweep's plan that its file holds."""
    wanted = {run_id(run, sweep.config.grid) for run in sweep.config.runs}
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    columns = [name for name in sweep.results.rows.column_names if name != "distributions"]
    for row in sweep.results.rows.select(columns).to_pylist():
        if row["run"] in wanted and row["round"] in (None, row["rounds"]):
            data = _data(row["dataset"], row["partitioner"], row["alpha"])
            groups.setdefault((data, row["model"], str(Scheme.of_row(row))), []).append(row)
    heads = ("dataset", "model", "way", ">seeds", ">accuracy", ">ratio", ">error/bound", ">failed")
    cells = ((*key, *_outcome(rows)) for key, rows in groups.items())
    print_table(heads, cells, folded=FOLDED)


def _outcome(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return seeds, accuracy, ratio, error and failures of runs that differ in their seeds."""
    good = [row for row in rows if row["error"] is None]
    failed = str(len(rows) - len(good)) if len(good) < len(rows) else ""
    if not good:
        return ("0", "-", "-", "-", failed)
    accuracy = statistics.median(row["accuracy"] for row in good)
    ratio = statistics.median(row["ratio"] or 1.0 for row in good)
    error = max(row["max_error"] for row in good)
    return (str(len(good)), f"{accuracy:.4f}", f"{ratio:.2f}", f"{error:.4f}", failed)


def _line(step: Step) -> str:
    if step.error:
        return f"{_named(step.run)}: failed: {step.error}"
    row = step.round
    assert row is not None
    ratio = f", {row.ratio:.2f}x smaller" if row.ratio else ""
    return f"{_named(step.run)}: accuracy {row.accuracy:.4f}{ratio}, {step.seconds:.0f} s"


def _named(run: RunConfig) -> str:
    data = _data(run.dataset, run.partitioner, run.alpha)
    return f"{run.model} {data} {Scheme.of_run(run)} seed {run.seed}"


def _data(dataset: str, partitioner: str, alpha: float) -> str:
    """Return a data set, and how it is shared out if that is unusual."""
    unusual = partitioner != DEFAULTS.partitioner
    return f"{dataset} {partition_name(partitioner, alpha)}" if unusual else dataset
