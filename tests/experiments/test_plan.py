"""What a sweep runs, and what it refuses to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsz.codecs import parse
from fedsz.errors import ConfigError
from fedsz.experiments import sweep_plan as plan
from fedsz.experiments.results import SWEEP, read
from fedsz.experiments.scheme import Scheme
from fedsz.experiments.sweep_plan import SweepConfig, run_id
from fedsz.training.options import RunConfig
from tests.conftest import ROOT

CONFIGS = ROOT / "configs"
RESULTS = ROOT / "docs" / "results"


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
    assert [str(bound) for bound in plan.error_bounds(text)] == bounds


def test_codecs() -> None:
    fine = "blosclz:level=8,shuffle=byte"
    assert plan.codecs(f"sz2,{fine},raw,sz2") == ("sz2", fine, "raw")
    assert plan.codecs("uniform:effort=5") == ("uniform",)  # its default
    assert "effort=9" in plan.settings_of("uniform:effort=9").split(",")
    assert "effort=5" in plan.settings_of("uniform").split(",")


def test_tables_of_tasks_are_sweeps_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(
        """
        ways = ["raw", "auto"]
        seeds = 2
        rounds = 7
        [tasks.small]
        models = "mlp"
        task = "tabular"
        seeds = 1
        [tasks."and large"]
        models = ["cnn", "alexnet"]
        rounds = 3
        """
    )

    sweep = SweepConfig.read(path, clients=6, rounds=5)

    assert list(sweep.tasks) == ["small", "and large"]
    small, large = (table.runs for table in sweep.tasks.values())
    assert sweep.runs == (*small, *large)
    assert (len(small), len(large)) == (1 * 2, 2 * 2 * 2)
    assert {(run.task, run.rounds, run.clients) for run in small} == {("tabular", 5, 6)}
    assert {(run.task, run.rounds, run.clients) for run in large} == {("images", 3, 6)}
    named = SweepConfig.of(
        {"ways": {"a": "raw", "b": "auto"}, "tasks": {"x": {}, "y": {"rounds": 1}}}
    )
    assert list(named.way_names.values()) == ["a", "b"] * 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tasks = 3", "tasks must be tables"),
        ("tasks.a = 3", "tasks must be tables"),
        ("[tasks.a]\nmodel = 'cnn'", r"\[tasks.a\]: a sweep has 'models', not 'model'"),
        ("[tasks.a]\nrouns = 3", r"\[tasks.a\]: no option 'rouns' .did you mean 'rounds'"),
        ("[tasks.a]\nresults = 'x'", r"\[tasks.a\]: results is for the whole sweep"),
        ("[tasks.a.tasks.b]\nrounds = 1", r"\[tasks.a\]: tasks is for the whole sweep"),
    ],
)
def test_tables_that_are_none(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        SweepConfig.read(path)


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
    assert not parse("zfp:precision=14").keeps_bound


def ways(text: str, **options: object) -> list[str]:
    return [str(Scheme.of_run(run)) for run in SweepConfig(ways=text, **options).runs]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("raw", ["raw"]),
        ("weights:raw,delta:raw,raw", ["raw"]),
        ("raw/std:1", ["raw/std:1"]),
        ("weights:sz2@1e-2", ["weights:sz2@0.01"]),
        ("weights:uniform@1e-2", ["weights@0.01"]),
        ("delta@1e-3..1e-1", ["delta@0.001", "delta@0.01", "delta@0.1"]),
        ("delta", ["delta@0.001", "delta@std:1"]),  # at each of --error-bounds
        ("delta+ef@std:3/std:2", ["delta+ef@std:3/std:2"]),
        ("delta+ef@std:3/exact", ["delta+ef@std:3"]),
        ("delta:blosclz:level=8,shuffle=byte,delta:zstd",
         ["delta:blosclz:level=8,shuffle=byte", "delta:zstd"]),
        ("weights:uniform:effort=9@0.1", ["weights:uniform:effort=9@0.1"]),
        ("auto, auto@2,auto@0.5", ["auto", "auto@2"]),
        ("delta@std:2 by schedule:first=std:4,last=std:1,raw",
         ["delta@std:2 by schedule:first=std:4,last=std:1", "raw"]),
        ("delta@std:2/std:1 by layers+gate@1.5", ["delta@std:2/std:1 by layers+gate@1.5"]),
    ],
)  # fmt: skip
def test_ways(text: str, written: list[str]) -> None:
    assert ways(text, error_bounds="1e-3,std:1") == written
    assert ways(",".join(written)) == written


def test_what_a_way_leaves_open_is_an_option() -> None:
    options = {"downlink": "std:1", "tolerance": 2.0, "policy": "layers"}

    assert ways("raw,delta@0.1,delta@0.1/std:2,auto", **options) == [
        "raw", "delta@0.1/std:1 by layers@2", "delta@0.1/std:2 by layers@2",
        "weights/std:1 by auto@2",
    ]  # fmt: skip


def test_ways_may_have_settings_alike() -> None:
    written = ["raw", "feedback>randk:k=10%,unbiased=0", "feedback>randk:k=2%,unbiased=0"]

    assert ways(",".join([*written, *written])) == written


def test_uncompressed_runs_once_whatever_is_compared_with_it() -> None:
    (plain,) = SweepConfig(codecs="raw").runs
    options = {"update": "delta", "downlink": "std:1", "policy": "auto"}

    (run, *_) = SweepConfig(codecs="raw,uniform", **options).runs  # type: ignore[arg-type]

    assert run == plain


def test_partitions() -> None:
    assert plan.partitions("iid,dirichlet:0.1,dirichlet", 3.0) == [
        ("iid", 0.5), ("dirichlet", 0.1), ("dirichlet", 3.0),
    ]  # fmt: skip
    runs = SweepConfig(codecs="raw,zstd", partitions="iid,dirichlet:0.1", alpha=3.0).runs
    assert [(run.partitioner, run.codec) for run in runs] == [
        ("iid", "raw"), ("iid", "zstd"), ("dirichlet", "raw"), ("dirichlet", "zstd"),
    ]  # fmt: skip
    (run,) = SweepConfig(codecs="raw", partitioner="dirichlet", alpha=3.0).runs
    assert (run.partitioner, run.alpha) == ("dirichlet", 3.0)


@pytest.mark.repository
def test_a_way_is_read_back_from_a_table() -> None:
    for row in read(RESULTS / "sweep.parquet", SWEEP).to_pylist()[::50]:
        way = Scheme.of_row(row)
        assert (way.downlink, way.policy) == ("exact", "fixed")
        assert str(way.bound or "") == (row["error_bound"] or "").removeprefix("rel:")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        # No bound controls these.
        ({"codec": "raw", "error_bound": 1e-3}, {"codec": "raw", "error_bound": 1e-2}, True),
        ({"policy": "auto", "error_bound": 1e-3}, {"policy": "auto", "error_bound": 1e-2}, True),
        # A tolerance matters to a policy that asks for one.
        ({"policy": "fixed", "tolerance": 0.5}, {"policy": "fixed", "tolerance": 1.0}, True),
        ({"policy": "auto", "tolerance": 0.5}, {"policy": "auto", "tolerance": 1.0}, False),
    ],
)
def test_a_run_is_known_by_what_decides_its_result(one: Any, other: Any, same: bool) -> None:
    """tests/project/test_repository.py goes through all options."""
    run, changed = (replace(RunConfig(codec="sz2", update="weights"), **x) for x in (one, other))

    assert (run_id(run) == run_id(changed)) == same


SWEPT = {
    "error_bounds": [
        ("1e-1..1e-5", "write the smaller bound first, 1e-5..1e-1"),
        ("0..1", "must be finite and above 0"),
        ("1e-3..1", r"must lie in \(0, 1\)"),
        ("1e-3..", "'' is no error bound"),
        ("abs:1e-3..std:1e-2", "bounds of two kinds"),
        ("", "separated by commas"),
        ("1e-2,,1e-3", "separated by commas"),
        ("tight", "'tight' is no error bound"),
    ],
    "ways": [
        ("detla@1e-2", "no scheme 'detla@1e-2'; have raw, auto"),
        ("delta@", "no scheme"),
        ("auto@tight", "no scheme"),
        ("raw,,delta", "separated by commas"),
        ("raw@1e-2", "its codec takes no bound"),
        ("delta:zstd@1e-2", "its codec takes no bound"),
        ("raw by layers", "leaves a policy nothing to decide"),
        ("delta@tight", "'tight' is no error bound"),
        ("delta/0", "above 0"),
        ("delta:sz9", "way 'delta:sz9': no codec 'sz9'"),
        ("auto@101", "tolerance must be a number from 0 to 100"),
    ],
    "codecs": [("sz2,sz9", "no codec 'sz9'; have raw"), ("uniform,effort=9", "no codec 'effort")],
    "partitions": [
        ("dirichlet:much", "'much' is no concentration"),
        ("iid:1", "alone takes a number"),
        ("dirichlet:0", "alpha must be a number from"),
        ("iid,", "separated by commas"),
    ],
    "model": [("cnn", "a sweep has 'models', not 'model'")],
    "error-bound": [(0.1, "a sweep has 'error_bounds'")],
    "modles": [("cnn", "did you mean 'models'")],
    "models": [([], "models must be names")],
    "seeds": [(0, "seeds must be a whole number from 1 to 10000")],
    "jobs": [(0, "jobs must be a whole number from 1 to 256")],
    "rounds": [(0, "rounds must be a whole number from")],
}


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [(option, value, says) for option, refused in SWEPT.items() for value, says in refused],
)
def test_options_that_a_sweep_refuses(option: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SweepConfig.of({option: value})


@pytest.mark.parametrize(
    ("ways", "says"),
    [
        ({"a": {"codce": "raw"}}, r"\[ways.a\]: no option 'codce' .did you mean 'codec'"),
        ({"a": "detla"}, r"\[ways.a\]: no scheme 'detla'"),
        ({"a": {"rounds": 0}}, r"\[ways.a\]: rounds must be a whole number from 1"),
        ({"a": 3}, r"\[ways.a\]: a way is a scheme or a table of options, got 3"),
    ],
)
def test_a_table_of_ways_that_a_sweep_refuses(ways: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SweepConfig.of({"ways": ways})


def test_configs_may_hold_lists(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text('models = ["cnn", "alexnet"]\nerror_bounds = [1e-2, "abs:0.1"]\n')

    sweep = SweepConfig.read(path, seeds=3)

    assert (sweep.models, sweep.error_bounds, sweep.seeds) == ("cnn,alexnet", "0.01,abs:0.1", 3)

    path.write_text('ways = ["raw", "delta:uniform:effort=9@1e-2"]\n')
    assert len(SweepConfig.read(path).runs) == 2
