"""docs/results/privacy.md: tables are those of their rows, and the attacks do what they show."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fedsz import extras
from tests.conftest import ROOT

pytest.importorskip("torch")
parquet = pytest.importorskip("pyarrow.parquet")
leakage = pytest.importorskip("benchmarks.leakage", reason="needs benchmarks")
error_laws = pytest.importorskip("benchmarks.error_laws", reason="needs benchmarks")
dp_accuracy = pytest.importorskip("benchmarks.dp_accuracy", reason="needs benchmarks")
noise_places = pytest.importorskip("benchmarks.noise_places", reason="needs benchmarks")
secure_sums = pytest.importorskip("benchmarks.secure_sums", reason="needs benchmarks")

pytestmark = pytest.mark.repository
RESULTS = ROOT / "docs" / "results"
SEEN = 20.0  # dB of a picture that can be recognised
UNSEEN = 12.0


def rows_of(name: str) -> list[dict[str, Any]]:
    return list(parquet.read_table(RESULTS / f"{name}.parquet").to_pylist())


def page() -> str:
    return (RESULTS / "privacy.md").read_text("utf-8")


def test_the_tables_are_those_of_their_rows() -> None:
    assert leakage.table(rows_of("leakage")) in page()
    assert error_laws.table(rows_of("error-laws")) in page()
    assert dp_accuracy.table(rows_of("dp")) in page()
    assert noise_places.table(rows_of("dp-places")) in page()
    assert secure_sums.table(rows_of("secagg")) in page()


def test_the_page_stays_short_and_has_one_table() -> None:
    text = (ROOT / "docs" / "privacy.md").read_text("utf-8")

    assert len(text.split()) <= 1200
    assert len(re.findall(r"^\| ?---", text, re.MULTILINE)) == 1


def test_compression_costs_less_than_a_point_beside_the_noise() -> None:
    found = dp_accuracy.outcomes(rows_of("dp"))["auto"]

    assert found.points is not None
    assert found.points.count == 3
    assert -1 < found.points.mean < -0.25
    assert found.epsilon <= 8


def test_what_is_said_of_secure_sums_is_so() -> None:
    for task in ("cnn", "gpt"):
        found = secure_sums.cost(rows_of("secagg"), task, "all").whole
        assert abs(found.mean) <= found.reach


def test_what_is_said_of_the_places_of_noise_is_so() -> None:
    found = {way: noise_places.points(rows_of("dp-places"), way) for way in ("sum", "client")}

    assert abs(found["sum"].mean) < found["sum"].reach
    assert found["client"].mean + found["client"].reach < -30


def test_what_is_said_of_the_pictures_is_so() -> None:
    found = leakage.medians(rows_of("leakage"))

    assert all(found[attack, "raw"] > SEEN for attack in leakage.ATTACKS)
    hidden = [found[attack, view] for attack in leakage.ATTACKS for view in ("SecAgg", "DP")]
    assert max(hidden) < UNSEEN
    assert (ROOT / "docs" / "leakage.png").stat().st_size < 30_000


def test_what_is_said_of_errors_is_so() -> None:
    law = {row["way"]: row for row in rows_of("error-laws")}

    assert law["`layered:sigma=1e-3`"]["normal"] < 0.01
    assert all(law[way]["uniform"] < 0.01 for way in ("`uveqfed`", "FedSZ as published"))
    assert law["`auto`, late"]["tells"] > 0.95
    assert not any(row["laplace"] == min(row[n] for n in error_laws.LAWS)
                   for way, row in law.items() if way != "`auto`, late")  # fmt: skip


@pytest.mark.parametrize("view", ["raw", "auto", "SecAgg", "DP"])
def test_a_dense_layer_gives_its_input_away_unless_it_is_hidden(view: str) -> None:
    """On a drawn picture, so no data set is needed."""
    if view == "DP" and extras.missing("dp_accounting"):
        pytest.skip("dp-accounting is not installed")
    side = np.linspace(0, 1, leakage.SIDE, dtype=np.float32)
    picture = np.where(np.add.outer(side, side) > 1, side, 0).astype(np.float32)

    found = leakage.rebuilt("linear", view, picture, label=3, seed=5)

    ratio = leakage.psnr(picture, found)
    assert ratio > SEEN if view in ("raw", "auto") else ratio < UNSEEN
