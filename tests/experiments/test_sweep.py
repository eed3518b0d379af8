"""Sweeps: every run a row, whatever happens to it; ended anywhere, they go on where they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsz import extras
from fedsz.cli import main
from fedsz.experiments.results import SWEEP, Results, read
from fedsz.experiments.scheme import Scheme
from fedsz.experiments.sweep import Sweep
from fedsz.experiments.sweep_plan import SweepConfig, run_id
from tests.cli.test_cli import call
from tests.project.test_child_process import gone
from tests.training.test_fleet import descendants

pytestmark = pytest.mark.slow
TINY = {
    "models": "cnn",
    "datasets": "digits",
    "samples": 200,
    "test_samples": 100,
    "clients": 2,
    "rounds": 2,
}
WAYS = ["raw", "delta@std:1", "weights:zfp:precision=14"]
# What the sweep of this file runs, by the name of a table.
TABLES: dict[str, dict[str, object]] = {
    "bounds": {"codecs": "raw,sz2,uniform", "error_bounds": "1e-2..1e-1"},
    "ways": {"ways": ",".join(WAYS), "partitions": "dirichlet:5"},
    "all of four": {"codecs": "raw", "clients": 4},
    "three of four": {"codecs": "raw", "clients": 4, "clients_per_round": 3},
    "bad": {
        "models": "cnn,resnet51", "datasets": "digits,cifar10", "codecs": "zstd",
        "data_dir": "nowhere",
    },
}  # fmt: skip
Rows = list[dict[str, Any]]


def tiny(path: Path, **options: object) -> SweepConfig:
    return SweepConfig(**{**TINY, "results": str(path), **options})  # type: ignore[arg-type]


def flags(config: SweepConfig) -> list[str]:
    names = (*TINY, "results", "codecs", "error_bounds", "seeds", "jobs")
    return [
        word
        for name in names
        for word in (f"--{name.replace('_', '-')}", str(getattr(config, name)))
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepConfig, Rows]:
    """A sweep of all tables, and its rows."""
    path = tmp_path_factory.mktemp("sweep") / "x.parquet"
    config = SweepConfig.of({**TINY, "results": str(path), "jobs": 2, "tasks": TABLES})
    with Results(path, SWEEP) as results:
        for _ in Sweep(config, results).run():
            pass
    return config, read(path, SWEEP).to_pylist()


@pytest.fixture(scope="module")
def swept(whole: tuple[SweepConfig, Rows]) -> dict[str, Rows]:
    """The rows by their table."""
    config, rows = whole
    of = {run_id(run): name for name, table in config.tasks.items() for run in table.runs}
    found: dict[str, Rows] = {name: [] for name in TABLES}
    for row in rows:
        found[of[row["run"]]].append(row)
    return found


def by_way(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(str(Scheme.of_row(row)), []).append(row)
    return found


def test_a_row_for_every_round_of_every_run(whole: tuple[SweepConfig, Rows]) -> None:
    config, rows = whole

    good = [row for row in rows if not row["error"]]
    held = [(row["run"], row["round"]) for row in good]
    failed = [row["run"] for row in rows if row["error"]]
    assert len(set(held)) == len(held) == 3 * (len(config.runs) - len(failed))
    assert {run for run, _ in held} | set(failed) == {run_id(r) for r in config.runs}
    assert all(row["failures"] == 0 for row in good)


def test_what_a_row_says(swept: dict[str, Rows]) -> None:
    rows = swept["bounds"]

    assert {(row["codec"], row["error_bound"]) for row in rows} == {
        ("raw", None), ("sz2", "rel:0.01"), ("sz2", "rel:0.1"),
        ("uniform", "rel:0.01"), ("uniform", "rel:0.1"),
    }  # fmt: skip
    for row in rows:
        assert row["fedsz_version"]
        assert row["machine"]
        assert row["time"].tzinfo
        assert 0 <= row["accuracy"] <= 1
        if row["round"]:
            assert row["replies"] == 2
            assert row["train_seconds"] > 0
            assert row["test_seconds"] > 0
            assert row["raw_up"] == 2 * rows[1]["raw_up"] // 2 > 0
            if row["codec"] == "raw":
                assert row["max_error"] is None
            else:
                assert 0 < row["max_error"] <= 1
            assert row["ratio"] == pytest.approx(row["raw_up"] / row["sent_up"])
    # All begin with the same model.
    assert len({row["accuracy"] for row in rows if row["round"] == 0}) == 1


def test_what_a_row_says_of_its_way(swept: dict[str, Rows]) -> None:
    rows = swept["ways"]
    last = {way: found[-1] for way, found in by_way(rows).items()}

    assert set(last) == set(WAYS)
    assert {row["partitioner"] for row in rows} == {"dirichlet"}
    assert {(row["downlink"], row["policy"], row["tolerance"]) for row in rows} == {
        ("exact", "fixed", None)
    }
    assert [last[way]["error_bound"] for way in WAYS] == [None, "std:1", None]


def test_some_clients_of_many_train_in_a_round(swept: dict[str, Rows]) -> None:
    for every, some in zip(swept["all of four"], swept["three of four"], strict=True):
        assert (every["clients_per_round"], some["clients_per_round"]) == (0, 3)
        for way in ("raw_up", "raw_down"):
            assert 4 * some[way] == 3 * every[way]
        assert some["run"] != every["run"]


def test_what_fails_is_a_row(swept: dict[str, Rows]) -> None:
    rows = {(row["model"], row["dataset"]): row for row in swept["bad"]}

    assert len(rows) == 4
    assert rows["cnn", "digits"]["error"] is None
    assert "no model 'resnet51'; have cnn" in rows["resnet51", "digits"]["error"]
    assert rows["cnn", "cifar10"]["error"].startswith("DataError: ")
    assert rows["cnn", "cifar10"]["round"] is None


def test_a_finished_sweep_does_nothing_but_what_failed_if_asked(
    whole: tuple[SweepConfig, Rows], tmp_path: Path
) -> None:
    config, rows = whole
    path = tmp_path / "copy.parquet"
    path.write_bytes(Path(config.results).read_bytes())
    with Results(path, SWEEP) as results:
        sweep = Sweep(config, results)
        assert not sweep.pending
        assert list(sweep.run()) == []
        sweep.forget_failures()
        assert len(sweep.pending) == 3
        assert results.rows.num_rows == len(rows) - 3


def test_a_run_that_takes_its_process_with_it(
    swept: dict[str, Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one goes on, with as many threads as are asked for."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = tiny(tmp_path / "x.parquet", codecs="raw,uniform", error_bounds="1e-2")
    with Results(Path(config.results), SWEEP) as results:
        killer = threading.Thread(target=kill_first_worker)
        killer.start()
        for _ in Sweep(config, results).run():
            pass
        killer.join()
    first, *rest = read(Path(config.results)).to_pylist()

    assert first["error"].startswith("the process ended with -9")
    assert [(row["codec"], row["threads"]) for row in rest] == [("uniform", 1)] * 3
    # Equal seeds give equal results, but another number of threads adds up in another order.
    before = by_way(swept["bounds"])["weights@0.01"]
    for name in ("run", "round"):
        assert [row[name] for row in rest] == [row[name] for row in before]
    losses = [row["loss"] for row in before]
    assert [row["loss"] for row in rest] == pytest.approx(losses, rel=1e-3)


def test_one_that_is_left_in_the_middle_leaves_nothing_running(tmp_path: Path) -> None:
    before = threading.active_count()
    config = tiny(tmp_path / "x.parquet", codecs="raw,uniform,szx", error_bounds="1e-2", jobs=2)
    with Results(Path(config.results), SWEEP) as results:
        steps = Sweep(config, results).run()
        next(steps)
        steps.close()

    assert threading.active_count() == before
    assert not workers_of(os.getpid())


def test_killed_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    config = tiny(path, codecs="raw,szx", error_bounds="1e-2")
    first = subprocess.Popen(
        [sys.executable, "-m", "fedsz", "sweep", *flags(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    finished = path.with_suffix(".runs")
    wait_until(lambda: any(finished.glob("*.json")))
    wait_until(lambda: bool(workers_of(first.pid)))
    workers = workers_of(first.pid)
    first.kill()
    first.wait()
    (held,) = finished.glob("*.json")

    wait_until(lambda: all(map(gone, workers)))
    assert read(path).num_rows == 0
    second = call("sweep", *flags(config))

    assert second.returncode == 0, second.stderr
    rows = read(path).to_pylist()
    assert {row["run"] for row in rows[:3]} == {held.stem}
    assert not finished.exists()
    assert second.stderr.count(" of 2: ") == 1
    made = [(row["run"], row["round"]) for row in rows]
    assert len(made) == len(set(made)) == 3 * len(config.runs)
    assert all(row["error"] is None for row in rows)


def test_the_command_tells_of_each_run_and_of_all_in_the_end(tmp_path: Path) -> None:
    config = tiny(tmp_path / "x.parquet", codecs="raw", rounds=1)
    missing = ("--datasets", "digits,cifar10", "--data-dir", tmp_path)

    done = call("sweep", *flags(config), *missing)

    assert done.returncode == 1
    told, good, failed, hint = done.stderr.splitlines()
    assert hint == "1 run failed; --retry runs them again"
    assert told == "2 runs to make"
    assert good.startswith("1 of 2: cnn digits raw seed 0: accuracy ")
    assert failed.startswith("2 of 2: cnn cifar10 raw seed 0: failed: ")
    assert "raw" in done.stdout
    rows = read(Path(config.results)).to_pylist()
    assert [(row["error"], row["round"]) for row in rows[:2]] == [(None, 0), (None, 1)]
    assert rows[1]["replies"] == 2


def test_a_codec_that_is_missing_is_said_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "_is_here", lambda package: package != "hdf5plugin")
    config = tiny(tmp_path / "x.parquet", codecs="sz2,szx", error_bounds="1e-2..1e-1", rounds=1)
    monkeypatch.setattr(sys, "argv", ["fedsz", "sweep", *flags(config)])

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ended.value.code == 1
    told = capsys.readouterr().err.splitlines()
    assert "needs the package 'hdf5plugin': pip install 'fedsz[baselines]'" in told[1]
    assert told[1].endswith("; without it, 2 runs will fail")
    assert told[-1] == "2 runs failed; --retry runs them again"
    errors = {row["codec"]: row["error"] for row in read(tmp_path / "x.parquet").to_pylist()}
    assert errors["szx"] is None
    assert "hdf5plugin" in errors["sz2"]


def test_ways_of_a_table_have_names_and_any_option(tmp_path: Path) -> None:
    ways = {
        "plain": "raw",
        "late": {"deadline_factor": 2.0},
        "noisy": {"dp_epsilon": 8.0, "dp_clip": 0.5},
    }
    path = tmp_path / "x.parquet"
    config = SweepConfig.of({**TINY, "rounds": 1, "results": str(path), "ways": ways})

    with Results(path, SWEEP) as results:
        assert [step.error for step in Sweep(config, results).run()] == [""] * 3

    last = {row["way"]: row for row in read(path).to_pylist() if row["round"]}
    assert set(last) == set(ways)
    assert last["plain"]["codec"] == "raw"
    assert json.loads(last["late"]["more_options"]) == {"deadline_factor": 2.0}
    assert (last["plain"]["epsilon"], last["late"]["epsilon"]) == (None, None)
    assert last["noisy"]["epsilon"] > 0


def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    config = tiny(tmp_path / "x.parquet", codecs="raw,uniform", error_bounds="1e-3..1e-1")

    shown = call("sweep", *flags(config), "--dry-run")

    assert "4 runs" in shown.stdout
    ways = ("raw", "delta+ef@std:3/std:2", "auto")
    whole = (*flags(config), "--ways", ",".join(ways), "--partitions", "iid,dirichlet:0.1")
    shown = call("sweep", *whole, "--dry-run")
    assert all(shown.stdout.count(way) == 2 for way in ways)
    assert "6 runs" in shown.stdout
    assert shown.stdout.count("dirichlet:0.1") == 3
    (tmp_path / "ways.toml").write_text('[ways]\nexact = "raw"\ncoarse = "delta@0.1"\n')
    shown = call("sweep", "--config", tmp_path / "ways.toml", "--dry-run")
    assert [line.split()[-1] for line in shown.stdout.splitlines()] == [
        "way", "exact", "coarse", "runs"
    ]  # fmt: skip
    assert not Path(config.results).exists()


def kill_first_worker() -> None:
    wait_until(lambda: bool(workers_of(os.getpid())))
    os.kill(workers_of(os.getpid())[0], signal.SIGKILL)


def workers_of(pid: int) -> list[int]:
    """The worker processes that a process has started."""
    worker = b"fedsz.experiments.sweep_worker"
    return [
        child for child in descendants(pid) if worker in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
