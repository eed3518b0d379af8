"""Figures 4 to 6 of the paper, from a file with runs of many kinds: like is compared with like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")
pytest.importorskip("benchmarks", reason="needs benchmarks")

from benchmarks.paper.comparison import Comparison, Line
from benchmarks.paper.measurements import Measurements
from benchmarks.paper.options import MeasurementOptions, PaperConfig
from benchmarks.paper.run_figures import figure_4, figure_5, figure_6
from fedsz.errors import ConfigError
from tests.sweeps import Rows, course, written

pytestmark = pytest.mark.repository
RAW, SZ2, UNIFORM = "raw", "weights:sz2@0.01", "weights@0.01"
ALIKE = {"datasets": "cifar10", "clients": 4, "batch_size": 32, "learning_rate": 0.01}


def run(accuracy: float, seed: int, way: str, *, rounds: int = 12, **options: Any) -> Rows:
    """The rows of a run that gains a point in each round, up to an accuracy in percent."""
    accuracies = [(accuracy - rounds + i) / 100 for i in range(rounds + 1)]
    return course(way, accuracies, seed, options={**ALIKE, **options}, machine="a small one")


def made(figure: Any, path: Path, *runs: Rows) -> Comparison:
    file = written(path / "sweep.parquet", [row for rows in runs for row in rows])
    config = PaperConfig(models="cnn", error_bounds="1e-2")
    return figure(Measurements(config, MeasurementOptions(sweep=file), pytest.fail))


def accuracies(made: Comparison, quantity: str = "accuracy") -> dict[tuple[str, ...], Line]:
    return {line.of[1:]: line for line in made.lines if line.quantity == quantity}


def test_what_policies_choose_is_no_codec_at_a_bound(tmp_path: Path) -> None:
    ways = ("auto@0.5", "delta@0.01", "delta+ef@0.01", "weights@0.01/0.01", "weights@0.02")
    options = ({"rule": "parameters"}, {"threshold": 0}, {"lossless": "zstd"}, {"task": "tabular"})
    strange = [run(99, 0, way) for way in ways]
    strange += [run(99, 0, UNIFORM, **other) for other in options]
    strange += [run(99, seed, "auto@0.5") for seed in range(1, 11)]
    alike = [run(50, 0, RAW), run(40, 0, UNIFORM)]

    for figure in (figure_4, figure_5, figure_6):
        (tmp_path / figure.__name__).mkdir()
        mixed = made(figure, tmp_path / figure.__name__, *strange, *alike)
        apart = made(figure, tmp_path, *alike)
        (tmp_path / "sweep.parquet").unlink()

        assert mixed.lines == apart.lines
        assert mixed.made_from == apart.made_from
    with pytest.raises(ConfigError, match=r"no run of cnn on cifar10 by raw, weights:sz2@0.01, w"):
        made(figure_5, tmp_path, *strange)


def test_a_number_is_of_one_setting_and_of_seeds_that_all_codecs_have(tmp_path: Path) -> None:
    few = [run(52 + seed, seed, RAW) for seed in (0, 1)]
    few += [run(50 + 3 * seed, seed, SZ2) for seed in (0, 1, 2)]
    few += [run(49 + seed, seed, UNIFORM) for seed in (0, 1, 2)]
    many = [run(30, 0, RAW, clients=7), run(20, 0, SZ2, clients=7)]

    found = made(figure_5, tmp_path, *few, *many)

    assert {of: (line.ours, line.seeds) for of, line in accuracies(found).items()} == {
        ("cifar10, clients 4", "none", "-"): (52.5, (0, 1)),
        ("cifar10, clients 4", "sz2", "0.01"): (51.5, (0, 1)),
        ("cifar10, clients 4", "uniform", "0.01"): (49.5, (0, 1)),
        ("cifar10, clients 7", "none", "-"): (30.0, (0,)),
        ("cifar10, clients 7", "sz2", "0.01"): (20.0, (0,)),
    }
    changes = {of: round(line.ours or 0, 9) for of, line in accuracies(found, "change").items()}
    assert changes == {
        ("cifar10, clients 4", "sz2", "0.01"): -1.0,  # -2 and 0 by seed
        ("cifar10, clients 4", "uniform", "0.01"): -3.0,
        ("cifar10, clients 7", "sz2", "0.01"): -10.0,
    }
    assert [panel.title for panel in found.panels] == [
        "cnn on cifar10, clients 4", "cnn on cifar10, clients 7",
    ]  # fmt: skip
    four, seven = found.made_from
    assert "over 7 clients" in seven
    for said in (
        "over 4 clients", "12 rounds of 1 epoch", "seeds 0, 1;", "machine: a small one",
        "Batch 32, learning rate 0.01", "send weights, downlink exact, policy fixed",
    ):  # fmt: skip
        assert said in four
    assert not found.here


def test_accuracies_of_table_1_are_compared_after_its_rounds(tmp_path: Path) -> None:
    short = run(30, 0, SZ2, rounds=3)

    long = made(figure_4, tmp_path, run(52, 0, RAW), run(50, 0, SZ2))
    (tmp_path / "sweep.parquet").unlink()
    ended = made(figure_4, tmp_path, short, run(45, 0, SZ2)[:-1])

    after = {of[1:]: line.ours for of, line in accuracies(long).items()}
    assert after == {
        ("uncompressed", "10"): pytest.approx(50.0),
        ("sz2", "10"): pytest.approx(48.0),
    }
    # A run without its last round has not ended.
    assert [(of[1:], line.ours) for of, line in accuracies(ended).items()] == [
        (("sz2", "3"), pytest.approx(30.0))
    ]


def test_without_an_uncompressed_run_there_is_no_change(tmp_path: Path) -> None:
    found = made(figure_5, tmp_path, run(50, 0, SZ2))

    assert set(accuracies(found)) == {("cifar10", "sz2", "0.01")}
    assert not accuracies(found, "change")
    assert found.notes == ["cnn on cifar10 has no uncompressed run to be compared with."]


def test_seconds_are_of_a_clients_round(tmp_path: Path) -> None:
    found = made(figure_6, tmp_path, run(50, 0, SZ2), run(50, 1, SZ2))

    seconds = {line.quantity: line.ours for line in found.lines if line.of[0] == "cnn"}
    assert seconds == {
        "train": 0.25, "compress": pytest.approx(0.05), "decompress": pytest.approx(0.1),
        "test": 0.5, "overhead": pytest.approx(100 * 0.05 / 0.9),
    }  # fmt: skip
