"""What is in a report: which runs are compared, their ratios, bytes to an accuracy, intervals."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from fedsz.formatting import digits
from fedsz.report.page import title_of
from fedsz.report.rate_accuracy import NEARLY, PUBLISHED, RateAccuracy, best, rate_accuracies
from fedsz.report.runs import Spread, settings_of
from fedsz.report.source import read_source
from tests.reports import OF_CNN, reported, runs_in, trial
from tests.sweeps import MEGA, Rows, course, written

# Which runs are compared


def test_a_sweep_has_every_figure_and_table() -> None:
    found = reported(trial())

    assert list(found.charts) == OF_CNN
    assert list(found.tables) == ["cnn-digits-ways", "failures"]
    (machine,) = {row["machine"] for row in trial()}
    for chart in found.charts.values():
        assert chart.says
        for said in ("Model cnn", "data digits, all images", "seeds 0, 1", machine):
            assert said in chart.provenance
    (failure,) = found.tables["failures"].rows
    assert (failure[:2], failure[-1]) == (("cnn", "digits"), "no disk")
    assert "1 of them failed" in found.facts[0]


def test_ratios_and_accuracies_are_those_of_the_rows() -> None:
    table = reported(trial()).tables["cnn-digits-ways"]
    rows = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}

    assert next(iter(rows)) == "uncompressed"
    assert rows["uncompressed"]["points"] == "–"
    assert rows["weights:szx@0.1"] | {
        "ratio up": "4.00", "ratio down": "1.00", "ratio of all": "1.60", "seeds": "2",
        "accuracy, %": "59.00 (58.00 … 60.00)", "points": "-10.00 ± 0.00", "error / bound": "0.500",
    } == rows["weights:szx@0.1"]  # fmt: skip


def test_a_round_s_time_and_bytes_are_those_of_the_rows() -> None:
    """Of two clients: 1 MB down, 250 kB up, at 10 Mbps; a second of training for both."""
    found = reported(trial("raw", "weights@0.01", seeds=1)).charts

    assert "10 Mbps, weights@0.01: 1.30 s" in found["cnn-digits-time"].says
    assert "weights@0.01: 2.50 MB" in found["cnn-digits-bytes"].says


def test_a_way_with_a_name_is_called_so() -> None:
    named = [{**row, "run": "other", "way": "with noise"} for row in trial("weights@0.01", seeds=1)]

    table = reported(trial("raw", "weights@0.01", seeds=1), named).tables["cnn-digits-ways"]

    assert {row[0] for row in table.rows} == {"uncompressed", "weights@0.01", "with noise"}


@pytest.mark.parametrize(
    ("changes", "titles"),
    [
        (
            [{"clients": 9}, {"clients": 9, "clients_per_round": 4}],
            [
                "cnn on digits, clients 2, clients per round 0",
                "cnn on digits, clients 9, clients per round 0",
                "cnn on digits, clients 9, clients per round 4",
            ],
        ),
        # A checkpoint is named shortly, and none not at all.
        ([{"initial": "b3c421fb5b3c4de2"}], ["cnn on digits", "cnn on digits, initial b3c421f"]),
    ],
)
def test_runs_under_other_conditions_are_not_mixed(
    changes: list[dict[str, Any]], titles: list[str]
) -> None:
    few = trial("raw", "weights@0.01", seeds=1)
    others = [
        [{**row, **change, "run": f"{row['run']}{i}"} for row in few]
        for i, change in enumerate(changes)
    ]

    found = settings_of(runs_in(few, *others))

    assert sorted(setting.title for setting in found) == titles
    assert len({setting.name for setting in found}) == len(titles)
    names = [name for name in reported(few, *others).charts if name.endswith("-accuracy-bytes")]
    assert len(names) == len(titles)


def test_runs_that_decay_differently_are_not_mixed() -> None:
    fading = [{**row, "run": "fading", "decay": 0.5} for row in trial("weights@0.01", seeds=1)]

    (setting,) = settings_of(runs_in(trial("raw", "weights@0.01", seeds=1), fading))

    labels = [setting.label(run) for run in setting.runs]
    assert labels == ["uncompressed", "uniform", "uniform (decay 0.5)"]


def test_several_files_are_one_report(tmp_path: Path) -> None:
    whole = [row for row in trial() if not row.get("error")]
    halves = [[row for row in whole if row["seed"] == seed] for seed in (0, 1)]
    held = {"0": halves[0], "1": halves[1], "trial": trial("raw")}
    paths = [written(tmp_path / f"{name}.parquet", rows) for name, rows in held.items()]

    assert title_of(paths) == "Sweep 0, 1, trial"
    (setting,) = settings_of(read_source(*paths))
    assert len(setting.runs) == len({(str(run.way), run.seed) for run in setting.runs}) == 12


# Bytes and accuracies


def test_ways_are_compared_by_bytes_up_plus_down() -> None:
    ends = {
        "raw": (0.6, 0.7, 0.8), "weights:sz2@0.01": (0.6, 0.7, 0.8), "delta@0.01": (0.6, 0.7, 0.8),
        "delta:zstd": (0.6, 0.7, 0.8), "weights@0.1": (0.59, 0.66, 0.79),
    }  # fmt: skip
    sent = {"weights:sz2@0.01": {"sent_up": MEGA // 2}, "delta@0.01": {"sent_down": MEGA // 3}}
    runs = [
        course(way, (0.1, 0.2, end), seed, **sent.get(way, {}))
        for way, seeds in ends.items()
        for seed, end in enumerate(seeds)
    ]

    found = reported(*runs)

    table = found.tables["cnn-digits-ways"]
    of = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    assert set(of) == {"uncompressed", *ends} - {"raw"}
    assert next(iter(of)) == "uncompressed"
    assert {of["uncompressed"][name] for name in table.head[1:4]} == {"1.00"}
    delta = of["delta@0.01"]
    assert [delta[name] for name in table.head[1:4]] == ["4.00", "3.00", digits(24 / 7)]
    assert (of["delta:zstd"]["points"], of["delta:zstd"]["seeds"]) == ("+0.00 ± 0.00", "3")
    lost = [-0.01, -0.04, -0.01]
    reach = 4.302652729911275 * statistics.stdev(lost) / math.sqrt(3)
    assert of["weights@0.1"]["points"] == f"-2.00 ± {100 * reach:.2f}"


def test_bytes_to_an_accuracy() -> None:
    """Exact numbers: 1 MB up and 1 MB down a round, accuracies 0.1, 0.4, 0.8, then 0.7 or 0.6."""
    half = {"sent_up": MEGA // 2}
    runs = (
        course("raw", (0.1, 0.4, 0.8, 0.7), 0), course("raw", (0.1, 0.4, 0.8, 0.6), 1),
        course("weights:zstd", (0.1, 0.4, 0.5, 0.96), 0, **half),
        course("weights:zstd", (0.1, 0.4, 0.5, 0.6), 1, **half),
        course("weights:szx@0.01", (0.1, 0.2, 0.2, 0.2), 0, **half),
    )  # fmt: skip

    def bytes_to(reach: float | None) -> dict[str, tuple[str, ...]]:
        table = reported(*runs, reach=reach).tables["cnn-digits-ways"]
        parts = (reach,) if reach else NEARLY
        assert table.head[8:] == tuple(f"bytes to {100 * part:g} %" for part in parts)
        return {row[0]: row[8:] for row in table.rows}

    assert bytes_to(None) == {  # 0.76 and 0.792
        "uncompressed": ("3.80 MB", "3.96 MB"),
        "weights:zstd": ("3.85 MB (1 of 2)", "3.95 MB (1 of 2)"),
        "weights:szx@0.01": ("not reached", "not reached"),
    }
    assert bytes_to(0.1)["weights:szx@0.01"] == ("0 B",)
    assert bytes_to(0.4)["weights:zstd"] == ("1.50 MB",)
    (setting,) = settings_of(runs_in(*runs))
    ways = {way.name: way for way in rate_accuracies(setting)}
    course_ = np.array(ways["uncompressed"].course)
    assert course_ == pytest.approx(np.array([(2e6, 0.4), (4e6, 0.8), (6e6, 0.65)]))
    assert ways["weights:zstd"].course[-1] == pytest.approx((4.5e6, 0.78))
    nearly, close = ways["weights:zstd"].reached
    assert nearly == pytest.approx((1e6 * (3 + 1.5 * (0.76 - 0.5) / 0.46), math.inf))
    assert close[1] == math.inf


def test_eight_ways_at_most_have_names() -> None:
    def way(name: str, total: float, mean: float) -> RateAccuracy:
        return RateAccuracy(name, (), total, 1.0, total, Spread.of([mean] * 3), (), ())

    front = [way(f"f{i}", 10.0 + i, -0.001 * i) for i in range(3)]
    rest = [way(f"r{i}", 2.0 + i / 10, -0.01) for i in range(20)]
    bad, plain = way("bad", 99.0, -0.3), way("uncompressed", 1.0, 0.0)
    usual = way(str(PUBLISHED), 1.9, -0.02)

    found = best([plain, usual, *rest, *front, bad], 8)

    assert [way.name for way in found] == [
        "uncompressed",
        str(PUBLISHED),
        "r17",
        "r18",
        "r19",
        "f0",
        "f1",
        "f2",
    ]
    assert best([plain, bad], 8) == [plain, bad]


def test_intervals_are_those_of_student() -> None:
    # Fisher and Yates's table, two-sided, by degrees of freedom.
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 30: 2.042, 120: 1.980}
    for freedom, t in printed.items():
        values = [float(x) for x in range(freedom + 1)]
        found = Spread.of([*values, math.nan])
        assert found is not None
        assert (found.mean, found.count) == (freedom / 2, freedom + 1)
        error_of_mean = statistics.stdev(values) / math.sqrt(len(values))
        assert round(found.reach / error_of_mean, 3) == t
    single = Spread.of([1.0])
    assert single is not None
    assert math.isnan(single.reach)
    assert Spread.of([math.inf, math.nan]) is None


def test_the_fewest_bytes_are_those_of_all_bounds_at_equal_accuracy() -> None:
    def way(bound: float, end: float, sent: int) -> Rows:
        return course(f"weights:szx@{bound}", (0.1, end), sent_up=sent)

    plain, worse = course("raw", (0.1, 0.7)), way(0.3, 0.694, MEGA // 10)
    close = [*way(0.01, 0.7, MEGA // 2), *way(0.1, 0.695, MEGA // 4)]

    def fact(*found: Rows) -> str:
        return reported(*found).summaries[0].partition(" Model cnn")[0]

    assert fact(plain, close, worse) == (
        "weights:szx@0.1 sends 1.60 times fewer bytes over whole runs (4.00 up, 1.00 down), the"
        " fewest of those with a mean accuracy within 0.5 points of uncompressed (2 of 3 schemes);"
        " its accuracy: -0.50 points (mean of 1 seed)."
    )
    none = "None of 1 scheme has a mean accuracy within 0.5 points of uncompressed. weights:szx@0.3"
    cost = "1.82 times fewer bytes."
    assert fact(plain, worse) == (
        f"{none} comes nearest: -0.60 points, {cost} That may be chance: 1 seed cannot tell."
        " Sweep with more --seeds."
    )
    twice = [{**row, "run": f"{row['run']}, twice", "seed": 1} for row in [*plain, *worse]]
    assert fact(plain, worse, twice) == f"{none} comes nearest: -0.60 ± 0.00 points, {cost}"
    assert fact(close, worse) == (
        "weights:szx@0.3 sends 1.82 times fewer bytes over whole runs (10.0 up, 1.00 down), the"
        " fewest of 3 schemes."
    )
