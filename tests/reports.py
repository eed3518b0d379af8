"""Reports of small sweeps, and what their pages say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")

import pyarrow as pa

from fedsz.experiments.link_model import Link
from fedsz.experiments.results import SWEEP
from fedsz.report.figures import Chart
from fedsz.report.page import Table, contents
from fedsz.report.runs import Run
from fedsz.report.source import read_source, runs_of
from tests.sweeps import Rows, course

OF_CNN = [f"cnn-digits-{name}" for name in ("accuracy-bytes", "time", "bytes")]
# Accuracies after two rounds, by scheme.
ENDS = {
    "raw": 0.7, "weights:zstd": 0.7, "weights:szx@0.01": 0.69, "weights:szx@0.1": 0.6,
    "weights@0.01": 0.695, "weights@0.1": 0.65,
}  # fmt: skip


def trial(*ways: str, seeds: int = 2) -> Rows:
    """A sweep of two rounds, by default of all of `ENDS`, and a run that fails."""
    runs = [
        course(way, (0.1, 0.4, ENDS[way] - 0.02 * seed), seed)
        for way in ways or ENDS
        for seed in range(seeds)
    ]
    failed = [] if ways else course("weights@0.01", (), 2, options={"rounds": 2}, error="no disk")
    return [row for rows in (*runs, failed) for row in rows]


class Report(NamedTuple):
    """What is in a report, before anything is drawn."""

    facts: list[str]
    summaries: list[str]
    charts: dict[str, Chart]
    tables: dict[str, Table]


def runs_in(*rows: Rows) -> list[Run]:
    """The runs that rows tell of, as a sweep's file holds them."""
    table = pa.Table.from_pylist([dict(row) for some in rows for row in some], schema=SWEEP.schema)
    return runs_of(table.to_pylist())


def reported(*rows: Rows, reach: float | None = None) -> Report:
    """What a report of rows holds."""
    return report(runs_in(*rows), reach=reach)


def report_of(*sources: Path) -> Report:
    """What a report of files or folders holds."""
    return report(read_source(*sources))


def report(runs: Sequence[Run], reach: float | None = None) -> Report:
    facts, sections = contents(runs, [Link(10e6)], reach)
    charts = {chart.name: chart for section in sections for chart in section.charts}
    tables = {table.name: table for section in sections for table in section.tables}
    return Report(facts, [section.summary for section in sections], charts, tables)
