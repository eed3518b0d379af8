"""Accuracy over bytes: ratios, bytes to an accuracy, intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from fedsz.errors import ConfigError
from fedsz.experiments.scheme import Scheme
from fedsz.formatting import digits, points
from fedsz.report.accuracy_over_bytes import charts
from fedsz.report.rate_accuracy import NEARLY, USUAL_WAY, RateAccuracy, best, rate_accuracies
from fedsz.report.runs import Spread, settings_of
from fedsz.report.source import read_source
from tests.reports import cells, few, ids, rows, told
from tests.sweeps import Rows, swept, written


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("small") / "trial.parquet", few())


def uplink(rows_: Rows, name: str, seed: int | None = None) -> tuple[float, float]:
    """Bytes of an uplink, before and after compression."""
    mine = [row for row in rows_ if str(Scheme.of_row(row)) == name and seed in (None, row["seed"])]
    raw, sent = (sum(row.get(column) or 0 for row in mine) for column in ("raw_up", "sent_up"))
    return raw, raw if name == "raw" else sent


def test_ways_are_compared_by_bytes_up_plus_down(tmp_path: Path) -> None:
    ways = "raw,weights:sz2@1e-2,delta@1e-2,delta:zstd,weights@0.1"
    found = [
        {**row, "sent_down": row["raw_down"] // 3} if row["error_bound"] == "rel:0.01"
        and row["update"] == "delta" else row
        for row in swept(ways=ways, seeds=3, samples=80)
    ]  # fmt: skip
    path = written(tmp_path / "x.parquet", found)

    page = told(path, tmp_path)

    head, *table = cells(page, "ways")
    of = {row[1]: dict(zip(head, row, strict=True)) for row in table}
    assert [row[0] for row in table] == ["cnn on digits", *[""] * (len(table) - 1)]
    assert set(of) == {"uncompressed", *ways.replace("1e-2", "0.01").split(",")} - {"raw"}
    assert next(iter(of)) == "uncompressed"
    assert {of["uncompressed"][name] for name in head[2:5]} == {"1.00"}
    delta, usual = of["delta@0.01"], uplink(found, "weights:sz2@0.01")
    raw, sent = uplink(found, "delta@0.01")
    assert delta["ratio up"] == digits(raw / sent)
    assert delta["ratio down"] == "3.00"
    assert delta["ratio of all"] == digits(2 * raw / (sent + raw / 3))
    assert delta["times fewer up"] == digits(usual[1] / sent)
    assert of["weights:sz2@0.01"]["times fewer up"] == "1.00"
    # Lossless codecs cost no accuracy, so they are where uncompressed is, for fewer bytes.
    assert of["delta:zstd"]["points"] == "+0.00 ± 0.00"
    assert of["delta:zstd"]["seeds"] == "3"
    ends = {
        (str(Scheme.of_row(row)), row["seed"]): row["accuracy"]
        for row in found
        if row["round"] == 2
    }
    lost = [ends["weights@0.1", seed] - ends["raw", seed] for seed in range(3)]
    reach = 4.302652729911275 * statistics.stdev(lost) / math.sqrt(3)
    assert of["weights@0.1"]["points"] == f"{points(statistics.fmean(lost))} ± {100 * reach:.2f}"
    for name in ("accuracy-bytes", "accuracy-ratio"):
        assert f"cnn-digits-{name}" in ids(page, "figure")


def test_several_files_are_one_report(small: Path, tmp_path: Path) -> None:
    rows_ = rows()
    parts = [[row for row in rows_ if (row["seed"] == 0) == first] for first in (True, False)]
    paths = [written(tmp_path / f"{i}.parquet", part) for i, part in enumerate(parts)]

    whole = told([*paths, small], tmp_path)

    assert "Sweep 0, 1, trial" in whole
    (setting,) = settings_of(read_source(*paths, small))
    assert len(setting.runs) == len({(str(r.way), r.seed) for r in setting.runs}) == 2 * 6


def course(way: str, accuracies: Sequence[float], seed: int, **more: Any) -> Rows:
    """The rounds of a run with 1 MB up and 1 MB down each, uncompressed but for ``more``."""
    first = next(row for row in rows() if row["codec"] == "raw")
    byte = {"raw_up": 10**6, "raw_down": 10**6}
    return [
        {**first, "run": f"{way}{seed}{more}", "seed": seed, "codec": way, "round": i,
         "rounds": len(accuracies) - 1, "accuracy": accuracy, **(byte if i else {}), **more}
        for i, accuracy in enumerate(accuracies)
    ]  # fmt: skip


def test_bytes_to_an_accuracy(tmp_path: Path) -> None:
    """Exact numbers: 1 MB up and 1 MB down a round, accuracies 0.1, 0.4, 0.8, then 0.7 or 0.6."""
    sent = {"sent_up": 5 * 10**5, "sent_down": 10**6, "lossless": "blosclz"}
    found = [
        *course("raw", (0.1, 0.4, 0.8, 0.7), 0), *course("raw", (0.1, 0.4, 0.8, 0.6), 1),
        *course("zstd", (0.1, 0.4, 0.5, 0.96), 0, **sent),
        *course("zstd", (0.1, 0.4, 0.5, 0.6), 1, **sent),
        *course("szx", (0.1, 0.2, 0.2, 0.2), 0, **sent, bound_kind="rel", bound_value=0.01),
    ]  # fmt: skip
    source = written(tmp_path / "x.parquet", found)

    def bytes_to(reach: float | None) -> dict[str, list[str]]:
        head, *table = cells(told(source, tmp_path, reach=reach), "ways")
        parts = [f"bytes to {100 * part:g} %" for part in ((reach,) if reach else NEARLY)]
        assert head[9:] == parts
        return {row[1]: row[9:] for row in table}

    assert bytes_to(None) == {  # 0.76 and 0.792
        "uncompressed": ["3.80 MB", "3.96 MB"],
        "weights:zstd": ["3.85 MB (1 of 2)", "3.95 MB (1 of 2)"],
        "weights:szx@0.01": ["not reached", "not reached"],
    }
    assert bytes_to(0.1)["weights:szx@0.01"] == ["0 B"]
    assert bytes_to(0.4)["weights:zstd"] == ["1.50 MB"]
    (setting,) = settings_of(read_source(source))
    ways = {way.name: way for way in rate_accuracies(setting)}
    course_ = np.array(ways["uncompressed"].course)
    assert course_ == pytest.approx(np.array([(2e6, -0.25), (4e6, 0.15), (6e6, 0.0)]))
    assert ways["weights:zstd"].course[-1] == pytest.approx((4.5e6, 0.13))
    half, close = ways["weights:zstd"].reached
    assert half.fewer == pytest.approx((3.8 / (3 + 1.5 * (0.76 - 0.5) / 0.46), 0))
    assert close.sent[1] == math.inf
    for reach in (0.0, -1.0, 1.1, math.nan):
        with pytest.raises(ConfigError, match="accuracy to reach"):
            told(source, tmp_path, reach=reach)


def test_eight_ways_at_most_have_names() -> None:
    def way(name: str, total: float, mean: float) -> RateAccuracy:
        return RateAccuracy(name, total, 1.0, total, 1.0, Spread.of([mean] * 3), (), 1.0, ())

    front = [way(f"f{i}", 10.0 + i, -0.001 * i) for i in range(3)]
    rest = [way(f"r{i}", 2.0 + i / 10, -0.01) for i in range(20)]
    bad, plain = way("bad", 99.0, -0.3), way("uncompressed", 1.0, 0.0)
    usual = way(str(USUAL_WAY), 1.9, -0.02)

    found = best([plain, usual, *rest, *front, bad], 8)

    assert found == ["uncompressed", str(USUAL_WAY), "r17", "r18", "r19", "f0", "f1", "f2"]
    assert best([plain, bad], 8) == ["uncompressed", "bad"]


def test_intervals_are_those_of_student() -> None:
    # Fisher and Yates's table, two-sided, by degrees of freedom.
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 30: 2.042, 120: 1.980}
    for freedom, t in printed.items():
        values = [float(x) for x in range(freedom + 1)]
        found = Spread.of(values)
        assert found is not None
        error_of_mean = statistics.stdev(values) / math.sqrt(len(values))
        assert round(found.reach / error_of_mean, 3) == t
    found = Spread.of([1.0, 2.0, 3.0, math.nan])
    assert found is not None
    assert (found.mean, found.count) == (2.0, 3)
    assert found.reach == pytest.approx(4.302653 / math.sqrt(3))
    single = Spread.of([1.0])
    assert single is not None
    assert math.isnan(single.reach)
    assert Spread.of([math.inf]) is None
    assert Spread.of([math.nan]) is None


def test_the_fewest_bytes_are_those_of_all_bounds_at_equal_accuracy(tmp_path: Path) -> None:
    def way(bound: float, end: float, sent: int) -> Rows:
        of = {"bound_kind": "rel", "bound_value": bound, "lossless": "blosclz"}
        return course("szx", (0.1, end), 0, **of, sent_up=sent, sent_down=10**6)

    plain = course("raw", (0.1, 0.7), 0)
    worse = way(0.3, 0.694, 10**5)
    close = [*way(0.01, 0.7, 500_000), *way(0.1, 0.695, 250_000)]

    def fact(name: str, found: Rows) -> str:
        page = told(written(tmp_path / name, found), tmp_path)
        return page.split("<li>cnn on digits: ")[1].split("</li>")[0]

    assert fact("all.parquet", [*plain, *close, *worse]) == (
        "weights:szx@0.1 sends 1.60 times fewer bytes over whole runs (4.00 up, 1.00 down), the"
        " fewest of those with a mean accuracy within 0.5 points of uncompressed (2 of 3 schemes);"
        " its accuracy: -0.50 points (mean of 1 seed)."
    )
    none = "none of 1 scheme has a mean accuracy within 0.5 points of uncompressed. weights:szx@0.3"
    cost = "1.82 times fewer bytes."
    assert fact("worse.parquet", [*plain, *worse]) == (
        f"{none} comes nearest: -0.60 points, {cost} That may be chance: 1 seed cannot tell."
        " Sweep with more --seeds."
    )
    twice = [{**row, "run": f"{row['run']}, twice", "seed": 1} for row in [*plain, *worse]]
    assert fact("twice.parquet", [*plain, *worse, *twice]) == (
        f"{none} comes nearest: -0.60 ± 0.00 points, {cost}"
    )
    assert fact("alone.parquet", [*close, *worse]) == (
        "weights:szx@0.3 sends 1.82 times fewer bytes over whole runs (10.0 up, 1.00 down), the"
        " fewest of 3 schemes."
    )


@pytest.mark.parametrize("schemes", [4, 5])
def test_names_stand_in_a_legend_where_lines_have_no_room_for_them(
    schemes: int, tmp_path: Path
) -> None:
    from matplotlib.figure import Figure

    names = ("raw", "zstd", "xz", "gzip", "zlib")[:schemes]
    sent = {"sent_up": 5 * 10**5, "sent_down": 10**6}
    found = [row for name in names for row in course(name, (0.1, 0.4, 0.7), 0, **sent)]
    (setting,) = settings_of(read_source(written(tmp_path / "x.parquet", found)))
    (chart, _) = charts([(setting, rate_accuracies(setting))])
    ax = Figure(layout="constrained").subplots()

    chart.panels[0].draw(ax)

    beside, listed = len(ax.texts), len(ax.get_legend_handles_labels()[1])
    assert (beside, listed) == ((4, 0) if schemes == 4 else (0, 5))
