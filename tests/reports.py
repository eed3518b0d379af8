"""Reports of small sweeps, and what their pages say."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from fedsz.report import write_report
from tests.sweeps import Rows, swept

FIGURES = (
    "accuracy-bytes", "accuracy-ratio", "accuracy-rounds", "accuracy-bound", "time-split",
    "transfer-bound", "transfer-bandwidth", "weights", "errors",
)  # fmt: skip


def rows() -> Rows:
    good = swept(codecs="raw,szx,uniform,zstd", error_bounds="1e-2..1e-1", seeds=2)
    bad = swept(codecs="uniform", error_bounds="1e-2", device="cuda:99")
    return [*good, *bad]


def few() -> Rows:
    """Those of one seed and two codecs: a page of them takes a moment less."""
    return [
        row
        for row in rows()
        if row["seed"] == 0 and row["codec"] in ("raw", "uniform") and not row.get("error")
    ]


def report(source: Path, tmp_path: Path, **more: Any) -> str:
    return write_report(source, tmp_path / "report.html", **more).read_text("utf-8")


@contextmanager
def not_drawn() -> Iterator[None]:
    """Drawing takes long, and most tests are not about it."""
    empty = {"svg": b"", "png": b""}
    with (
        mock.patch("fedsz.report.page.inline", return_value=[]),
        mock.patch("fedsz.report.page.files", return_value=empty),
    ):
        yield


def told(source: Path | Sequence[Path], tmp_path: Path, **more: Any) -> str:
    """The page but for what its figures hold."""
    with not_drawn():
        return write_report(source, tmp_path / "told.html", **more).read_text("utf-8")


def ids(page: str, tag: str) -> list[str]:
    return re.findall(rf'<{tag} id="([^"]*)"', page)


def left_out(page: str) -> dict[str, str]:
    items = re.findall(r"<li>([^<:]*): ([^<]*)\.</li>", page.split("<main>")[1])
    return {name: html.unescape(why) for name, why in items}


def cells(page: str, table: str) -> list[list[str]]:
    body = page.split(f'<table id="{table}"')[1].split("</table>")[0]
    found = [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in body.split("<tr>")[1:]]
    return [[html.unescape(cell) for cell in row] for row in found]


def with_column(rows: Rows, **columns: Any) -> Rows:
    return [{**row, **columns} for row in rows]
