"""The table of docs/flower.md is made of its rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("sklearn")
pytest.importorskip("ray", reason="needs flwr[simulation]")
pytest.importorskip("benchmarks", reason="needs benchmarks")
from benchmarks import flower_matrix as matrix  # noqa: E402

pytestmark = pytest.mark.repository


def test_the_table_is_that_of_the_rows() -> None:
    found = msgspec.json.decode(
        (ROOT / "docs" / "results" / "flower_matrix.json").read_bytes(), type=matrix.Rows
    )

    assert found.commit
    assert [row.case for row in found.rows if row.wrapped.errors] == []
    assert matrix.table(found.rows) in (ROOT / "docs" / "flower.md").read_text()
