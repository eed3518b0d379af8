"""What a sweep prints of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


from fedsz.cli.sweep import SweepProgress, print_summary
from fedsz.experiments.results import SWEEP, Results
from fedsz.experiments.sweep import Step, Sweep
from fedsz.experiments.sweep_plan import SweepConfig
from tests.cli.test_cli import refuse
from tests.reports import runs_in
from tests.sweeps import MEGA, Rows, course, written

BOTH = "delta+ef:uniform:effort=9@std:3/std:2"
OPTIONS = {
    "models": "cnn,none",
    "partitions": "dirichlet:0.1",
    "ways": f"raw,{BOTH}",
    "seeds": 2,
    "rounds": 2,
    "clients": 2,
}
ERROR = "no model 'none'; have cnn"


def swept() -> Rows:
    """The rows of these runs; none of `cnn` fails, and all others do."""
    found: list[Mapping[str, Any]] = []
    for seed, model, way in product((0, 1), ("cnn", "none"), ("raw", BOTH)):
        options = {**OPTIONS, "models": model, "ways": way, "seeds": 1}
        sent = {"sent_up": MEGA // (7 + seed), "sent_down": MEGA // 3} if way == BOTH else {}
        error = ERROR if model == "none" else ""
        found += course(way, (0.1, 0.5, 0.6), seed, options=options, error=error, **sent)
    return found


def test_the_summary_is_of_whole_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "x.parquet", swept())
    with Results(path, SWEEP) as results:
        print_summary(Sweep(SweepConfig(**OPTIONS), results))  # type: ignore[arg-type]

    lines = capsys.readouterr().out.splitlines()
    heads = lines[1].split()
    assert heads[-7:] == ["way", "seeds", "accuracy", "up", "both", "bound", "failed"]
    raw, both, *failed = (line.split() for line in lines[2:])
    assert raw[3:5] == ["raw", "2"]
    assert raw[-3:-1] == ["1.0", "1.0"]
    assert both[3] == BOTH
    assert both[-3:-1] == ["7.5", "4.3"]  # medians of 7 and 8, and of 4.20 and 4.36
    assert [line[-1] for line in failed] == ["2", "2"]


def test_a_finished_run_is_a_line_with_the_whole_run_s_ratios(tmp_path: Path) -> None:
    config = SweepConfig(**OPTIONS)  # type: ignore[arg-type]
    with Results(tmp_path / "x.parquet", SWEEP) as results:
        progress = SweepProgress(Sweep(config, results))
        lines = [
            progress.line(Step(run, done.rounds, done.error))
            for run, done in zip(config.runs, runs_in(swept()), strict=True)
        ]

    assert [line.partition(":")[0] for line in lines] == [f"{i} of 8" for i in range(1, 9)]
    assert f"{BOTH} seed 0: accuracy 0.6000, 7.0x smaller up, 4.2x both ways, 3 s;" in lines[1]
    assert "1.0x smaller up, 1.0x both ways, 3 s; about 21 s left" in lines[0]
    assert lines[-1].endswith(ERROR)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("--models", "cnn,nope"), "no model 'nope'; have cnn, alexnet, mobilenetv2, resnet50"),
        (("--datasets", "nope"), "no data set 'nope'; have digits, cifar10"),
        (("--task", "tabular", "--models", "nope"), "no model 'nope' for tables; have mlp, linear"),
        (("--partitions", "iid,nope"), "no partitioner 'nope'"),
    ],
)
def test_a_name_that_nothing_has_is_refused_before_anything_runs(
    tmp_path: Path, asked: tuple[str, ...], says: str
) -> None:
    results = tmp_path / "x.parquet"
    assert says in refuse("sweep", *asked, "--results", results)
    assert says in refuse("sweep", *asked, "--dry-run")
    assert not results.exists()
