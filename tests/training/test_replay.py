"""The updates that a run keeps make its model again, to the bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedsz.training.options import RunConfig
from fedsz.training.run_folder import MODEL, ROUNDS, UPDATES
from fedsz.transport.node import node_id
from tests.fleets import TASK, federated, shares

pytest.importorskip("benchmarks", reason="needs benchmarks")
from benchmarks import replay as replaying
from benchmarks import soak
from benchmarks.replay import compare, rounds_of

pytestmark = pytest.mark.repository
CLIENTS, LENGTH = 4, 3


@pytest.fixture(scope="module", params=["weights", "delta+ef"])
def whole(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return run_of(tmp_path_factory.mktemp("whole") / "run", update=request.param)


@pytest.fixture
def run(tmp_path: Path, whole: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def run_of(path: Path, **options: Any) -> Path:
    config = RunConfig(
        task=TASK, rounds=LENGTH, threshold=0, run_dir=str(path), keep_updates=True, **options
    )
    federated(config, shares(CLIENTS, task=TASK))
    return path


def test_the_updates_of_a_run_make_its_model(run: Path) -> None:
    assert compare(run) == CLIENTS * LENGTH
    listed = [client.digest for row in rounds_of(run) for client in row.clients]
    assert sorted(listed) == sorted(path.name for path in (run / UPDATES).iterdir())
    assert all(client.weight == 200 for row in rounds_of(run) for client in row.clients)


@pytest.mark.parametrize("update", ["weights", "delta"])
def test_clipped_updates_make_the_model_as_well(tmp_path: Path, update: str) -> None:
    run = run_of(tmp_path / "run", update=update, max_update_norm="0.9x")

    clipped = [client for row in rounds_of(run) for client in row.clients if client.scale < 1]

    assert clipped
    assert compare(run) == CLIENTS * LENGTH


def test_a_run_whose_rounds_overlap_is_not_added_up(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", buffer=2)

    with pytest.raises(replaying.Difference, match="buffer"):
        compare(run)


def test_a_model_of_other_updates_is_noticed(run: Path) -> None:
    model = bytearray((run / MODEL).read_bytes())
    model[-1] ^= 1
    (run / MODEL).write_bytes(model)

    with pytest.raises(replaying.Difference, match="another model"):
        compare(run)


@pytest.mark.parametrize("how", ["missing", "damaged", "another", "twice", "of another round"])
def test_an_update_that_does_not_fit_is_noticed(run: Path, how: str) -> None:
    path = run / ROUNDS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last, first = lines[-1]["clients"], lines[1]["clients"]
    files = run / UPDATES
    if how == "missing":
        (files / last[0]["digest"]).unlink()
    elif how == "damaged":
        with (files / last[0]["digest"]).open("r+b") as file:
            file.write(b"?")
    elif how == "another":
        (files / last[0]["digest"]).write_bytes((files / last[1]["digest"]).read_bytes())
    elif how == "twice":
        last.append(last[0])
    else:
        last[0] = first[0]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    with pytest.raises(replaying.Difference):
        compare(run)


def test_replies_that_came_and_that_no_round_lists_are_lost(run: Path) -> None:
    listed = {row.round: {int(c.node) for c in row.clients} for row in rounds_of(run)}

    whole = soak.account(run, LENGTH, listed)
    less = soak.account(run, LENGTH, {**listed, 2: {*listed[2], 12345}})

    assert (whole["lost"], less["lost"]) == (0, 1)
    assert whole["updates"] == whole["replayed"] == CLIENTS * LENGTH
    assert whole["counted_twice"] == whole["kept_but_not_counted"] == 0


@pytest.mark.parametrize("how", ["twice", "hostile", "a round less"])
def test_a_client_that_must_not_count_is_noticed(run: Path, how: str) -> None:
    path = run / ROUNDS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if how == "a round less":
        del lines[2]
    else:
        first, second = lines[1]["clients"][:2]
        second["node"] = first["node"] if how == "twice" else str(node_id("hostile0"))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    with pytest.raises(replaying.Difference, match="round"):
        soak.account(run, LENGTH, {})
