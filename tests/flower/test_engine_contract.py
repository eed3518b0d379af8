"""What holds on every engine: in this process, on the own link, and on Flower's own engines.

One app runs on all of them, `tests/engine_app`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs flwr[simulation]")

from tests.flower_engine import (
    LONG,
    ROOT,
    Running,
    environment,
    flwr_run,
    started,
    superlink,
    superlink_program,
    supernodes,
)

pytestmark = [pytest.mark.release, pytest.mark.repository, pytest.mark.slow]

APP = ROOT / "tests" / "engine_app"
CLIENTS = 3

# The app on Grids of fedsz, in a process of its own: an app is imported by its own name.
OF_FEDSZ = """
import json, sys, threading
from contract.client_app import app
from contract.server_app import run
from fedsz.flower import GrpcGrid, LocalGrid, run_client

engine, config, result = sys.argv[1], json.loads(sys.argv[2]), open(sys.argv[3], "w")
count = config["clients"]
places = [{"partition-id": i, "num-partitions": count} for i in range(count)]
if engine == "local":
    json.dump(run(LocalGrid(app, places, config), config), result)
else:
    with GrpcGrid("127.0.0.1", 0) as grid:
        address = f"127.0.0.1:{grid.port}"
        for i, place in enumerate(places):
            names = {"client_id": f"client-{i}", "node_config": place, "run_config": config}
            threading.Thread(target=run_client, args=(app, address), kwargs=names).start()
        json.dump(run(grid, config), result)
result.close()
"""


def config_of(**changes: Any) -> dict[str, Any]:
    defaults = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return defaults | {name.replace("_", "-"): value for name, value in changes.items()}


def result_of(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "result.json").read_text())
    return found


def on_grid_of_fedsz(engine: str, home: Path, **changes: Any) -> dict[str, Any]:
    paths, config = os.pathsep.join((str(ROOT), str(APP))), json.dumps(config_of(**changes))
    done = subprocess.run(
        [sys.executable, "-c", OF_FEDSZ, engine, config, str(home / "result.json")],
        env=environment(home) | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return result_of(home)


def on_simulation(home: Path, **changes: Any) -> dict[str, Any]:
    with superlink(home):
        flwr_run(APP, home, nodes=CLIENTS, **changes)
    return result_of(home)


def on_superlink(home: Path, **changes: Any) -> dict[str, Any]:
    with superlink(home, simulation=False) as address, supernodes(home, address, count=CLIENTS):
        flwr_run(APP, home, **changes)
    return result_of(home)


def test_every_engine_trains_the_same_by_the_two_lines(tmp_path: Path) -> None:
    """Evaluation and queries, too; sums differ by the order in which replies come."""
    folders = [tmp_path / name for name in ("local", "link", "simulation", "superlink")]
    for folder in folders:
        folder.mkdir()
    local, link = (on_grid_of_fedsz(folder.name, folder) for folder in folders[:2])
    results = [local, link, on_simulation(folders[2]), on_superlink(folders[3])]

    for result in results:
        assert result["answers"] == [0, 1, 2]
        assert result["accuracies"] == pytest.approx(local["accuracies"], abs=0.02)
        assert result["accuracies"][-1] > 0.9 > result["accuracies"][0]
        for ours, theirs in zip(result["rounds"], local["rounds"], strict=True):
            assert (ours["replies"], ours["failures"]) == (CLIENTS, [])
            for name in ("sent_up", "sent_down"):
                assert ours[name] == pytest.approx(theirs[name], rel=0.02)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("exact", [False, True])
def test_a_superlink_carries_ten_megabytes(exact: bool, tmp_path: Path) -> None:
    """Flower splits what is above 5 MB."""
    options = {"megabytes": 10.0, "rounds": 2, "fraction_evaluate": 0.0, "exact": exact}
    result = on_superlink(tmp_path, **options)

    assert [one["replies"] for one in result["rounds"]] == [CLIENTS, CLIENTS]
    assert all(one["failures"] == [] for one in result["rounds"])
    sent = result["rounds"][1]["sent_up"]
    assert sent > 1.5e7 if exact else sent < 3e6


def test_a_superlink_gives_up_a_late_client(tmp_path: Path) -> None:
    """It sleeps for longer than this test may take."""
    late = {
        "late_partition": 2,
        "late_seconds": 10.0 * LONG,
        "deadline_factor": 1.5,
    }
    result = on_superlink(tmp_path, **late, rounds=2, fraction_evaluate=0.0, queries=False)

    first, second = result["rounds"]
    assert (first["replies"], first["failures"]) == (3, [])
    assert second["replies"] == 2
    (why,) = second["failures"]
    assert "no reply in" in why


def test_a_supernode_that_was_killed_goes_on_from_its_folder(tmp_path: Path) -> None:
    """It has another node id then: it receives a key frame, and deltas after that."""
    options = {"megabytes": 1.0, "rounds": 5, "fraction_evaluate": 0.0, "deadline_factor": 1.5}
    with (
        superlink(tmp_path, simulation=False) as address,
        supernodes(tmp_path, address, count=CLIENTS) as nodes,
    ):
        run = Running(APP, tmp_path, **options, queries=False)
        run.until("[ROUND 2/5]")
        nodes[0].kill()
        nodes[0].start()
        run.end()

    result = result_of(tmp_path)
    replies = [one["replies"] for one in result["rounds"]]
    assert replies[0] == replies[-1] == CLIENTS
    key_frames = result["rounds"][0]["sent_down"]  # to all
    assert result["rounds"][-1]["sent_down"] < key_frames * 0.8


def test_after_a_superlink_was_killed_its_nodes_serve_the_next_run(tmp_path: Path) -> None:
    """Flower itself gives the first run up, also with a database."""
    database = "--database", str(tmp_path / "state.db")
    program = superlink_program(tmp_path, *database, simulation=False)
    with started(program), supernodes(tmp_path, program.address, count=CLIENTS):
        first = Running(APP, tmp_path, rounds=3, fraction_evaluate=0.0)
        first.until("[ROUND 2/3]")
        program.kill()
        program.start()
        flwr_run(APP, tmp_path, rounds=2, fraction_evaluate=0.0)

    assert [one["replies"] for one in result_of(tmp_path)["rounds"]] == [CLIENTS, CLIENTS]
