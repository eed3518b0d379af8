"""The table of docs/flower.md is made of its rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("sklearn")
pytest.importorskip("ray", reason="needs flwr[simulation]")
pytestmark = pytest.mark.repository


def test_the_table_is_that_of_the_rows() -> None:
    matrix = pytest.importorskip("benchmarks.flower_matrix", reason="needs benchmarks")
    found = msgspec.json.decode(
        (ROOT / "docs" / "results" / "flower_matrix.json").read_bytes(), type=matrix.Rows
    )

    assert found.commit
    assert [row.case for row in found.rows if row.wrapped.errors] == []
    assert matrix.table(found.rows) in (ROOT / "docs" / "flower.md").read_text()


def test_the_table_of_differential_privacy_is_that_of_its_rows() -> None:
    private = pytest.importorskip("benchmarks.private_accuracy", reason="needs benchmarks")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(ROOT / "docs" / "results" / "private.parquet").to_pylist()

    assert all(row["commit"] for row in rows)
    assert private.table(rows) in (ROOT / "docs" / "flower.md").read_text()
