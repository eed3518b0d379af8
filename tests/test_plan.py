"""What a sweep runs, and what it refuses to."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsz.config import RunConfig
from fedsz.errors import ConfigError
from fedsz.experiments.plan import (
    SweepConfig,
    codecs,
    error_bounds,
    run_id,
    settings_of,
    steered,
)

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("1e-2", ["0.01"]),
        ("1e-5..1e-1", ["1e-05", "0.0001", "0.001", "0.01", "0.1"]),
        ("3e-4..1e-1", ["0.0003", "0.003", "0.03"]),
        ("1e-2..1e-2", ["0.01"]),
        ("abs:1e-4..1e-3, std:0.5 ,1e-2,1e-2", ["abs:0.0001", "abs:0.001", "std:0.5", "0.01"]),
    ],
)
def test_error_bounds(text: str, bounds: list[str]) -> None:
    assert [str(bound) for bound in error_bounds(text)] == bounds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1e-1..1e-5", "write the smaller bound first, 1e-5..1e-1"),
        ("0..1", "must be finite and above 0"),
        ("1e-3..1", r"must lie in \(0, 1\)"),
        ("1e-3..", "'' is no error bound"),
        ("..", "'' is no error bound"),
        ("abs:1e-3..std:1e-2", "bounds of two kinds"),
        ("", "separated by commas"),
        ("1e-2,,1e-3", "separated by commas"),
        ("nan", "finite"),
        ("tight", "'tight' is no error bound"),
    ],
)
def test_error_bounds_that_are_none(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        error_bounds(text)
    with pytest.raises(ConfigError, match=says):
        SweepConfig(error_bounds=text)


def test_codecs() -> None:
    assert codecs("sz2,uniform:effort=9,threads=1,raw,sz2") == (
        "sz2",
        "uniform:effort=9,threads=1",
        "raw",
    )
    assert codecs("uniform:effort=5") == ("uniform",)  # its default
    with pytest.raises(ConfigError, match="no codec 'sz4'; have raw"):
        codecs("sz2,sz4")
    with pytest.raises(ConfigError, match="no codec 'effort=9'"):
        codecs("uniform,effort=9")


def test_settings_are_written_with_their_defaults() -> None:
    assert "effort=9" in settings_of("uniform:effort=9").split(",")
    assert "effort=5" in settings_of("uniform").split(",")


def test_every_combination_once() -> None:
    sweep = SweepConfig(
        models="cnn,alexnet",
        datasets="digits,cifar10",
        codecs="raw,sz2,zfp:precision=14,uniform",
        error_bounds="1e-3..1e-1",
        seeds=2,
        seed=5,
        clients=3,
    )

    runs = sweep.runs

    # Neither raw nor zfp with a precision knows a bound.
    assert len(runs) == len(set(runs)) == 2 * 2 * 2 * (1 + 3 + 1 + 3)
    assert {run.seed for run in runs[: len(runs) // 2]} == {5}
    assert {run.seed for run in runs[len(runs) // 2 :]} == {6}
    assert {run.lossless for run in runs if run.codec == "raw"} == {"raw"}
    assert {run.min_clients for run in runs} == {3}
    assert not steered("zfp:precision=14")


def test_a_run_is_known_by_what_decides_its_result() -> None:
    run = RunConfig(codec="sz2", data_dir="here")

    assert run_id(run, "local") == run_id(RunConfig(codec="sz2", data_dir="there"), "local")
    assert run_id(run, "local") != run_id(run, "grpc")
    different = {"seed": 1, "error_bound": 1e-3, "rounds": 9, "image_size": 16, "codec": "szx"}
    for name, value in different.items():
        other = RunConfig(**{"codec": "sz2", name: value})
        assert run_id(run, "local") != run_id(other, "local")
    raw = (RunConfig(codec="raw", error_bound=bound) for bound in (1e-3, 1e-2))
    assert len({run_id(run, "local") for run in raw}) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "cnn"}, "a sweep has 'models', not 'model'"),
        ({"error-bound": 0.1}, "a sweep has 'error_bounds'"),
        ({"modles": "cnn"}, "did you mean 'models'"),
        ({"seeds": 0}, "seeds must lie in 1..10000"),
        ({"jobs": 0}, "jobs must lie in 1..256"),
        ({"grid": "ray"}, "no grid 'ray'; have local, grpc"),
        ({"models": []}, "models must be names"),
        ({"rounds": 0}, "rounds must lie in"),
    ],
)
def test_options_that_a_sweep_refuses(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SweepConfig.of(options)


def test_configs_may_hold_lists(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text('models = ["cnn", "alexnet"]\nerror_bounds = [1e-2, "abs:0.1"]\n')

    sweep = SweepConfig.read(path, seeds=3)

    assert (sweep.models, sweep.error_bounds, sweep.seeds) == ("cnn,alexnet", "0.01,abs:0.1", 3)


SWEEPS = sorted(path for path in CONFIGS.glob("*.toml") if "\nmodels =" in path.read_text())


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name)
def test_the_sweeps_that_come_with_fedsz(path: Path) -> None:
    assert SweepConfig.read(path).runs
