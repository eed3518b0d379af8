"""A run that goes on after its server's end gives the model it would have given, to the bit."""

from __future__ import annotations

import dataclasses
import shutil
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError
from fedsz.flower import LocalGrid, make_client_app
from fedsz.training.federation import federate, prepare
from fedsz.training.options import RunConfig, options_of
from fedsz.training.run_folder import (
    CHECKPOINT,
    CONFIG,
    MODEL,
    ROUNDS,
    Checkpoint,
    RunFolder,
    read_rounds,
    resumed_config,
)
from tests.conftest import files_of_at_most
from tests.fleets import TASK, federated, shares

CLIENTS, LENGTH = 3, 5
WAYS: dict[str, dict[str, Any]] = {
    "auto": {},
    "exact": {"update": "weights", "error_bound": 1e-3},
    "both ways": {"update": "delta+ef", "error_bound": "std:2", "downlink": "std:1"},
    "schedule": {"policy": "schedule:first=std:2,last=std:1", "update": "delta+ef"},
    "drawn": {"update": "randk:k=30%,own=1>qsgd"},
    "nested state": {"update": "adaptive>dgc>topk:k=5%>ternary"},
    "secure": {"secure_sum": 16, "downlink": "std:1"},
    "secure, few bits": {"secure_sum": 6},
    "no residual": {"update": "delta", "error_bound": "std:1", "downlink": "step:0.5"},
    "sampled": {"clients_per_round": 2},
}


class CrashError(Exception):
    """The end of a server, at a place that a test has chosen."""


def fleet() -> LocalGrid:
    return LocalGrid(make_client_app(), shares(CLIENTS, task=TASK))


def config_of(**way: Any) -> RunConfig:
    return RunConfig(task=TASK, rounds=LENGTH, min_clients=CLIENTS, threshold=0, **way)


def run(grid: LocalGrid, folder: RunFolder, config: RunConfig, crash: int | None = None) -> None:
    """Run to the end, or until round ``crash`` is over and nothing of it is written."""

    def keep(checkpoint: Checkpoint) -> None:
        if checkpoint.done.round == crash:
            raise CrashError
        RunFolder.keep(folder, checkpoint)

    with mock.patch.object(folder, "keep", keep):
        federate(grid, config, prepare(config), folder=folder)
    folder.finish()


def in_folder(config: RunConfig, path: Path) -> RunConfig:
    return dataclasses.replace(config, run_dir=str(path))


def model_in(path: Path) -> dict[str, np.ndarray]:
    return load_file(path / MODEL)


def assert_equal_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name


def resumed(path: Path, **given: Any) -> tuple[RunFolder, RunConfig]:
    config = resumed_config(path, given)
    return RunFolder.resume(path, config), config


def crashed(path: Path, grid: LocalGrid, config: RunConfig, at: int) -> None:
    folder = RunFolder.create(in_folder(config, path))
    with pytest.raises(CrashError):
        run(grid, folder, config, crash=at)
    folder.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_run_crashed_in_every_round_ends_with_the_model_of_one_that_was_not(
    tmp_path: Path, way: dict[str, Any]
) -> None:
    config = config_of(**way)
    whole = RunFolder.create(in_folder(config, tmp_path / "whole"))
    run(fleet(), whole, config)

    grid, path = fleet(), tmp_path / "crashed"
    crashed(path, grid, config, at=0)  # before there is a checkpoint
    for at in range(1, LENGTH + 1):
        folder, again = resumed(path)
        with pytest.raises(CrashError):
            run(grid, folder, again, crash=at)
        folder.close()
    folder, again = resumed(path)
    run(grid, folder, again)

    assert_equal_bits(model_in(path), model_in(whole.path))
    one, other = (list(read_rounds(p)) for p in (path, whole.path))
    assert [line.round for line in one] == list(range(LENGTH + 1))
    for line, same in zip(one, other, strict=True):
        masked = bool(config.secure_sum)
        assert told(line, masked=masked) == told(same, masked=masked)


def told(line: RoundRecord, *, masked: bool = False) -> Any:
    """Return what a round's line says but for what clocks say, and masks, which are never equal.

    Clients that kept their model are not sent it again, or ``sent_down`` would differ.
    """
    clients = [
        (c.node, masked or c.digest, c.sent_bytes, c.energy_fraction, c.residual_ratio)
        for c in line.clients
    ]
    sent = line.sent_down, line.sent_up
    return line.round, line.loss, line.decision, line.replies, line.failures, sent, clients


def test_a_finished_run_has_each_update_by_its_digest_and_is_not_resumed(tmp_path: Path) -> None:
    lines = federated(in_folder(config_of(), tmp_path), shares(CLIENTS, task=TASK))

    written = tomllib.loads((tmp_path / CONFIG).read_text())
    decided = {"update", "error_bound", "downlink", "rule", "threshold"}  # by the policy
    used = {*options_of("run"), *options_of("server")}
    assert used - written.keys() == decided | {"run_dir", "resume", "or_resume"}
    assert written.keys() <= used
    digests = [client.digest for line in lines for client in line.clients]
    assert len(set(digests)) == len(digests) == LENGTH * CLIENTS
    assert {len(digest) for digest in digests} == {64}
    with pytest.raises(ConfigError, match=f"the run in {tmp_path} has finished: {LENGTH} rounds"):
        resumed(tmp_path)


def test_a_round_tells_whom_it_asks() -> None:
    asked: list[list[int]] = []
    config = config_of(clients_per_round=2)
    grid = fleet()
    federate(grid, config, prepare(config), on_request=asked.append)

    assert [len(set(nodes)) for nodes in asked] == [2] * LENGTH
    assert set().union(*asked) <= set(grid.get_node_ids())


@pytest.mark.parametrize("left", ["nothing", "half a line", "the line"])
def test_what_a_crash_left_half_written_is_mended(tmp_path: Path, left: str) -> None:
    config, grid = config_of(), fleet()
    crashed(tmp_path, grid, config, at=3)
    before = (tmp_path / ROUNDS).read_bytes()
    lines = before.splitlines(keepends=True)
    last = {"nothing": b"", "half a line": lines[-1][:40], "the line": lines[-1]}[left]
    (tmp_path / ROUNDS).write_bytes(b"".join(lines[:-1]) + last)
    (tmp_path / MODEL).unlink()
    (tmp_path / f".{CHECKPOINT}.123").write_bytes(b"part")

    folder, _ = resumed(tmp_path)

    assert (tmp_path / ROUNDS).read_bytes() == before
    assert_equal_bits(model_in(tmp_path), dict(folder.checkpoint.model))
    assert not list(tmp_path.glob(f".{CHECKPOINT}.*"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped")
    crashed(path, fleet(), config_of(), at=3)
    return path


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "copy")


def test_a_checkpoint_that_is_not_whole_is_refused(copy: Path) -> None:
    data = (copy / CHECKPOINT).read_bytes()
    damaged = [(data[: int(share * len(data))], ".* bytes") for share in (0.0, 0.001, 0.5, 0.99)]
    for at in {*range(40), *range(40, len(data), len(data) // 50), len(data) - 1}:
        changed = bytearray(data)
        changed[at] ^= 0x10
        damaged.append((bytes(changed), ""))
    damaged.append((data[:8] + b"\7" + data[9:], ".*version 7; this release reads 1"))
    for given, says in damaged:
        (copy / CHECKPOINT).write_bytes(given)
        with pytest.raises(ConfigError, match=f"cannot resume from {copy}/checkpoint: {says}"):
            resumed(copy)


def test_a_checkpoint_of_another_run_is_refused(copy: Path, tmp_path: Path) -> None:
    crashed(tmp_path / "other", fleet(), config_of(seed=1), at=2)
    for name in (CHECKPOINT, ROUNDS):
        other = shutil.copytree(copy, tmp_path / name)
        shutil.copy(tmp_path / "other" / name, other / name)
        before = (other / ROUNDS).read_bytes()

        with pytest.raises(ConfigError, match="is of another run than"):
            resumed(other)

        assert (other / ROUNDS).read_bytes() == before


def test_what_cannot_be_resumed_is_refused_with_another_way_on(copy: Path, tmp_path: Path) -> None:
    first, _ = resumed(copy)
    with pytest.raises(ConfigError, match=f"another server works in {copy}"):
        resumed(copy)
    first.close()
    resumed(copy)[0].close()
    (copy / CHECKPOINT).unlink()
    with pytest.raises(ConfigError, match=f"no checkpoint; .* --initial {copy}/{MODEL}"):
        resumed(copy)
    with pytest.raises(ConfigError, match=f"cannot read {tmp_path}/{CONFIG}"):
        resumed(tmp_path)


def test_options_that_contradict_the_run_are_refused(copy: Path) -> None:
    with pytest.raises(ConfigError, match=r"--rounds 9 contradicts .*, which has 5"):
        resumed_config(copy, {"rounds": 9})
    assert resumed_config(copy, {"rounds": 5, "port": 1}).port == 1


def test_a_full_disk_ends_the_run_and_it_goes_on_with_equal_bits(tmp_path: Path) -> None:
    config = config_of()
    whole = RunFolder.create(in_folder(config, tmp_path / "whole"))
    run(fleet(), whole, config)
    grid, path = fleet(), tmp_path / "run"
    crashed(path, grid, config, at=3)
    before = (path / CHECKPOINT).read_bytes()
    folder, again = resumed(path)
    full = pytest.raises(ConfigError, match=f"cannot write {path}/checkpoint: File too large")
    with files_of_at_most(len(before) // 2), full:
        run(grid, folder, again)
    folder.close()

    assert (path / CHECKPOINT).read_bytes() == before
    assert not list(path.glob(".checkpoint.*"))
    folder, again = resumed(path)
    run(grid, folder, again)
    assert [line.round for line in read_rounds(path)] == list(range(LENGTH + 1))
    assert_equal_bits(model_in(path), model_in(whole.path))
