"""What reports are about: run folders, sweeps with holes, and what is neither."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from fedsz.errors import ConfigError
from fedsz.experiments.results import SWEEP
from fedsz.report import default_target
from fedsz.report.runs import Run
from fedsz.report.source import read_source
from fedsz.training.options import RunConfig
from tests.reports import FIGURES, cells, few, ids, left_out, report, rows, told, with_column
from tests.sweeps import written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `fedsz run` leaves behind, made in this process."""
    from fedsz.training.apps import make_client_app
    from fedsz.training.federation import federate, prepare
    from fedsz.training.run_folder import RunFolder
    from fedsz.transport.local_grid import LocalGrid

    path = tmp_path_factory.mktemp("run") / "first"
    config = RunConfig(update="delta", samples=160, test_samples=100, rounds=2, run_dir=str(path))
    kept = RunFolder.create(config)
    places = [{"partition-id": i, "num-partitions": 2} for i in range(2)]
    grid = LocalGrid(make_client_app(), places)
    federate(grid, config, prepare(config), on_checkpoint=kept.keep)
    kept.finish()
    return path


def test_a_run_folder_has_what_there_is(folder: Path, tmp_path: Path) -> None:
    page = report(folder, tmp_path)

    missing = ("accuracy-ratio", "accuracy-bound", "transfer-bound", "errors")
    assert ids(page, "figure") == [f"cnn-digits-{name}" for name in FIGURES if name not in missing]
    why = "it takes two bounds of a kind; there is rel:0.01"
    assert left_out(page) == {
        "Bytes to an accuracy": "there is no uncompressed run (raw) to compare with",
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
    assert [done.round for done in run.rounds] == [0, 1]

    (going / "rounds.jsonl").write_text(lines[0])  # nobody has trained yet
    why = left_out(told(going, tmp_path))
    assert why["Where the time of a round goes"] == "no client sent an update"
    assert why["Accuracy over rounds"] == "no round of training is recorded"

    (going / "model.safetensors").write_bytes(b"nonsense")
    assert "cannot be read" in left_out(told(going, tmp_path))["Weights"]


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


def test_a_run_without_rounds_failed(tmp_path: Path) -> None:
    none = [{**few()[0], "round": None}]
    (run,) = read_source(written(tmp_path / "x.parquet", none))

    assert isinstance(run, Run)
    assert run.error == "no round was recorded"
    assert SWEEP.name == "sweep"


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
    page = told(written(tmp_path / "x.parquet", raw), tmp_path)

    assert ids(page, "figure") == [
        f"cnn-digits-{name}"
        for name in ("accuracy-bytes", "accuracy-rounds", "time-split", "weights")
    ]
    assert left_out(page)["Time of an update over bandwidth"] == "no run compresses"
    assert left_out(page)["Bytes to an accuracy"] == "no run compresses"


def test_nothing_but_failures(tmp_path: Path) -> None:
    bad = [row for row in rows() if row.get("error")]
    page = report(written(tmp_path / "x.parquet", bad), tmp_path)

    assert ids(page, "figure") == []
    assert "No run ended well" in page


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
    why = left_out(told(written(tmp_path / "x.parquet", flattened), tmp_path))

    assert "are equal" in why["Weights"]
    assert "no run made an error" in why["Errors"]
