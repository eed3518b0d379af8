"""The paper's tables and figures: what is printed, and ours made end to end on a small model."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")
pytest.importorskip("benchmarks", reason="needs benchmarks")

from benchmarks.paper import published
from benchmarks.paper.catalogue import CATALOGUE, NOTES, make, notes_on, numbers, select
from benchmarks.paper.comparison import Comparison, Line
from benchmarks.paper.measurements import Measurements
from benchmarks.paper.options import MeasurementOptions, PaperConfig
from fedsz.cli import report
from fedsz.errors import ConfigError, FedszError
from tests.cli.test_cli import call, refuse

pytestmark = pytest.mark.repository
SMALL = {"models": "cnn", "datasets": "digits", "samples": 120, "test_samples": 60, "rounds": 1,
         "clients": 2, "error_bounds": "1e-2,1e-1"}  # fmt: skip
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", value)]


def small(on_step: Any = lambda _: None, *, config: Any = None, **options: Any) -> Measurements:
    settings = PaperConfig(**{**SMALL, **(config or {})})
    return Measurements(settings, MeasurementOptions(**options), on_step)


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> Measurements:
    return small(folder=tmp_path_factory.mktemp("paper"), repeats=1, seconds=0.2)


def lines(made: Comparison, quantity: str) -> dict[tuple[str, ...], Line]:
    return {line.of: line for line in made.lines if line.quantity == quantity}


# What is printed


def test_a_misprint_is_the_papers() -> None:
    """What the first notes say, from the table itself: runtime times speed is the model, in MB."""
    sizes = {"alexnet": 228.0, "mobilenetv2": 9.35, "resnet50": 94.8}

    for (model, codec, bound), cell in published.TABLE_1.items():
        of_model = cell.runtime * cell.speed == pytest.approx(sizes[model], rel=0.005)
        assert of_model == (codec != "szx"), (model, codec, bound)
    coarse, fine = (published.TABLE_1["alexnet", "szx", bound] for bound in (1e-2, 1e-4))
    assert fine.runtime > 20 * coarse.runtime
    assert 0.445 * fine.speed == pytest.approx(coarse.runtime * coarse.speed, rel=0.01)


def test_names_are_in_the_papers_order_and_notes_are_about_them() -> None:
    assert (numbers("table"), numbers("figure")) == ([1, 2, 3, 5], list(range(2, 11)))
    assert select(numbers("table"), numbers("figure")) == list(CATALOGUE)
    assert select([3, 1, 3], [10, 2]) == ["table 1", "table 3", "figure 2", "figure 10"]
    assert {name for note in NOTES for name in note["on"]} <= set(CATALOGUE)
    assert notes_on("table 1")
    assert not notes_on("table 9")


# Comparing


def test_a_difference_is_relative_and_of_percentages_in_points() -> None:
    ratio = Line(("a",), "ratio", 4.0, 5.0)
    share = Line(("a",), "top-1", 57.9, 10.0, "%")

    assert ratio.difference == pytest.approx(0.25)
    assert share.difference == pytest.approx(-47.9)
    assert ratio.far
    assert share.far
    assert not Line(("a",), "ratio", 4.0, 4.7).far
    for absent in (Line(("a",), "x", None, 1.0), Line(("a",), "x", 1.0, None)):
        assert absent.difference is None
        assert not absent.far


# Trained weights


def weights_of(measurements: Measurements, tmp_path: Path) -> Path:
    """A folder of weights that a user has."""
    measurements.trained("cnn", "digits")
    (path,) = measurements.options.folder.glob("cnn-digits-*.safetensors")
    (folder := tmp_path / "weights").mkdir()
    shutil.copy(path, folder / "cnn-digits.safetensors")
    return folder


def test_weights_are_trained_once_and_again_when_settings_change(tmp_path: Path) -> None:
    steps: list[str] = []

    def get(**changes: Any) -> Any:
        return small(steps.append, config=changes, folder=tmp_path).trained("cnn", "digits")

    first = get()
    assert any("training cnn" in step for step in steps)
    steps.clear()
    again = get()
    assert not steps
    other = get(seed=1)
    assert steps

    assert all(np.array_equal(x, again.state[name]) for name, x in first.state.items())
    assert not all(np.array_equal(x, other.state[name]) for name, x in first.state.items())
    assert "120 images in 2 shares" in first.provenance


def test_given_weights_must_be_there_and_of_the_model(
    measurements: Measurements, tmp_path: Path
) -> None:
    folder = weights_of(measurements, tmp_path)

    given = small(weights=folder)
    assert given.trained("cnn", "digits").provenance.startswith("cnn-digits.safetensors: ")
    with pytest.raises(
        ConfigError, match=r"no weights of alexnet in .*alexnet-cifar10.safetensors"
    ):
        given.trained("alexnet", "cifar10")
    (folder / "cnn-cifar10.safetensors").write_bytes(
        (folder / "cnn-digits.safetensors").read_bytes()
    )
    with pytest.raises(
        ConfigError, match=r"is no cnn for cifar10: 'features.0.weight' has shape \(32, 1, 3"
    ):
        given.trained("cnn", "cifar10")
    (tmp_path / "cnn.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="is no safetensors file"):
        small(weights=tmp_path).trained("cnn", "digits")


# Ours


def test_table_1_has_every_codec(measurements: Measurements) -> None:
    made = make("table 1", measurements)

    ratios = lines(made, "ratio")
    for codec in ("sz2", "sz3", "szx", "zfp", "uniform"):
        coarse, fine = (ratios["cnn", codec, at].ours for at in ("0.01", "0.0001"))
        assert coarse is not None
        assert fine is not None
        assert coarse > fine > 1
    accuracies = {of[1:]: line.ours for of, line in lines(made, "top-1").items()}
    for codec in ("sz2", "szx"):
        assert accuracies[codec, "0.0001"] == pytest.approx(accuracies["none", "-"], abs=3)


def test_table_2_has_the_rest_and_all(measurements: Measurements) -> None:
    made = make("table 2", measurements)

    ratios = lines(made, "ratio")
    assert {of[:2] for of in ratios} == {
        (codec, part) for codec in published.TABLE_2 for part in ("rest", "all")
    }
    assert all(line.printed == published.TABLE_2[of[0]].ratio for of, line in ratios.items())


def test_table_5_is_of_whole_updates(measurements: Measurements) -> None:
    ratios = lines(make("table 5", measurements), "ratio")

    assert {of[2:] for of in ratios} == {
        (codec, bound) for codec in ("sz2", "uniform") for bound in ("0.01", "0.1")
    }
    assert ratios["cnn", "digits", "sz2", "0.1"].ours > ratios["cnn", "digits", "sz2", "0.01"].ours


@pytest.mark.parametrize("number", [2, 3, 5, 6, 7, 8, 10])
def test_figures_are_drawn_with_their_numbers(measurements: Measurements, number: int) -> None:
    made = make(f"figure {number}", measurements)

    assert made.lines
    assert made.notes
    assert {Path(path).name for path in made.files} == {
        f"figure{number}.svg", f"figure{number}.png"
    }  # fmt: skip
    for path in map(Path, made.files):
        start = path.read_bytes()[:200]
        assert (
            start.startswith(b"\x89PNG")
            if path.suffix == ".png"
            else b"<svg" in start or b"xml" in start
        )
    assert all(math.isfinite(line.ours) for line in made.lines if line.ours is not None)


def test_a_sweep_that_is_there_is_not_run_again(measurements: Measurements) -> None:
    make("figure 5", measurements)
    path = measurements.options.folder / "sweep.parquet"

    made = make("figure 4", small(pytest.fail, folder=path.parent, sweep=path))

    assert {of[2] for of in lines(made, "accuracy")} == {"uncompressed", "sz2", "uniform"}


def test_runs_that_all_fail_are_an_error_and_not_an_empty_figure(tmp_path: Path) -> None:
    asked = small(config={"test_samples": 100_000}, folder=tmp_path)
    with pytest.raises(FedszError, match="every run failed: ConfigError: samples must lie"):
        make("figure 6", asked)

    asked = small(config={"samples": 100_000}, folder=tmp_path)
    with pytest.raises(FedszError, match=r"cnn could not be trained on digits: .*samples must lie"):
        asked.trained("cnn", "digits")


# The command


def test_without_a_checkout_it_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "CHECKOUT", tmp_path)

    for words in (["--all"], ["--help"]):
        assert "run python -m benchmarks.paper in a checkout" in refuse("paper", *words)


def test_the_command_prints_tables_and_writes_figures(
    measurements: Measurements, tmp_path: Path
) -> None:
    where = ("--weights", weights_of(measurements, tmp_path), "--folder", tmp_path)
    done = call("paper", "--table", 3, "--figure", 3, *FLAGS, *where)

    assert "Table 3: models" in done.stdout
    assert "Figure 3: " in done.stdout
    assert (tmp_path / "figure3.svg").is_file()
    printed = call("paper", "--table", 3, "--models", "mobilenetv2").stdout
    assert "96.94" in printed  # ours beside the paper's
    assert "ResNet101" in printed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give --table 1|2|3|5"),
        (["--table", 4], "no table 4: it describes the data sets; have 1, 2, 3, 5"),
        (["--figure", 1], "no figure 1: it is a drawing"),
        (["--figure", 11], "no figure 11: the paper has none"),
        (["--table", 3, "--models", "vgg"], "no model 'vgg' here; have cnn, alexnet"),
        (["--table", 3, "--datasets", "mnist"], "no data set 'mnist' here; have digits, cifar10"),
        (["--table", 3, "--error-bounds", "abs:1e-3"], "the paper's bounds are relative"),
        (["--table", 1, "--weights", "/nowhere"], "no weights at /nowhere"),
        (["--figure", 4, "--sweep", "/nowhere"], "no sweep at /nowhere"),
        (["--figure", 7, "--bandwidth", "fast"], "'fast' is no bandwidth"),
        (["--figure", 7, "--bandwidth", "0mbps"], "a bandwidth must be above 0"),
        (["--table", 1, "--repeats", 0], "repeats must be at least 1"),
    ],
)
def test_what_does_not_exist_is_refused(arguments: list[Any], says: str) -> None:
    assert says in refuse("paper", *arguments)
