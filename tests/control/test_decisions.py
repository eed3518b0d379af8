"""Policies in a run: every decision is in its round's row, and comes out again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from fedsz.cli import app
from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError
from fedsz.training.federation import prepare
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import ROUNDS, read_rounds
from tests.fleets import decided_again, federated, shares

CLIENTS = 2


def run(folder: Path, **options: Any) -> list[RoundRecord]:
    """A run on digits, with the folder that a server leaves; each round is decided again."""
    size = {"rounds": 3, "samples": 400, "test_samples": 200}
    config = RunConfig(run_dir=str(folder), **size, **options)
    rows = federated(config, shares(CLIENTS))
    assert all(row.replies == CLIENTS for row in rows[1:])
    decided_again(config, rows)
    return rows


@pytest.fixture(scope="module")
def of_auto(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RoundRecord]]:
    """The folder of a run, which nobody changes, and its rows."""
    folder = tmp_path_factory.mktemp("auto") / "run"
    return folder, run(folder, policy="auto")


@pytest.fixture
def folder(of_auto: tuple[Path, list[RoundRecord]], tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(of_auto[0], tmp_path / "run"))


def test_what_is_decided_is_what_is_done(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", policy="schedule:first=std:8,last=std:0.5")
    bounds = [row.decision.config.bound.value for row in rows[1:] if row.decision]
    assert bounds == pytest.approx([8, 2, 0.5])
    sent = [row.sent_up for row in rows[1:]]
    assert sent[0] < sent[1] < sent[2]


def test_auto_needs_no_other_option(of_auto: tuple[Path, list[RoundRecord]]) -> None:
    _, rows = of_auto
    config = rows[-1].decision.config
    assert (config.update, config.threshold, config.rule) == ("delta+ef", 0, "shape")
    assert config.error_bound.startswith("step:")
    assert rows[-1].raw_up > 15 * rows[-1].sent_up
    assert rows[-1].raw_down > 10 * rows[-1].sent_down
    assert 0.4 < rows[-1].energy_fraction < 1
    assert 0.1 < rows[-1].residual_ratio < 1


def test_layers_measure_what_they_need(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", policy="layers", update="delta", error_bound="std:1")
    assert rows[1].sensitivity.keys() <= rows[1].spread.keys()
    assert rows[1].sensitivity
    assert len(set(rows[3].decision.config.factors.values())) > 1


def test_the_command_tells_what_and_why(of_auto: tuple[Path, list[RoundRecord]]) -> None:
    folder, rows = of_auto
    told = CliRunner().invoke(app, ["decisions", str(folder)])

    assert told.exit_code == 0
    heads, *lines = told.output.splitlines()
    assert heads.split()[0] == "round"
    assert max(map(len, [heads, *lines[:3]])) <= 80
    assert lines[3:] == [f"round {row.round}: {row.decision.why}" for row in rows if row.decision]


def test_a_line_that_a_crash_cut_short_is_left_out(folder: Path) -> None:
    path = folder / ROUNDS
    path.write_bytes(path.read_bytes()[:-9])

    assert [record.round for record in read_rounds(folder)] == [0, 1, 2]


def test_a_folder_that_holds_no_run_is_refused(folder: Path, tmp_path: Path) -> None:
    for damage in ("\n", "{'a': 1}\n"):
        (folder / ROUNDS).write_text(damage)
        with pytest.raises(ConfigError, match="cannot read"):
            list(read_rounds(folder))
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_rounds(tmp_path))


@pytest.mark.parametrize("policy", ["brave", "auto:depth=3", "schedule", "auto+"])
def test_a_policy_that_does_not_exist_is_refused_before_anything_starts(policy: str) -> None:
    with pytest.raises(ConfigError, match=r"policy|schedule"):
        prepare(RunConfig(policy=policy))
