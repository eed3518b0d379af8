"""The page of measurements has the tables of the rows that were measured."""

from __future__ import annotations

import json

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.repository


def test_the_tables_of_large_models_are_those_of_the_rows() -> None:
    large_models = pytest.importorskip("benchmarks.large_models", reason="needs benchmarks")
    rows = json.loads((ROOT / "docs/results/large.json").read_text())["rows"]
    page = (ROOT / "docs/reference/measurements.md").read_text()

    for table in large_models.tables(rows):
        assert table in page
