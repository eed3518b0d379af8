"""The table of tasks in docs/results/savings.md is made of its rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "docs" / "results" / "defaults.parquet"

pytest.importorskip("sklearn")
pytestmark = pytest.mark.repository


def test_the_table_is_that_of_the_rows() -> None:
    defaults = pytest.importorskip("benchmarks.defaults", reason="needs benchmarks")

    assert defaults.table(pq.read_table(ROWS).to_pylist()) in (
        ROOT / "docs" / "results" / "savings.md"
    ).read_text("utf-8")


def test_every_task_is_measured_over_seeds() -> None:
    defaults = pytest.importorskip("benchmarks.defaults", reason="needs benchmarks")
    found = {line.name: line for line in defaults.lines(pq.read_table(ROWS).to_pylist())}

    assert found.keys() == defaults.TASKS.keys()
    assert all(line.seeds >= 3 for line in found.values())
