"""Policies in a run: every decision is in its round's row, and comes out again."""

from __future__ import annotations

import json
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
from fedsz.training.run_folder import ROUNDS, decisions
from tests.fleets import federated, shares

CLIENTS = 2


def run(folder: Path, **options: Any) -> list[RoundRecord]:
    """A run on digits, with the folder that a server leaves."""
    size = {"rounds": 3, "samples": 400, "test_samples": 200}
    return federated(RunConfig(run_dir=str(folder), **size, **options), shares(CLIENTS))


@pytest.fixture(scope="module")
def of_auto(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RoundRecord]]:
    """The folder of a run, which nobody changes, and its rows."""
    folder = tmp_path_factory.mktemp("auto") / "run"
    return folder, run(folder, policy="auto")


@pytest.fixture
def folder(of_auto: tuple[Path, list[RoundRecord]], tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(of_auto[0], tmp_path / "run"))


def decided_again(folder: Path, rows: list[RoundRecord]) -> None:
    assert rows[0].decision is None
    assert all(row.decision is not None and row.replies == CLIENTS for row in rows[1:])
    decided = list(decisions(folder))
    assert [one.record.round for one in decided] == [1, 2, 3]
    assert all(one.same for one in decided)


def test_what_is_decided_is_what_is_done(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", policy="schedule:first=std:8,last=std:0.5")
    decided_again(tmp_path / "run", rows)
    bounds = [row.decision.config.bound.value for row in rows[1:] if row.decision]
    assert bounds == pytest.approx([8, 2, 0.5])
    sent = [row.sent_up for row in rows[1:]]
    assert sent[0] < sent[1] < sent[2]


def test_auto_needs_no_other_option(of_auto: tuple[Path, list[RoundRecord]]) -> None:
    decided_again(*of_auto)
    _, rows = of_auto
    config = rows[-1].decision.config
    assert (config.update, config.threshold, config.rule) == ("delta+ef", 0, "shape")
    assert config.error_bound.startswith("step:")
    assert rows[-1].raw_up > 15 * rows[-1].sent_up
    assert rows[-1].raw_down > 10 * rows[-1].sent_down
    assert 0.4 < rows[-1].energy_fraction < 1
    assert 0.1 < rows[-1].residual_ratio < 1


def test_the_command_tells_what_and_why(folder: Path) -> None:
    table = CliRunner().invoke(app, ["decisions", str(folder)], env={"COLUMNS": "80"})
    lines = CliRunner().invoke(app, ["decisions", str(folder), "--json"])

    assert table.exit_code == lines.exit_code == 0
    assert "3 decisions: the same again" in table.output
    told = [json.loads(line) for line in lines.output.splitlines()]
    assert [one["round"] for one in told] == [1, 2, 3]
    assert all(one["decision"] == one["again"] and one["decision"]["why"] for one in told)
    heads, *rows = table.output.splitlines()
    assert heads.split()[0] == "round"
    assert max(map(len, [heads, *rows[:3]])) <= 80
    assert rows[3:6] == [f"round {one['round']}: {one['decision']['why']}" for one in told]


def test_a_record_that_was_changed_shows(folder: Path) -> None:
    rounds = folder / ROUNDS
    rows = [json.loads(line) for line in rounds.read_text().splitlines()]
    rows[2]["decision"]["config"]["error_bound"] = "std:9"
    rounds.write_text("".join(json.dumps(row) + "\n" for row in rows))

    result = CliRunner().invoke(app, ["decisions", str(folder)])

    assert result.exit_code == 1
    assert "differ in round 2" in result.output


def test_a_line_that_a_crash_cut_short_is_left_out(folder: Path) -> None:
    path = folder / ROUNDS
    path.write_bytes(path.read_bytes()[:-9])

    assert [one.record.round for one in decisions(folder)] == [1, 2]


def test_a_folder_that_holds_no_run_is_refused(folder: Path, tmp_path: Path) -> None:
    for damage in ("\n", "{'a': 1}\n"):
        (folder / ROUNDS).write_text(damage)
        with pytest.raises(ConfigError, match="cannot read"):
            list(decisions(folder))
    with pytest.raises(ConfigError, match="cannot read"):
        list(decisions(tmp_path))


@pytest.mark.parametrize("policy", ["brave", "auto:depth=3", "schedule", "auto+"])
def test_a_policy_that_does_not_exist_is_refused_before_anything_starts(policy: str) -> None:
    with pytest.raises(ConfigError, match=r"policy|schedule"):
        prepare(RunConfig(policy=policy))
