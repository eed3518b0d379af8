"""``fedsz sweep``: many runs, one result file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsz.cli.options import Json, configured
from fedsz.cli.output import print_json, print_table, say
from fedsz.experiments.sweep_plan import SweepConfig
from fedsz.formatting import count, duration
from fedsz.training.option import SWEEP

if TYPE_CHECKING:
    from fedsz.training.options import RunConfig

COLUMNS = ("seed", "dataset", "model", "partition", "way")  # a way says the rest


@configured(SWEEP, of=SweepConfig)
def command(
    config: SweepConfig,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and an estimate of its time.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run the runs again that failed.")] = False,
    json: Json = False,
) -> None:
    """Run every combination of models, data sets, schemes and seeds, and keep the results.

    A scheme is a codec with a bound, or an item of --ways.

    A file of JSON is kept of each run that is over; they are joined to one Parquet file when the
    sweep ends. To continue a sweep that was stopped, give the same command again. The exit code is
    1 if a run failed.
    """
    from contextlib import closing
    from pathlib import Path

    from rich.console import Console

    from fedsz.cli.progress import SweepProgress, print_summary
    from fedsz.cli.status import StatusLine
    from fedsz.experiments.duration_estimate import seconds
    from fedsz.experiments.results import SWEEP, Results
    from fedsz.experiments.sweep import Sweep, check

    check(config)
    if dry_run:
        _print_plan(config, json=json)
        return
    console = Console(stderr=True)
    with Results(Path(config.results), SWEEP) as results:
        sweep = Sweep(config, results)
        if retry:
            sweep.forget_failures()
        if sweep.done:
            say(f"{sweep.done} runs are in {config.results} already", console=console)
        if sweep.pending:
            with StatusLine(console, "timing a few steps, to say how long it takes"):
                times = [seconds(run) for run in sweep.pending]
            say(_total(times, config.jobs), console=console)
        for why, runs in sweep.missing.items():
            say(f"{why}; without it, {count(runs, 'run')} will fail", console=console)
        with SweepProgress(console, sweep) as progress, closing(sweep.run()) as steps:
            for step in steps:
                progress.show(step)
                if json and step.over:
                    print_json({**_named(step.run), "error": step.error, "seconds": step.seconds})
        if not json:
            print_summary(sweep)
    if sweep.failed:
        say(f"{count(sweep.failed, 'run')} failed; --retry runs them again", console=console)
        raise typer.Exit(1)


def _print_plan(config: SweepConfig, *, json: bool) -> None:
    from fedsz.experiments.duration_estimate import seconds

    times = [seconds(run) for run in config.runs]
    rows = []
    for name, estimate in zip(map(_named, config.runs), times, strict=True):
        if json:
            print_json({**name, "seconds": estimate})
        about = "unknown" if estimate is None else duration(estimate)
        rows.append((*(str(name[column]) for column in COLUMNS), about))
    if json:
        return
    print_table((*COLUMNS, "about"), rows, folded={"way": 1})
    say(_total(times, config.jobs))


def _total(times: Sequence[float | None], jobs: int) -> str:
    """Return how many runs there are, and about how long they take, ``jobs`` at a time."""
    known = [estimate for estimate in times if estimate is not None]
    runs = f"{count(len(times), 'run')}{f', {jobs} at a time' if jobs > 1 else ''}"
    if not known:
        return f"{runs}, of unknown length"
    more = f" and {len(times) - len(known)} of unknown length" if len(known) < len(times) else ""
    return f"{runs}: about {duration(sum(known) / min(jobs, len(times)))}{more}"


def _named(run: RunConfig) -> dict[str, Any]:
    from fedsz.experiments.scheme import Scheme, partition_name

    scheme = Scheme.of_run(run)
    return {
        **{name: getattr(run, name) for name in ("seed", "dataset", "model")},
        "partition": partition_name(run.partitioner, run.alpha),
        "way": str(scheme),
        **{name: getattr(scheme, name) for name in ("update", "codec")},
        "error_bound": run.error_bound if scheme.bound else None,
        **{name: getattr(scheme, name) for name in ("downlink", "policy")},
    }
