"""``fedsz sweep``: many runs, one result file."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fedsz.cli.options import Command, configured
from fedsz.cli.output import print_table, say
from fedsz.experiments.sweep_plan import SweepConfig, run_id
from fedsz.formatting import count, duration, metric, outcome
from fedsz.training.options import SWEEP

if TYPE_CHECKING:
    from fedsz.control.record import RoundRecord
    from fedsz.experiments.sweep import Step, Sweep
    from fedsz.report.runs import Run
    from fedsz.training.options import RunConfig

COLUMNS: Final = ("seed", "dataset", "model", "partition", "way")  # a way says the rest


@click.command(SWEEP, cls=Command)
@configured(SWEEP, of=SweepConfig)
@click.option("--dry-run", is_flag=True, help="Print the runs of the plan, and end.")
@click.option("--retry", is_flag=True, help="Run the runs again that failed.")
@click.pass_context
def sweep(context: click.Context, config: SweepConfig, *, dry_run: bool, retry: bool) -> None:
    """Run every combination of models, data sets, schemes and seeds, and keep the results.

    A scheme is a codec with a bound, or an item of --ways.

    A file of JSON is kept of each run that is over; they are joined to one Parquet file when the
    sweep ends. To continue a sweep that was stopped, give the same command again. The exit code is
    1 if a run failed.
    """
    from fedsz.experiments.results import SWEEP, Results
    from fedsz.experiments.sweep import Sweep, check

    check(config)
    if dry_run:
        _print_plan(config)
        return
    with Results(Path(config.results), SWEEP) as results:
        sweep = Sweep(config, results)
        if retry:
            sweep.forget_failures()
        if sweep.done:
            say(f"{sweep.done} runs are in {config.results} already", err=True)
        if sweep.pending:
            say(f"{count(len(sweep.pending), 'run')} to make", err=True)
        for why, runs in sweep.missing.items():
            say(f"{why}; without it, {count(runs, 'run')} will fail", err=True)
        progress = SweepProgress(sweep)
        with closing(sweep.run()) as steps:
            for step in steps:
                say(progress.line(step), err=True)
        print_summary(sweep)
    if sweep.failed:
        say(f"{count(sweep.failed, 'run')} failed; --retry runs them again", err=True)
        context.exit(1)


class SweepProgress:
    """The line of each run of a sweep that ends, with the time that is left."""

    def __init__(self, sweep: Sweep) -> None:
        self._jobs, self._pending = sweep.config.jobs, list(sweep.pending)
        self._ways = sweep.config.way_names
        self._took: dict[tuple[str, str], list[float]] = {}  # seconds, by model and data set
        self._done, self._total = sweep.done, sweep.done + len(sweep.pending)  # runs

    def line(self, step: Step) -> str:
        """Return the line of a run that has ended."""
        self._took.setdefault((step.run.model, step.run.dataset), []).append(step.seconds)
        self._pending.remove(step.run)
        self._done += 1
        rest = f"; about {duration(self._time_left())} left" if self._pending else ""
        return f"{self._done} of {self._total}: {self.name(step.run)}: {_line(step)}{rest}"

    def name(self, run: RunConfig) -> str:
        """Return what a run is called: its model, data, way and seed."""
        cells = _cells(run, self._ways)
        data = _data(run.dataset, cells["partition"])
        return f"{run.model} {data} {cells['way']} seed {run.seed}"

    def _time_left(self) -> float:
        everything = [seconds for some in self._took.values() for seconds in some]
        alike = (self._took.get((run.model, run.dataset), everything) for run in self._pending)
        return sum(map(statistics.median, alike)) / min(self._jobs, max(len(self._pending), 1))


def _print_plan(config: SweepConfig) -> None:
    ways = config.way_names
    print_table(COLUMNS, [tuple(_cells(run, ways).values()) for run in config.runs])
    say(count(len(config.runs), "run"))


def _cells(run: RunConfig, ways: Mapping[RunConfig, str]) -> dict[str, str]:
    """Return the cells of a run by `COLUMNS`; ``ways`` has the names of those that have one."""
    from fedsz.experiments.scheme import Scheme, partition_name

    partition = partition_name(run.partitioner, run.alpha)
    way = ways.get(run) or str(Scheme.of_run(run))
    return dict(zip(COLUMNS, (str(run.seed), run.dataset, run.model, partition, way), strict=True))


def print_summary(sweep: Sweep) -> None:
    """Print what came of the runs of a sweep's plan that its file holds, seeds together."""
    from fedsz.report.source import runs_of

    wanted = {run_id(run) for run in sweep.config.runs}
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
    print_table(("model, data", "way", *numbers), cells)


def _outcome(runs: Sequence[Run], judge: str) -> tuple[str, ...]:
    """Return seeds, the metric ``judge``, ratios, error and failures of runs of several seeds."""
    from fedsz.control.round_numbers import measured
    from fedsz.report.runs import Spread

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
    good = outcome(step.rounds[-1].accuracy, step.rounds[-1].loss)
    up, both = _ratios(step.rounds)
    smaller = (f" {up:.1f}x smaller up," if up else "") + (f" {both:.1f}x both ways," * bool(both))
    return f"{good},{smaller} {duration(step.seconds)}"


def _data(dataset: str, partition: str) -> str:
    """Return a data set, and how it is shared out if that is unusual."""
    from fedsz.experiments.scheme import DEFAULTS

    return dataset if partition == DEFAULTS.partitioner else f"{dataset} {partition}"
