"""docs/results/privacy.md: tables are those of their rows."""

from __future__ import annotations

import re
from statistics import fmean
from typing import Any

import pytest

from tests.conftest import ROOT

pytest.importorskip("torch")
parquet = pytest.importorskip("pyarrow.parquet")
from fedsz.report.runs import Spread, difference  # noqa: E402

pytestmark = pytest.mark.repository
RESULTS = ROOT / "docs" / "results"


def rows_of(name: str) -> list[dict[str, Any]]:
    return list(parquet.read_table(RESULTS / f"{name}.parquet").to_pylist())


def points(rows: list[dict[str, Any]], way: str, plain: str, last: int) -> Spread:
    """How much a way's mean accuracy over its last rounds is above another's, by seed."""
    means: dict[tuple[str, int], list[float]] = {}
    for row in sorted(rows, key=lambda row: row["round"]):
        means.setdefault((row["way"], row["seed"]), []).append(row["accuracy"])
    found = Spread.of(
        fmean(means[way, seed][-last:]) - fmean(means[plain, seed][-last:])
        for name, seed in means
        if name == way
    )
    assert found
    return found


def accuracy(rows: list[dict[str, Any]], way: str) -> str:
    """In percent, the mean over the last three rounds."""
    first = max(row["round"] for row in rows) - 2
    late = (row["accuracy"] for row in rows if row["way"] == way and row["round"] >= first)
    return f"{100 * fmean(late):.1f}"


def table_of_noise() -> str:
    rows = rows_of("dp")
    lines = [
        "| update | accuracy | points | up | both | epsilon |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way in ("raw", "auto"):
        mine = [row for row in rows if row["way"] == way]
        raw_up, up, raw_down, down = (
            sum(row[name] for row in mine)
            for name in ("raw_up", "sent_up", "raw_down", "sent_down")
        )
        change = difference(points(rows, way, "raw", 3)) if way != "raw" else ""
        ratios = f"{raw_up / up:.1f} | {(raw_up + raw_down) / (up + down):.1f}"
        spent = max(row["epsilon"] for row in mine)
        lines.append(f"| `{way}` | {accuracy(rows, way)} | {change} | {ratios} | {spent:.2f} |")
    return "\n".join(lines)


def table_of_places() -> str:
    rows = rows_of("dp-places")
    lines = ["| noise at | accuracy | points | epsilon |", "| --- | ---: | ---: | ---: |"]
    for way in ("none", "server", "sum", "client"):
        spent = max(row["epsilon"] or 0 for row in rows if row["way"] == way)
        change = difference(points(rows, way, "server", 3)) if way != "server" else ""
        epsilon = f"{spent:.2f}" if spent else ""
        lines.append(f"| {way} | {accuracy(rows, way)} | {change} | {epsilon} |")
    return "\n".join(lines)


TASKS = ("cnn", "gpt", "lstm")


def table_of_sums() -> str:
    lines = [
        "| task | bits a parameter | seeds | times below float32 | points, all rounds |"
        " last third |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for task in TASKS:
        rows = [row for row in rows_of("secagg") if row["model"] == task]
        for way in ("eight", "four"):
            mine = [row for row in rows if row["way"] == way]
            ratio = sum(row["raw_up"] for row in mine) / sum(row["sent_up"] for row in mine)
            changes = [difference(points(rows, way, "float32", last)) for last in (60, 20)]
            cells = [task, f"{32 / ratio:.2f}", "3", f"{ratio:.1f}", *changes]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    return (RESULTS / "privacy.md").read_text("utf-8")


def test_the_tables_are_those_of_their_rows() -> None:
    assert table_of_noise() in page()
    assert table_of_places() in page()
    assert table_of_sums() in page()


def test_the_page_stays_short_and_has_one_table() -> None:
    text = (ROOT / "docs" / "privacy.md").read_text("utf-8")

    assert len(text.split()) <= 1200
    assert len(re.findall(r"^\| ?---", text, re.MULTILINE)) == 1


def test_compression_costs_less_than_a_point_beside_the_noise() -> None:
    rows = rows_of("dp")
    found = points(rows, "auto", "raw", 3)

    assert found.count == 3
    assert -0.01 < found.mean < -0.0025
    assert max(row["epsilon"] or 0 for row in rows) <= 8


def test_what_is_said_of_secure_sums_is_so() -> None:
    for task in TASKS:
        rows = [row for row in rows_of("secagg") if row["model"] == task]
        found = points(rows, "eight", "float32", 60)
        assert abs(found.mean) <= found.reach


def test_what_is_said_of_the_places_of_noise_is_so() -> None:
    rows = rows_of("dp-places")
    found = {way: points(rows, way, "server", 3) for way in ("sum", "client")}

    assert abs(found["sum"].mean) < found["sum"].reach
    assert found["client"].mean + found["client"].reach < -0.3
