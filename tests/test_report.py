"""Reports: what is in them, what is left out and why, and what cannot be reported on."""

from __future__ import annotations

import dataclasses
import html
import math
import os
import re
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from fedsz.errors import ConfigError
from fedsz.experiments.link_model import Link
from fedsz.experiments.results import SCALING, SWEEP, Results
from fedsz.experiments.scheme import Way
from fedsz.report import default_target, write_report
from fedsz.report.chart import Absent, Chart
from fedsz.report.interval import Interval, within
from fedsz.report.numbers import digits, points, seconds, tick
from fedsz.report.runs import Run, Spread, Update, setups
from fedsz.report.scaling import scaling_figure
from fedsz.report.source import read_source
from fedsz.report.style import COLOURS, files, inline, looks
from fedsz.report.times import compressed
from fedsz.report.traffic import USUAL_WAY, Priced, best, priced
from fedsz.training.options import RunConfig
from tests.sweeps import Rows, swept, written
from tests.test_cli import call, refuse

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


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("sweep") / "trial.parquet", rows())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("small") / "trial.parquet", few())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `fedsz run` leaves behind, made in this process."""
    from fedsz.training.apps import make_client_app
    from fedsz.training.federation import federate, prepare
    from fedsz.training.fleet import row_of
    from fedsz.training.run_folder import RunFolder
    from fedsz.transport.local_grid import LocalGrid

    path = tmp_path_factory.mktemp("run") / "first"
    config = RunConfig(update="delta", samples=160, test_samples=100, rounds=2, run_dir=str(path))
    kept = RunFolder(config)
    places = [{"partition-id": i, "num-partitions": 2} for i in range(2)]
    grid = LocalGrid(make_client_app(), places)
    model = federate(grid, config, prepare(config), lambda done: kept.add(row_of(done, {})))
    kept.save(model)
    return path


def report(source: Path, tmp_path: Path, **more: Any) -> str:
    return write_report(source, tmp_path / "report.html", **more).read_text("utf-8")


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


def test_a_sweep_has_every_figure_and_table(sweep: Path, tmp_path: Path) -> None:
    page = report(sweep, tmp_path)

    assert ids(page, "figure") == [f"cnn-digits-{name}" for name in FIGURES]
    assert ids(page, "table") == [
        "ratios", "cnn-digits-ways", "cnn-digits-accuracies", "cnn-digits-timings",
        "cnn-digits-fits", "failures",
    ]  # fmt: skip
    assert left_out(page) == {}
    # Each says where its numbers come from.
    machine = read_source(sweep)[0].machine
    for caption in re.findall(r"<figcaption>.*?</figcaption>", page, re.S):
        for said in ("Model cnn", "data digits, 160 images", "seeds 0, 1", html.escape(machine)):
            assert said in caption


def test_a_page_needs_nothing_else(sweep: Path, tmp_path: Path) -> None:
    page = report(sweep, tmp_path)

    links = set(re.findall(r'(?:href|src|url\()="?([^")]*)', page))
    assert all(link.startswith("#") for link in links)
    assert "<script" not in page
    assert "@import" not in page
    assert not re.search("https?://(?!www.w3.org)", page)
    named = re.findall(r' id="([^"]*)"', page)
    assert len(named) == len(set(named))
    assert {link[1:] for link in links} <= set(named)


def test_figures_follow_the_colours_of_the_page(sweep: Path, tmp_path: Path) -> None:
    page = report(sweep, tmp_path)

    body = page.split("<body>")[1]
    assert set(re.findall(r"#[0-9a-f]{6}", body)) <= {"#ffffff"}  # of masks, if any
    assert {f"var(--{name})" for name in ("ink", "blue", "rule")} <= set(
        re.findall(r"var\(--[a-z]+\)", body)
    )
    for _, dark in COLOURS.values():
        assert dark in page.split("<body>")[0]


@pytest.mark.parametrize(("column", "ground"), [(0, "#f6f7f9"), (1, "#1e2026")])
def test_colours_stand_out(column: int, ground: str) -> None:
    def luminance(colour: str) -> float:  # WCAG 2.1
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for name, pair in COLOURS.items():
        high, low = sorted((luminance(pair[column]), luminance(ground)), reverse=True)
        least = {"ink": 7, "soft": 4.5, "rule": 1}.get(name, 3)
        assert (high + 0.05) / (low + 0.05) >= least, name


def test_the_same_sweep_gives_the_same_bytes(small: Path, tmp_path: Path) -> None:
    first = report(small, tmp_path, figures=tmp_path / "a")

    assert report(small, tmp_path, figures=tmp_path / "b") == first
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(f"cnn-digits-{n}.{s}" for n in FIGURES for s in ("svg", "png"))
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        if name.endswith("svg"):
            ET.parse(tmp_path / "a" / name)  # noqa: S314 - we have just written it
        else:
            assert (tmp_path / "a" / name).read_bytes().startswith(b"\x89PNG")


def test_ratios_are_those_of_the_bytes(sweep: Path, tmp_path: Path) -> None:
    table = cells(report(sweep, tmp_path), "ratios")

    assert table[0] == ["run", "way", "rel:0.01", "rel:0.1", "no bound"]
    assert [row[:2] for row in table[1:]] == [
        ["cnn on digits", codec] for codec in ("zstd", "szx", "uniform")
    ]
    sums = [0.0, 0.0]
    for row in rows():
        if (row["codec"], row.get("error_bound"), row["seed"]) == ("uniform", "rel:0.1", 0):
            sums[0] += row.get("raw_up", 0)
            sums[1] += row.get("sent_up", 0)
    of_seeds = [float(x) for x in re.findall(r"[0-9.]+", table[3][3])]
    assert any(abs(sums[0] / sums[1] - x) < 0.06 for x in of_seeds)
    assert table[3][4] == "–"
    assert table[1][2] == "–"


def test_accuracies_are_compared_seed_by_seed(sweep: Path, tmp_path: Path) -> None:
    table = cells(report(sweep, tmp_path), "cnn-digits-accuracies")

    last = {
        (row["codec"], row.get("error_bound"), row["seed"]): row["accuracy"]
        for row in rows()
        if row.get("round") == 2
    }
    differences = [last["szx", "rel:0.1", s] - last["raw", None, s] for s in (0, 1)]
    (row,) = [row for row in table if row[:2] == ["szx", "rel:0.1"]]
    assert row[3].startswith(points(sum(differences) / 2))
    assert row[4] == "2"
    assert 0 < float(row[5]) <= 1
    assert table[1][0] == "uncompressed"
    assert table[1][3] == "–"


def uplink(rows_: Rows, name: str, seed: int | None = None) -> tuple[float, float]:
    """Bytes of a way up, before and after compression."""
    mine = [row for row in rows_ if str(Way.of_row(row)) == name and seed in (None, row["seed"])]
    raw, sent = (sum(row.get(column) or 0 for row in mine) for column in ("raw_up", "sent_up"))
    return raw, raw if name == "raw" else sent


def test_ways_are_compared_by_bytes_up_plus_down(tmp_path: Path) -> None:
    ways = "raw,weights:sz2@1e-2,delta@1e-2,delta:zstd,weights@0.1"
    found = [
        {**row, "sent_down": row["raw_down"] // 3} if row["error_bound"] == "rel:0.01"
        and row["update"] == "delta" else row
        for row in swept(ways=ways, seeds=3, rounds=3)
    ]  # fmt: skip
    path = written(tmp_path / "x.parquet", found)

    page = report(path, tmp_path, figures=tmp_path / "f")

    head, *table = cells(page, "cnn-digits-ways")
    of = {row[0]: dict(zip(head, row, strict=True)) for row in table}
    assert set(of) == {"uncompressed", *ways.replace("1e-2", "0.01").split(",")} - {"raw"}
    assert next(iter(of)) == "uncompressed"
    assert {of["uncompressed"][name] for name in head[1:4]} == {"1.00"}
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
        (str(Way.of_row(row)), row["seed"]): row["accuracy"] for row in found if row["round"] == 3
    }
    lost = [ends["weights@0.1", seed] - ends["raw", seed] for seed in range(3)]
    reach = 4.302652729911275 * statistics.stdev(lost) / math.sqrt(3)
    assert of["weights@0.1"]["points"] == f"{points(statistics.fmean(lost))} ± {100 * reach:.2f}"
    for name in ("accuracy-bytes", "accuracy-ratio"):
        assert (tmp_path / "f" / f"cnn-digits-{name}.svg").is_file()


def test_several_files_are_one_report(small: Path, tmp_path: Path) -> None:
    rows_ = rows()
    parts = [[row for row in rows_ if (row["seed"] == 0) == first] for first in (True, False)]
    paths = [written(tmp_path / f"{i}.parquet", part) for i, part in enumerate(parts)]

    whole = write_report([*paths, small], tmp_path / "report.html").read_text("utf-8")

    assert "Sweep 0, 1, trial" in whole
    (setup,) = setups(read_source(*paths, small))
    assert len(setup.runs) == len({(r.way, r.seed) for r in setup.runs}) == 2 * 6


def test_bytes_to_an_accuracy(tmp_path: Path) -> None:
    """Exact numbers: 1 MB up and 1 MB down a round, accuracies 0.1, 0.4, 0.8, 0.7."""
    first = next(row for row in rows() if row["codec"] == "raw")
    byte = {"raw_up": 10**6, "raw_down": 10**6}

    def course(way: str, accuracies: Sequence[float], seed: int, **more: Any) -> Rows:
        return [
            {**first, "run": f"{way}{seed}", "seed": seed, "codec": way, "rounds": 3, "round": i,
             "accuracy": accuracy, **(byte if i else {}), **more}
            for i, accuracy in enumerate(accuracies)
        ]  # fmt: skip

    sent = {"sent_up": 5 * 10**5, "sent_down": 10**6, "lossless": "blosclz"}
    found = [
        *course("raw", (0.1, 0.4, 0.8, 0.7), 0), *course("raw", (0.1, 0.4, 0.8, 0.7), 1),
        *course("zstd", (0.1, 0.4, 0.5, 0.96), 0, **sent),
        *course("zstd", (0.1, 0.4, 0.5, 0.6), 1, **sent),
        *course("szx", (0.1, 0.2, 0.2, 0.2), 0, **sent),
    ]  # fmt: skip
    source = written(tmp_path / "x.parquet", found)

    def bytes_to(reach: float | None) -> dict[str, str]:
        page = report(source, tmp_path, reach=reach)
        return {row[0]: row[-1] for row in cells(page, "cnn-digits-ways")[1:]}

    assert bytes_to(None) == {  # 0.76
        "uncompressed": "3.80 MB",
        "weights:zstd": "3.85 MB, not reached by 1 of 2",
        "weights:szx": "not reached",
    }
    assert bytes_to(0.1)["weights:szx"] == "0 B"
    assert bytes_to(0.4)["weights:zstd"] == "1.50 MB"
    (setup,) = setups(read_source(source))
    ways = {way.name: way for way in priced(setup)}
    course_ = np.array(ways["uncompressed"].course)
    assert course_ == pytest.approx(np.array([(2e6, -0.3), (4e6, 0.1), (6e6, 0.0)]))
    assert ways["weights:zstd"].course[-1] == pytest.approx((4.5e6, 0.08))
    for reach in (0.0, -1.0, 1.1, math.nan):
        with pytest.raises(ConfigError, match="accuracy to reach"):
            report(source, tmp_path, reach=reach)


def test_eight_ways_at_most_have_names() -> None:
    def way(name: str, total: float, mean: float) -> Priced:
        return Priced(name, total, 1.0, total, 1.0, Interval(mean, 0.01, 3), (), ())

    front = [way(f"f{i}", 10.0 + i, -0.001 * i) for i in range(3)]
    rest = [way(f"r{i}", 2.0 + i / 10, -0.01) for i in range(20)]
    bad, plain = way("bad", 99.0, -0.3), way("uncompressed", 1.0, 0.0)
    usual = way(str(USUAL_WAY), 1.9, -0.02)

    found = best([plain, usual, *rest, *front, bad], 8)

    assert found == ["uncompressed", str(USUAL_WAY), "r17", "r18", "r19", "f0", "f1", "f2"]
    assert best([plain, bad], 8) == ["uncompressed", "bad"]


def test_intervals_are_those_of_student() -> None:
    # Fisher and Yates's table, two-sided.
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 30: 2.042, 120: 1.980}
    for freedom, t in printed.items():
        assert round(within(0.95, freedom), 3) == t
    assert within(0.5, 1) == pytest.approx(1.0)  # Cauchy's quartiles
    for share in (0.5, 0.95, 0.999):  # nearly normal
        assert within(share, 10_000) == pytest.approx(
            statistics.NormalDist().inv_cdf((1 + share) / 2), rel=1e-3
        )
    found = Interval.of([1.0, 2.0, 3.0, math.nan])
    assert found == Interval(2.0, pytest.approx(4.302653 / math.sqrt(3)), 3)
    single = Interval.of([1.0])
    assert single is not None
    assert math.isnan(single.reach)
    assert Interval.of([math.inf]) is None


def test_failed_runs_are_listed(sweep: Path, tmp_path: Path) -> None:
    page = report(sweep, tmp_path)

    (row,) = cells(page, "failures")[1:]
    assert row[:2] == ["cnn", "digits"]
    assert "no device 'cuda:99' here" in row[-1]
    assert "1 of them failed" in page


def test_a_run_folder_has_what_there_is(folder: Path, tmp_path: Path) -> None:
    page = report(folder, tmp_path)

    missing = ("accuracy-ratio", "accuracy-bound", "transfer-bound", "errors")
    assert ids(page, "figure") == [f"cnn-digits-{name}" for name in FIGURES if name not in missing]
    why = "it takes two bounds of a kind; there is rel:0.01"
    assert left_out(page) == {
        "Errors": "a run's folder does not hold the steps that were sent",
        "Which law errors follow": "a run's folder does not hold the steps that were sent",
        "Accuracy over ratio, cnn on digits": "there is no uncompressed run (raw) to compare with",
        "Accuracy over error bound": why,
        "Time of an update over error bound": why,
    }
    assert "over 2 clients" in page
    assert "machine not recorded" in page
    assert default_target(folder) == folder / "report.html"


def test_a_run_that_goes_on_has_what_there_is(folder: Path, tmp_path: Path) -> None:
    going = tmp_path / "run"
    going.mkdir()
    (going / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (going / "rounds.jsonl").write_text("\n".join([*lines[:2], lines[2][:40]]))

    why = left_out(report(going, tmp_path))

    assert why["Weights"] == "there is no model.safetensors: the run has not ended"
    (run,) = read_source(going)
    assert [done.number for done in run.rounds] == [0, 1]

    (going / "rounds.jsonl").write_text(lines[0])  # nobody has trained yet
    why = left_out(report(going, tmp_path))
    assert why["Where the time of a round goes"] == "no client sent an update"
    assert why["Accuracy over rounds"] == "no round of training is recorded"

    (going / "model.safetensors").write_bytes(b"nonsense")
    assert "cannot be read" in left_out(report(going, tmp_path))["Weights"]


def test_little_is_reported_too(tmp_path: Path) -> None:
    one = [row for row in rows() if row["codec"] == "uniform" and row["seed"] == 0]
    one = [{**row, "distributions": None} for row in one if row.get("error_bound") == "rel:0.1"]
    page = report(written(tmp_path / "x.parquet", one), tmp_path)

    why = left_out(page)
    assert why["Weights"] == "the runs hold no distribution of weights"
    assert "there is rel:0.1" in why["Accuracy over error bound"]
    assert "There is one seed, so no spread is shown." in page
    assert "There is no uncompressed run" in page
    assert cells(page, "cnn-digits-accuracies")[1][3] == "–"


def test_uncompressed_alone(tmp_path: Path) -> None:
    raw = [row for row in rows() if row["codec"] == "raw"]
    page = report(written(tmp_path / "x.parquet", raw), tmp_path)

    assert ids(page, "figure") == [
        f"cnn-digits-{name}"
        for name in ("accuracy-bytes", "accuracy-rounds", "time-split", "weights")
    ]
    assert left_out(page)["Time of an update over bandwidth"] == "no run compresses"
    assert left_out(page)["Ratio"] == "no run compresses"


def test_nothing_but_failures(tmp_path: Path) -> None:
    bad = [row for row in rows() if row.get("error")]
    page = report(written(tmp_path / "x.parquet", bad), tmp_path)

    assert ids(page, "figure") == []
    assert "No run ended well" in page


def test_runs_under_other_conditions_are_not_mixed(tmp_path: Path) -> None:
    other = [{**row, "clients": 9, "run": f"{row['run']}-9"} for row in few()]
    path = written(tmp_path / "x.parquet", [*few(), *other])

    found = setups(read_source(path))
    assert [setup.title for setup in found] == [
        "cnn on digits, clients 2", "cnn on digits, clients 9",
    ]  # fmt: skip
    assert len({setup.name for setup in found}) == 2
    assert len(ids(report(path, tmp_path), "figure")) == 2 * len(FIGURES)


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    name = "<script>alert('1')</script> & $\\frac{ 模型"
    strange = with_column(few(), model=name, machine=name)
    strange = [{**row, "codec": name} if row["codec"] != "raw" else row for row in strange]

    page = report(written(tmp_path / "x.parquet", strange), tmp_path, figures=tmp_path / "f")

    assert "<script" not in page
    assert html.unescape(page).count("<script>") > 3
    assert len(list((tmp_path / "f").iterdir())) == 2 * len(FIGURES)


def test_numbers_that_are_not_there(tmp_path: Path) -> None:
    for column in ("accuracy", "encode_seconds", "sent_up", "replies", "cores", "alpha", "samples"):
        holes = with_column(few(), **{column: None})
        report(written(tmp_path / f"{column}.parquet", holes), tmp_path)
    nan = with_column(few(), accuracy=math.nan, loss=math.nan, max_error=math.inf)
    report(written(tmp_path / "nan.parquet", nan), tmp_path)


def test_equal_numbers_have_no_law(tmp_path: Path) -> None:
    def flat(row: Any) -> Any:
        found = row.get("distributions") or []
        equal = [{**d, "low": 0.5, "high": 0.5, "laws": []} for d in found]
        return {**row, "distributions": equal or None}

    flattened = [flat(row) for row in few()]
    why = left_out(report(written(tmp_path / "x.parquet", flattened), tmp_path))

    assert "are equal" in why["Weights"]
    assert "no run made an error" in why["Errors"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p / "absent.parquet", "there is no .*absent.parquet"),
        (lambda p: p, "is no run: it holds no config.toml"),
        (lambda p: (p / "x.parquet", (p / "x.parquet").write_text("no"))[0], "no Parquet file"),
        (lambda p: written(p / "x.parquet", []), "holds no runs yet"),
    ],
    ids=["absent", "other folder", "other file", "empty"],
)
def test_what_is_no_source(tmp_path: Path, make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        report(make(tmp_path), tmp_path)


def test_a_broken_run_folder(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "run"
    broken.mkdir()
    (broken / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    (broken / "rounds.jsonl").write_text("")
    with pytest.raises(ConfigError, match="holds no finished round yet"):
        report(broken, tmp_path)
    (broken / "rounds.jsonl").write_text("[1]\n" + (folder / "rounds.jsonl").read_text())
    with pytest.raises(ConfigError, match="line 1, is no round"):
        report(broken, tmp_path)


def test_numbers_out_of_range(sweep: Path, tmp_path: Path) -> None:
    for bandwidths in ((), (math.inf,), (0.0,), (-1.0,)):
        with pytest.raises(ConfigError, match="bandwidth"):
            report(sweep, tmp_path, bandwidths=bandwidths)
    with pytest.raises(ConfigError, match="latency"):
        report(sweep, tmp_path, latency=-1.0)
    with pytest.raises(ConfigError, match="is a folder"):
        write_report(sweep, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        write_report(sweep, tmp_path / "file" / "report.html")


def test_any_matplotlib_will_do(small: Path, tmp_path: Path) -> None:
    """Neither a display nor the user's backend, fonts and settings matter."""
    odd = tmp_path / "matplotlibrc"
    odd.write_text("font.family: No Such Font\ntext.usetex: True\nsavefig.dpi: 7\n")
    code = (
        "import sys; from pathlib import Path; from fedsz.report import write_report;"
        "write_report(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(small), str(tmp_path / "there.html")],
        env={
            **os.environ,
            "MPLBACKEND": "nonsense",
            "DISPLAY": "",
            "MATPLOTLIBRC": str(odd),
            "MPLCONFIGDIR": "/proc/none",  # cannot be written
        },
        check=True,
        timeout=300,
    )

    assert (tmp_path / "there.html").read_text("utf-8") == report(small, tmp_path)


def test_times_are_those_of_the_link() -> None:
    update = Update(raw=1000, sent=100, train=1.0, encode=0.2, decode=0.3)

    assert compressed(update, Link(1000.0, 0.5)) == pytest.approx(0.2 + 0.5 + 0.8 + 0.3)
    # Where both take the same time.
    end = update.worth_below
    for latency in (0.0, 2.0):
        link = Link(end, latency)
        assert compressed(update, link) == pytest.approx(link.seconds(update.raw))
    assert dataclasses.replace(update, sent=1001).worth_below == 0
    assert dataclasses.replace(update, encode=0.0, decode=0.0).worth_below == math.inf


def point(kind: str, how: str, workers: int, clients: int, seconds: float) -> dict[str, Any]:
    return {
        "kind": kind, "how": how, "workers": workers, "clients": clients, "seconds": seconds,
        "model": "cnn", "link": "own" if how == "calculated" else "none", "machine": "a machine",
    }  # fmt: skip


def test_scaling(small: Path, tmp_path: Path) -> None:
    points_ = [point("weak", "measured", min(n, 2), n, 1.0 + n) for n in (1, 2, 4)]
    points_ += [point("weak", "calculated", n, n, 1.0 + n) for n in (1, 100, 10_000)]
    points_ += [point("strong", "measured", w, 8, 9.0 / w) for w in (1, 2)]
    path = tmp_path / "scaling.parquet"
    with Results(path, SCALING) as results:
        results.add(points_)

    page = report(small, tmp_path, scaling=path)

    assert ids(page, "figure")[-1] == "scaling"
    assert "at most 2 workers" in page
    chart = scaling_figure(points_)
    assert isinstance(chart, Chart)
    assert [panel.title[:4] for panel in chart.panels] == ["Weak", "Stro"]
    assert set(files(chart)) == {"svg", "png"}
    assert isinstance(scaling_figure([]), Absent)
    assert isinstance(scaling_figure([point("weak", "measured", 1, 1, math.nan)]), Absent)
    with pytest.raises(ConfigError, match="no scaling 'odd'; have weak, strong"):
        scaling_figure([point("odd", "measured", 1, 1, 1.0)])
    with pytest.raises(ConfigError, match="sweep"):
        report(small, tmp_path, scaling=small)
    with pytest.raises(ConfigError, match="scaling"):
        report(path, tmp_path)


def test_looks_tell_many_lines_apart() -> None:
    names = [f"uniform:effort={i}" for i in range(30)]
    found = looks(names)

    assert len({(look.colour, str(look.dashes), look.marker) for look in found.values()}) == 31
    assert looks(reversed(names)) == found


def test_an_svg_says_what_it_shows(sweep: Path) -> None:
    from fedsz.report import curves

    (setup,) = setups(read_source(sweep))
    chart = curves.over_rounds(setup, looks(setup.labels))
    assert isinstance(chart, Chart)
    for svg, panel in zip(inline(chart), chart.panels, strict=True):
        root = ET.fromstring(svg)  # noqa: S314
        assert root.attrib["aria-label"] == panel.says
        assert "uniform" in panel.says


def test_words() -> None:
    assert [seconds(x) for x in (0.0, 2.5e-7, 0.0123, 59.999, 12345.0, math.nan)] == [
        "0 µs", "0.250 µs", "12.3 ms", "60.0 s", "12,345 s", "–",
    ]  # fmt: skip
    assert [tick(x) for x in (0.01, 0.2, 1000.0, 1e5)] == [
        "10 ms",
        "200 ms",
        "1,000 s",
        "100,000 s",
    ]
    assert [digits(x) for x in (0.0, 1.0, 99.96, 1e-5)] == ["0", "1.00", "100.0", "1.00e-05"]
    assert points(-1e-9) == "+0.00"
    assert Spread.of([math.nan]) is None


def test_a_run_without_rounds_failed(tmp_path: Path) -> None:
    none = [{**few()[0], "round": None}]
    (run,) = read_source(written(tmp_path / "x.parquet", none))

    assert isinstance(run, Run)
    assert run.error == "no round was recorded"
    assert SWEEP.name == "sweep"


def test_the_command(small: Path, tmp_path: Path) -> None:
    source = tmp_path / "trial.parquet"
    source.write_bytes(small.read_bytes())
    folder = tmp_path / "figures"

    done = call("report", source, "--figures", folder, "--bandwidth", "1gbps", "--latency", "5ms")

    assert done.returncode == 0, done
    assert done.stdout.splitlines() == [str(tmp_path / "trial.html"), str(folder)]
    page = (tmp_path / "trial.html").read_text("utf-8")
    assert "calculated for 1 Gbps and 5.00 ms" in page
    assert len(list(folder.iterdir())) == 2 * len(ids(page, "figure"))

    assert "--force writes over it" in refuse("report", source)
    other = ("-o", tmp_path / "other.html")
    assert "is not empty" in refuse("report", source, *other, "--figures", folder)
    assert "is no bandwidth" in refuse("report", source, *other, "--bandwidth", "fast")
    assert "is no latency" in refuse("report", source, *other, "--latency", "5")
    assert "there is no" in refuse("report", tmp_path / "absent", *other)
    assert call("report", source, "--force").returncode == 0
    assert "10 Mbps" in (tmp_path / "trial.html").read_text("utf-8")
