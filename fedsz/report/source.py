"""Runs, read from a sweep's table or a run's folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from fedsz.control.record import Failure, RoundRecord
from fedsz.control.round_numbers import NUMBERS
from fedsz.errors import ConfigError
from fedsz.experiments.results import SWEEP, read
from fedsz.experiments.scheme import Scheme, partition_name
from fedsz.report.runs import CONDITIONS, Run
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CONFIG, ROUNDS, read_rounds

Rows = list[Mapping[str, Any]]

MEASURED: Final = NUMBERS.keys() - {"failures", "ratio"}


def read_source(*sources: Path) -> list[Run]:
    """Return the runs of sweeps' Parquet files and of runs' folders, those that failed too.

    A run that several files hold is that of the first.

    Raises:
        ConfigError: one is neither, cannot be read, or holds nothing yet.
    """
    folders: list[Run] = []
    runs: dict[str, Rows] = {}
    for source in sources:
        if source.is_dir():
            folders.append(_read_folder(source))
            continue
        if not source.exists():
            raise ConfigError(f"there is no {source}; a report is about a run's folder or a sweep")
        held = _by_run(read(source, SWEEP).to_pylist())
        if not held:
            raise ConfigError(f"{source} holds no runs yet")
        runs |= {run: rows for run, rows in held.items() if run not in runs}
    return [*folders, *map(_run_of, runs.values())]


def runs_of(rows: Iterable[Mapping[str, Any]]) -> list[Run]:
    """Return the runs that rows of the table "sweep" tell of."""
    return list(map(_run_of, _by_run(rows).values()))


def _by_run(rows: Iterable[Mapping[str, Any]]) -> dict[str, Rows]:
    held: dict[str, Rows] = {}
    for row in rows:
        held.setdefault(str(row["run"]), []).append(row)
    return held


def _run_of(rows: Rows) -> Run:
    last = max(rows, key=lambda row: -1 if row["round"] is None else row["round"])
    rounds = [_round_of(row) for row in rows if row["round"] is not None]
    return _made(
        last,
        Scheme.of_row(last),
        tuple(sorted(rounds, key=lambda done: done.round)),
        name=last["way"] or "",
        error=last["error"] or ("" if rounds else "no round was recorded"),
        version=last["fedsz_version"] or "",
        time=last["time"],
        **{name: last[name] for name in ("machine", "cores", "threads") if last[name]},
    )


def _made(of: Mapping[str, Any], way: Scheme, rounds: tuple[RoundRecord, ...], **more: Any) -> Run:
    """Return a run by its options, as a row or a folder has them."""
    known = {**of, "partition": partition_name(of["partitioner"], of["alpha"])}
    conditions = {name: known[name] for name in CONDITIONS}
    lossy = f"{of['rule']}>{of['threshold']}"
    return Run(way, known["lossless"], lossy, known["seed"], conditions, rounds, **more)


def _round_of(row: Mapping[str, Any]) -> RoundRecord:
    """Return the round that a row tells of; numbers that are not there are NaN."""
    values: dict[str, Any] = {n: math.nan if row[n] is None else row[n] for n in MEASURED}
    # A table says how many clients failed, not which.
    failures = [Failure("", "")] * (row["failures"] or 0)
    whole = {"replies": row["replies"] or 0, "max_error": row["max_error"] or 0.0}
    return RoundRecord(**values | whole | {"failures": failures})


def _read_folder(folder: Path) -> Run:
    """Return the run that a folder of `fedsz run` holds, a run that still goes on too."""
    if not (folder / CONFIG).is_file() or not (folder / ROUNDS).is_file():
        raise ConfigError(
            f"{folder} is no run: it holds no {CONFIG} and {ROUNDS}; a sweep is a Parquet file"
        )
    config = RunConfig.read(folder / CONFIG)
    rounds = tuple(read_rounds(folder))
    if not rounds:
        raise ConfigError(f"{folder} holds no finished round yet")
    # How many clients took part; before the first round, how many are to be started.
    clients = max(done.replies + len(done.failures) for done in rounds) or config.clients
    if config.clients_per_round:
        clients = max(clients, config.clients)
    known = {**config.as_dict(), "clients": clients}
    known["initial"] = Path(config.initial).name
    return _made(known, Scheme.of_run(config), rounds)
