"""Reports of sweeps: what is in them, and what cannot be asked of them."""

from __future__ import annotations

import dataclasses
import html
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from fedsz.errors import ConfigError
from fedsz.experiments.link_model import Link
from fedsz.formatting import points
from fedsz.report import write_report
from fedsz.report.runs import UpdateCost, settings_of
from fedsz.report.source import read_source
from fedsz.report.times import compressed
from tests.reports import (
    FIGURES,
    cells,
    few,
    ids,
    left_out,
    not_drawn,
    report,
    rows,
    told,
    with_column,
)
from tests.sweeps import written
from tests.test_cli import call, refuse


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("sweep") / "trial.parquet", rows())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("small") / "trial.parquet", few())


@pytest.fixture(scope="module")
def page(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return report(sweep, tmp_path_factory.mktemp("page"))


def test_a_sweep_has_every_figure_and_table(sweep: Path, page: str) -> None:
    figures = [f"cnn-digits-{name}" for name in FIGURES]
    assert ids(page, "figure") == ["bytes-to-accuracy", *figures]
    assert ids(page, "table") == [
        "ways", "ratios", "cnn-digits-accuracies", "cnn-digits-timings", "cnn-digits-fits",
        "failures",
    ]  # fmt: skip
    assert left_out(page) == {}
    # Each says where its numbers come from.
    machine = read_source(sweep)[0].machine
    for caption in re.findall(r"<figcaption>.*?</figcaption>", page, re.S):
        for said in ("Model cnn", "data digits, 160 images", "seeds 0, 1", html.escape(machine)):
            assert said in caption


def test_a_page_needs_nothing_else(page: str) -> None:
    links = set(re.findall(r'(?:href|src|url\()="?([^")]*)', page))
    assert all(link.startswith("#") for link in links)
    assert "<script" not in page
    assert "@import" not in page
    assert not re.search("https?://(?!www.w3.org)", page)
    named = re.findall(r' id="([^"]*)"', page)
    assert len(named) == len(set(named))
    assert {link[1:] for link in links} <= set(named)


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


def test_ratios_are_those_of_the_bytes(page: str) -> None:
    table = cells(page, "ratios")

    assert table[0] == ["run", "scheme", "rel:0.01", "rel:0.1"]
    assert [row[:2] for row in table[1:]] == [
        ["cnn on digits", codec] for codec in ("szx", "uniform")
    ]
    sums = [0.0, 0.0]
    for row in rows():
        if (row["codec"], row.get("error_bound"), row["seed"]) == ("uniform", "rel:0.1", 0):
            sums[0] += row.get("raw_up", 0)
            sums[1] += row.get("sent_up", 0)
    of_seeds = [float(x) for x in re.findall(r"[0-9.]+", table[2][3])]
    assert any(abs(sums[0] / sums[1] - x) < 0.06 for x in of_seeds)


def test_accuracies_are_compared_seed_by_seed(page: str) -> None:
    table = cells(page, "cnn-digits-accuracies")

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


def test_failed_runs_are_listed(page: str) -> None:
    (row,) = cells(page, "failures")[1:]
    assert row[:2] == ["cnn", "digits"]
    assert "no device 'cuda:99' here" in row[-1]
    assert "1 of them failed" in page


def test_runs_that_decay_differently_are_not_mixed(tmp_path: Path) -> None:
    fading = [
        {**row, "run": f"{row['run']}-f", "decay": 0.5} for row in few() if row["codec"] != "raw"
    ]
    path = written(tmp_path / "x.parquet", [*few(), *fading])

    (setting,) = settings_of(read_source(path))
    labels = [setting.label(run) for run in setting.runs]
    assert sorted(set(labels)) == ["uncompressed", "uniform", "uniform (decay 0.5)"]
    assert labels.count("uniform") == labels.count("uniform (decay 0.5)")


def test_runs_under_other_conditions_are_not_mixed(tmp_path: Path) -> None:
    other = [{**row, "clients": 9, "run": f"{row['run']}-9"} for row in few()]
    sampled = [{**row, "clients_per_round": 4, "run": f"{row['run']}-4"} for row in other]
    path = written(tmp_path / "x.parquet", [*few(), *other, *sampled])

    found = settings_of(read_source(path))
    assert [setting.title for setting in found] == [
        "cnn on digits, clients 2, clients per round 0",
        "cnn on digits, clients 9, clients per round 0",
        "cnn on digits, clients 9, clients per round 4",
    ]
    assert len({setting.name for setting in found}) == 3
    assert len(ids(told(path, tmp_path), "figure")) == 3 * len(FIGURES)


def test_a_title_names_a_checkpoint_shortly_and_none_not_at_all(tmp_path: Path) -> None:
    tuned = [{**row, "initial": "b3c421fb5b3c4de2", "run": f"{row['run']}-t"} for row in few()]
    path = written(tmp_path / "x.parquet", [*few(), *tuned])

    titles = {setting.title for setting in settings_of(read_source(path))}

    assert titles == {"cnn on digits", "cnn on digits, initial b3c421f"}


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    name = "<script>alert('1')</script> & $\\frac{ 模型"
    strange = with_column(few(), model=name, machine=name)
    strange = [{**row, "codec": name} if row["codec"] != "raw" else row for row in strange]

    page = report(written(tmp_path / "x.parquet", strange), tmp_path, figures=tmp_path / "f")

    assert "<script" not in page
    assert html.unescape(page).count("<script>") > 3
    assert len(list((tmp_path / "f").iterdir())) == 2 * len(FIGURES)


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


def test_numbers_out_of_range(sweep: Path, tmp_path: Path) -> None:
    for bandwidths in ((), (math.inf,), (0.0,), (-1.0,)):
        with pytest.raises(ConfigError, match="bandwidth"):
            told(sweep, tmp_path, bandwidths=bandwidths)
    with pytest.raises(ConfigError, match="latency"):
        told(sweep, tmp_path, latency=-1.0)
    with pytest.raises(ConfigError, match="is a folder"):
        write_report(sweep, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        told(sweep, tmp_path / "file")


def test_times_are_those_of_the_link() -> None:
    update = UpdateCost(raw=1000, sent=100, train=1.0, encode=0.2, decode=0.3)

    assert compressed(update, Link(1000.0, 0.5)) == pytest.approx(0.2 + 0.5 + 0.8 + 0.3)
    # Where both take the same time.
    end = update.worth_below
    for latency in (0.0, 2.0):
        link = Link(end, latency)
        assert compressed(update, link) == pytest.approx(link.seconds(update.raw))
    assert dataclasses.replace(update, sent=1001).worth_below == 0
    assert dataclasses.replace(update, encode=0.0, decode=0.0).worth_below == math.inf


@not_drawn()
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
