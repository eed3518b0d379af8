"""What reports are about: sweeps with holes, folders of runs, and what is neither."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError
from fedsz.experiments.sweep import Step, rows_of
from fedsz.experiments.sweep_plan import SweepConfig
from fedsz.experiments.sweep_worker import grid_of
from fedsz.report import default_target, write_report
from fedsz.report.page import title_of
from fedsz.report.source import read_source
from fedsz.training.federation import federate, prepare
from fedsz.training.options import RunConfig
from tests.reports import OF_CNN, report_of, reported, runs_in, trial
from tests.sweeps import written

# Sweeps with holes


def test_little_is_reported_too() -> None:
    one = reported(trial("weights@0.1", seeds=1))
    assert list(one.charts) == OF_CNN
    assert one.tables["cnn-digits-ways"].rows[0][5:7] == ("–", "–")

    plain = reported(trial("raw"))
    assert list(plain.charts) == list(one.charts)


def test_a_run_without_rounds_failed() -> None:
    (run,) = runs_in([{**trial("raw", seeds=1)[0], "round": None}])

    assert run.error == "no round was recorded"


@pytest.mark.parametrize(
    "holes",
    [
        *(
            {name: None}
            for name in ("accuracy", "encode_seconds", "sent_up", "replies", "cores", "alpha")
        ),
        {"samples": None, "accuracy": math.nan, "loss": math.nan, "max_error": math.inf},
    ],
    ids=lambda holes: next(iter(holes)),
)
def test_numbers_that_are_not_there(holes: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    few = trial("raw", "weights@0.01", "weights@0.1", seeds=1)
    found = reported([{**row, **holes} for row in few])

    for chart in found.charts.values():
        for panel in chart.panels:
            panel.draw(Figure().subplots())
    assert "cnn-digits-ways" in found.tables


# Runs as they are made, folders of them, and what is no source


def test_what_a_run_tells_is_read_back(tmp_path: Path) -> None:
    config = SweepConfig(ways="delta@std:1", samples=160, test_samples=100, clients=2, rounds=2)
    (run,) = config.runs
    rounds: list[RoundRecord] = []
    federate(grid_of(run), run, prepare(run), rounds.append)
    rows = rows_of(config, Step(run, rounds), threads=1)

    (back,) = read_source(written(tmp_path / "x.parquet", rows))

    assert str(back.way) == "delta@std:1"
    told = ("round", "accuracy", "sent_up", "sent_down", "max_error")
    for one, other in zip(back.rounds, rounds, strict=True):
        assert [getattr(one, name) for name in told] == [getattr(other, name) for name in told]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `fedsz run` leaves behind, made in this process."""
    from fedsz.flower import LocalGrid, make_client_app
    from fedsz.training.run_folder import RunFolder

    path = tmp_path_factory.mktemp("run") / "first"
    config = RunConfig(update="delta", samples=160, test_samples=100, rounds=2, run_dir=str(path))
    kept = RunFolder.create(config)
    places = [{"partition-id": i, "num-partitions": 2} for i in range(2)]
    grid = LocalGrid(make_client_app(), places)
    federate(grid, config, prepare(config), folder=kept)
    kept.finish()
    return path


@pytest.fixture
def going(folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder as it was before the run had ended, without its rounds."""
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    return copy


def test_a_run_folder_has_what_there_is(folder: Path) -> None:
    found = report_of(folder)

    assert list(found.charts) == OF_CNN
    said = found.charts["cnn-digits-accuracy-bytes"].provenance
    assert "over 2 clients" in said
    assert "machine not recorded" in said
    assert title_of([folder]) == "Run first"
    assert default_target(folder) == folder / "report.html"


def test_a_run_that_goes_on_has_what_there_is(folder: Path, going: Path) -> None:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (going / "rounds.jsonl").write_text("\n".join([*lines[:2], lines[2][:40]]))

    (run,) = read_source(going)
    assert [done.round for done in run.rounds] == [0, 1]

    assert run.missing_rounds == 1
    assert "Not finished: delta@0.01, seed 0, has made 1 of 2 rounds." in report_of(going).facts
    assert report_of(folder).facts == ["1 run; seed 0; machine not recorded."]

    (going / "rounds.jsonl").write_text(lines[0])  # no client has trained yet
    begun = report_of(going)
    assert begun.charts == {}
    assert begun.facts[-1].endswith("has made 0 of 2 rounds.")
    assert "over 0 clients" not in begun.summaries[0]


def test_a_run_that_goes_on_has_no_difference_to_a_finished_one() -> None:
    plain, way = trial("raw", seeds=1), trial("weights@0.1", seeds=1)

    assert reported(plain, way).tables["cnn-digits-ways"].rows[1][6] == "1"
    found = reported(plain, [row for row in way if row["round"] < 2])
    assert found.tables["cnn-digits-ways"].rows[1][5:7] == ("–", "–")
    assert "seed 0, has made 1 of 2 rounds." in found.facts[-1]


def test_a_broken_run_folder(folder: Path, going: Path) -> None:
    rounds = (folder / "rounds.jsonl").read_text()
    for text, says in (("", "holds no finished round yet"), ("[1]\n", "line 1, is no round")):
        (going / "rounds.jsonl").write_text(text + rounds if text else "")
        with pytest.raises(ConfigError, match=says):
            read_source(going)


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
        read_source(make(tmp_path))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *(({"bandwidths": of}, "bandwidth") for of in ((), (math.inf,), (0.0,), (-1.0,))),
        *(({"reach": reach}, "accuracy to reach") for reach in (0.0, -1.0, 1.1, math.nan)),
        ({"latency": -1.0}, "latency"),
        ({"target": "."}, "is a folder"),
        ({"target": "file/report.html"}, "cannot write"),
    ],
)
def test_numbers_and_files_that_no_report_takes(
    options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    source = written(tmp_path / "x.parquet", [row for row in trial() if row.get("error")])
    (tmp_path / "file").write_text("")
    target = tmp_path / options.pop("target", "report.html")

    with pytest.raises(ConfigError, match=says):
        write_report(source, target, **options)
