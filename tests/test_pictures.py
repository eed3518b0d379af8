"""The pictures in docs/ are what docs/draw_results.py draws of the rows that are checked in."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.repository
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def drawing() -> Any:
    spec = importlib.util.spec_from_file_location("draw_results", ROOT / "docs/draw_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", ["accuracy-bytes.svg", "round-time.svg", "client-keeps.svg"])
def test_a_picture_is_what_the_script_draws(file: str, drawing: Any) -> None:
    drawn = drawing.PICTURES[file]()

    assert (ROOT / "docs" / file).read_text("utf-8") == drawn, "run python docs/draw_results.py"
