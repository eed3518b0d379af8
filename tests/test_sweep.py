"""Sweeps: every run a row, whatever happens to it; ended anywhere, they go on where they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from fedsz.experiments.results import SWEEP, Results, read
from fedsz.experiments.scheme import Scheme
from fedsz.experiments.sweep import Sweep
from fedsz.experiments.sweep_plan import SweepConfig, run_id
from tests.test_cli import call, refuse

pytestmark = pytest.mark.slow
TINY = {
    "models": "cnn",
    "datasets": "digits",
    "samples": 200,
    "test_samples": 100,
    "clients": 2,
    "rounds": 2,
}


def tiny(path: Path, **options: object) -> SweepConfig:
    return SweepConfig(**{**TINY, "results": str(path), **options})  # type: ignore[arg-type]


def run(config: SweepConfig) -> pa.Table:
    with Results(Path(config.results), SWEEP) as results:
        for _ in Sweep(config, results).run():
            pass
    return read(Path(config.results), SWEEP)


def flags(config: SweepConfig) -> list[str]:
    names = (*TINY, "results", "codecs", "error_bounds", "seeds", "jobs", "grid")
    return [
        word
        for name in names
        for word in (f"--{name.replace('_', '-')}", str(getattr(config, name)))
    ]


def fedsz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedsz", *arguments], capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepConfig, list[dict]]:
    path = tmp_path_factory.mktemp("sweep") / "x.parquet"
    config = tiny(path, codecs="raw,sz2,uniform", error_bounds="1e-2..1e-1", jobs=2)
    return config, run(config).to_pylist()


def test_a_row_for_every_round_of_every_run(swept: tuple[SweepConfig, list[dict]]) -> None:
    config, rows = swept

    held = [(row["codec"], row["error_bound"], row["round"]) for row in rows]
    bounds = {"raw": [None], "sz2": ["rel:0.01", "rel:0.1"], "uniform": ["rel:0.01", "rel:0.1"]}
    assert sorted(held, key=str) == sorted(
        ((codec, bound, i) for codec in bounds for bound in bounds[codec] for i in range(3)),
        key=str,
    )
    assert {row["run"] for row in rows} == {run_id(r, "local") for r in config.runs}
    assert all(row["error"] is None and row["failures"] == 0 for row in rows)


def test_what_a_row_says(swept: tuple[SweepConfig, list[dict]]) -> None:
    _, rows = swept

    for row in rows:
        assert row["fedsz_version"]
        assert row["machine"]
        assert row["dataset_digest"]
        assert row["time"].tzinfo
        assert 0 <= row["accuracy"] <= 1
        assert (row["round"] == 2) == (row["distributions"] is not None)
        if row["round"]:
            assert row["replies"] == 2
            assert row["train_seconds"] > 0
            assert row["test_seconds"] > 0
            assert row["raw_up"] == 2 * rows[1]["raw_up"] // 2 > 0
            assert row["max_error"] <= 1
            assert row["ratio"] == pytest.approx(row["raw_up"] / row["sent_up"])
    of_uniform = [row for row in rows if row["codec"] == "uniform"]
    assert "effort=5" in of_uniform[0]["codec_settings"].split(",")
    # All begin with the same model, and end with weights whose error keeps the bound.
    assert len({row["accuracy"] for row in rows if row["round"] == 0}) == 1
    weights, error = of_uniform[-1]["distributions"]
    assert (weights["what"], error["what"]) == ("weights", "error")
    reach = of_uniform[-1]["bound_value"] * (weights["high"] - weights["low"])
    assert max(-error["low"], error["high"]) <= reach


def test_what_a_row_says_of_its_way(tmp_path: Path) -> None:
    ways = "raw,delta@std:1,weights:zfp:precision=14"
    rows = run(tiny(tmp_path / "x.parquet", ways=ways, partitions="dirichlet:5")).to_pylist()
    last = {str(Scheme.of_row(row)): row for row in rows if row["round"] == 2}

    assert list(last) == ways.split(",")
    assert {row["partitioner"] for row in rows} == {"dirichlet"}
    assert {(row["downlink"], row["policy"], row["tolerance"]) for row in rows} == {
        ("exact", "fixed", None)
    }
    assert [row["error_bound"] for row in last.values()] == [None, "std:1", None]
    # What was coded is the step, whose standard deviation bounds the error.
    weights, error = last["delta@std:1"]["distributions"]
    assert 0 < error["high"] < 0.25 * weights["high"]


def test_some_clients_of_many_train_in_a_round(tmp_path: Path) -> None:
    of_all = run(tiny(tmp_path / "x.parquet", codecs="raw", clients=4)).to_pylist()
    of_some = run(tiny(tmp_path / "y.parquet", codecs="raw", clients=4, clients_per_round=3))

    for whole, some in zip(of_all, of_some.to_pylist(), strict=True):
        assert (whole["clients_per_round"], some["clients_per_round"]) == (0, 3)
        for way in ("raw_up", "raw_down"):
            assert 4 * some[way] == 3 * whole[way]
        assert some["run"] != whole["run"]


def test_sketches_may_be_fed_back_on_the_server(tmp_path: Path) -> None:
    sketch = "sketch:rows=3,fixed=1/std:1"
    ways = [sketch, f"{sketch} into fetchsgd:k=5%,momentum=0.5"]
    rows = run(tiny(tmp_path / "x.parquet", ways=",".join(ways), threshold=0)).to_pylist()
    alone, fed = ([row for row in rows if str(Scheme.of_row(row)) == way] for way in ways)

    assert [row["fetchsgd"] for row in alone + fed] == [""] * 3 + ["5%"] * 3
    assert {row["server_momentum"] for row in fed} == {0.5}
    # Clients are the same; what the server applies differs from round 1 on.
    assert alone[0]["loss"] == fed[0]["loss"] != fed[1]["loss"] != alone[1]["loss"]
    assert alone[1]["sent_up"] == fed[1]["sent_up"]


def test_equal_seeds_give_equal_results_on_as_many_threads_as_were_asked_for(
    swept: tuple[SweepConfig, list[dict]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rows = swept
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    again = run(tiny(tmp_path / "y.parquet", codecs="uniform", error_bounds="1e-2")).to_pylist()

    assert [r["threads"] for r in again] == [1] * 3
    first = [r for r in rows if r["codec"] == "uniform" and r["bound_value"] == 0.01]
    for name in ("run", "round", "dataset_digest"):
        assert [r[name] for r in again] == [r[name] for r in first]
    # Another number of threads adds up in another order.
    assert [r["loss"] for r in again] == pytest.approx([r["loss"] for r in first], rel=1e-3)


def test_a_finished_sweep_has_nothing_to_do(swept: tuple[SweepConfig, list[dict]]) -> None:
    config, rows = swept

    assert run(config).num_rows == len(rows)


def test_what_fails_is_a_row(tmp_path: Path) -> None:
    config = tiny(
        tmp_path / "x.parquet",
        models="cnn,resnet51",
        datasets="digits,cifar10",
        codecs="raw",
        data_dir=str(tmp_path),
    )
    rows = {(r["model"], r["dataset"]): r for r in run(config).to_pylist()}

    assert len(rows) == 4
    assert rows["cnn", "digits"]["error"] is None
    assert "no model 'resnet51'; have cnn" in rows["resnet51", "digits"]["error"]
    assert rows["cnn", "cifar10"]["error"].startswith("DataError: ")
    assert rows["cnn", "cifar10"]["round"] is None


def test_failures_run_again_when_asked(tmp_path: Path) -> None:
    config = tiny(tmp_path / "x.parquet", codecs="raw", device="cuda:99")
    with Results(Path(config.results), SWEEP) as results:
        sweep = Sweep(config, results)
        (*_, last) = sweep.run()
        assert "no device 'cuda:99' here" in last.error
        assert not Sweep(config, results).pending
        sweep.forget_failures()
        assert len(sweep.pending) == 1
        assert results.rows.num_rows == 0


def test_a_run_that_takes_its_process_with_it(tmp_path: Path) -> None:
    config = tiny(tmp_path / "x.parquet", codecs="raw,uniform", error_bounds="1e-2")
    with Results(Path(config.results), SWEEP) as results:
        killed = False
        for step in Sweep(config, results).run():
            if step.round and not killed:
                (worker,) = workers_of(os.getpid())
                os.kill(worker, signal.SIGKILL)
                killed = True
    first, *rest = read(Path(config.results)).to_pylist()

    assert first["error"].startswith("the process ended with -9")
    assert [row["codec"] for row in rest] == ["uniform"] * 3


@pytest.mark.parametrize("grid", ["local", "grpc"])
def test_killed_and_resumed(tmp_path: Path, grid: str) -> None:
    path = tmp_path / "x.parquet"
    config = tiny(path, codecs="raw,szx", error_bounds="1e-2", rounds=3, grid=grid)
    first = subprocess.Popen(
        [sys.executable, "-m", "fedsz", "sweep", *flags(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: path.exists() and read(path).num_rows > 0)
    workers = workers_of(first.pid)
    assert workers
    first.kill()
    first.wait()
    before = read(path).to_pylist()

    wait_until(lambda: not any(alive(worker) for worker in workers))
    assert 0 < len({row["run"] for row in before}) < len(config.runs)
    second = fedsz("sweep", *flags(config), "--json")

    assert second.returncode == 0, second.stderr
    rows = read(path).to_pylist()
    assert rows[: len(before)] == before
    assert len(second.stdout.splitlines()) == len(config.runs) - len({r["run"] for r in before})
    held = [(row["run"], row["round"]) for row in rows]
    assert len(held) == len(set(held)) == 4 * len(config.runs)
    assert all(row["grid"] == grid and row["error"] is None for row in rows)
    assert all(row["distributions"] for row in rows if row["round"] == 3)


def test_two_sweeps_on_one_file(tmp_path: Path) -> None:
    config = tiny(tmp_path / "x.parquet", codecs="raw")
    with Results(Path(config.results), SWEEP):
        assert "is being written by another process" in refuse("sweep", *flags(config))


def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    config = tiny(tmp_path / "x.parquet", codecs="raw,uniform", error_bounds="1e-3..1e-1")

    shown = call("sweep", *flags(config), "--dry-run")
    lines = call("sweep", *flags(config), "--dry-run", "--json").stdout.splitlines()

    assert "4 runs: about" in shown.stdout
    assert [json.loads(line)["error_bound"] for line in lines] == [None, 0.001, 0.01, 0.1]
    assert all(json.loads(line)["seconds"] > 0 for line in lines)
    ways = ("raw", "delta+ef@std:3/std:2", "auto")
    whole = (*flags(config), "--ways", ",".join(ways), "--partitions", "iid,dirichlet:0.1")
    shown = call("sweep", *whole, "--dry-run")
    assert all(shown.stdout.count(way) == 2 for way in ways)
    assert "6 runs: about" in shown.stdout
    assert shown.stdout.count("dirichlet:0.1") == 3
    assert not Path(config.results).exists()


def test_the_screen(tmp_path: Path) -> None:
    config = tiny(tmp_path / "x.parquet", codecs="raw,uniform", error_bounds="1e-2", rounds=1)

    missing = ("--datasets", "digits,cifar10", "--data-dir", tmp_path)
    done = call("sweep", *flags(config), *missing)

    assert done.returncode == 0
    assert "cnn cifar10 raw seed 0: failed: DataError: " in done.stderr
    first, *finished = done.stderr.splitlines()
    assert first.startswith("4 runs: about ")
    assert first.endswith(" and 2 of unknown length")
    assert [line.partition(":")[0] for line in finished] == [f"{i} of 4" for i in (1, 2, 3, 4)]
    assert "x smaller up" in finished[1]
    assert "x both ways" in finished[1]
    assert "weights@0.01" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--jobs", "0"], "jobs must lie in"),
        (["--ways", "sketch into fetchsgd"], "fetchsgd needs sketch:rows=5,fixed=1, got 'sketch'"),
    ],
)
def test_what_is_refused(arguments: list[str], says: str) -> None:
    assert says in refuse("sweep", *arguments)


def workers_of(pid: int) -> list[int]:
    """The worker processes that a process has started."""
    return [
        child
        for child in children_of(pid)
        if b"fedsz.experiments.sweep_worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def children_of(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(holds: object, patience: float = 300.0) -> None:
    assert callable(holds)
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
