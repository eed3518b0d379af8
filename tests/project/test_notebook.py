"""examples/compare_codecs.ipynb runs, and what it shows is what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsz.codecs import CODECS

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = [pytest.mark.release, pytest.mark.repository]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "compare_codecs.ipynb"


def printed(notebook: Any) -> list[str]:
    """What each cell of code prints."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return ["".join(output.text for output in cell.outputs) for cell in cells]


def test_the_notebook_shows_what_it_prints() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    shown = printed(notebook)

    nbclient.NotebookClient(notebook, timeout=900).execute()

    size, table, energy = printed(notebook)
    assert (size, energy) == (shown[0], shown[2])  # the table between them has times
    for codec in CODECS:
        assert table.count(f"  {codec.name} ") == shown[1].count(f"  {codec.name} ") == 2
