"""Small sweeps, really run in this process, as a result file."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedsz.control.record import RoundRecord
from fedsz.errors import FedszError
from fedsz.experiments.results import SWEEP, Results
from fedsz.experiments.sweep import rows_of
from fedsz.experiments.sweep_plan import SweepConfig
from fedsz.experiments.sweep_worker import Finished, execute

Rows = Sequence[Mapping[str, Any]]


@cache
def swept(**options: Any) -> Rows:
    """The rows of a sweep of few images; a run that fails is a row with its error."""
    few = {"samples": 160, "test_samples": 100, "clients": 2, "rounds": 2}
    config = SweepConfig(**{**few, **options})
    found: list[Mapping[str, Any]] = []
    gc.freeze()  # each round collects garbage, and would look at all of torch every time
    for run in config.runs:
        rounds: list[RoundRecord] = []
        try:
            finished = Finished(execute(run, "local", rounds.append))
        except FedszError as err:
            finished = Finished(error=str(err))
        found += rows_of(run, config, rounds, finished, threads=1)
    gc.unfreeze()
    return found


def written(path: Path, rows: Rows) -> Path:
    """The file that holds these rows."""
    with Results(path, SWEEP) as results:
        results.add(rows)
    return path
