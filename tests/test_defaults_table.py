"""The table of tasks in docs/choosing.md is made of its rows."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq
import pytest

from fedsz.report.runs import Spread

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "docs" / "results" / "defaults.parquet"

pytest.importorskip("sklearn")
pytestmark = pytest.mark.repository


def test_the_table_is_that_of_the_rows() -> None:
    defaults = pytest.importorskip("benchmarks.defaults", reason="needs benchmarks")

    assert defaults.table(pq.read_table(ROWS).to_pylist()) in (
        ROOT / "docs" / "choosing.md"
    ).read_text("utf-8")


def test_every_task_is_measured_over_seeds() -> None:
    defaults = pytest.importorskip("benchmarks.defaults", reason="needs benchmarks")
    found = {line.name: line for line in defaults.lines(pq.read_table(ROWS).to_pylist())}

    assert found.keys() == defaults.TASKS.keys()
    assert all(line.seeds >= 3 for line in found.values())


def test_what_full_bounds_cost_a_small_network_with_batch_normalisation() -> None:
    rows = pq.read_table(ROWS.with_name("resnet8.parquet")).to_pylist()
    lost, up, both = [], [], []
    for seed in range(5):
        plain, auto = (
            [row for row in rows if (row["seed"], row["policy"]) == (seed, policy)]
            for policy in ("fixed", "auto")
        )
        lost.append(auto[-1]["accuracy"] - plain[-1]["accuracy"])
        raw_up, raw_down, sent_up, sent_down = (
            sum(row[f"{kind}_{way}"] for row in runs)
            for kind, runs in (("raw", plain), ("sent", auto))
            for way in ("up", "down")
        )
        up.append(raw_up / sent_up)
        both.append((raw_up + raw_down) / (sent_up + sent_down))
    points = Spread.of(lost)

    assert points
    assert (
        f"{100 * points.mean:+.2f} ± {100 * points.reach:.2f} points at {fmean(up):.1f} times fewer"
        f" bytes up and {fmean(both):.1f} in all"
    ) in (ROOT / "docs" / "choosing.md").read_text("utf-8")
