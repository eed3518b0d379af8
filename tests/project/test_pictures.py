"""The pictures in docs/ are what docs/draw_results.py draws of the rows that are checked in."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.repository
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def pictures() -> Any:
    return runpy.run_path(str(ROOT / "docs" / "draw_results.py"))["PICTURES"]


FILES = ("accuracy-bytes", "round-time", "client-keeps")


@pytest.mark.parametrize("file", [f"{name}.svg" for name in FILES])
def test_a_picture_is_what_the_script_draws(file: str, pictures: Any) -> None:
    drawn = pictures[file]()

    assert (ROOT / "docs" / file).read_text("utf-8") == drawn, "run python docs/draw_results.py"
