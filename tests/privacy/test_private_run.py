"""A run under differential privacy: what it has spent is told, ends it, and outlives a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsz import extras
from fedsz.cli.screen import RunTable
from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError
from fedsz.training.events import Listening
from fedsz.training.federation import privacy_of, strategy_of
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CHECKPOINT, RELEASED, ROUNDS, RunFolder, read_rounds
from tests.training.test_resume import (
    LENGTH,
    CrashError,
    assert_equal_bits,
    config_of,
    crashed,
    fleet,
    in_folder,
    model_in,
    resumed,
    run,
)

pytestmark = pytest.mark.skipif(
    bool(extras.missing("dp_accounting")), reason="dp-accounting is not installed"
)


SUM: dict[str, Any] = {"dp_noise_at": "sum", "secure_sum": 20, "dp_clip": 1}


def rounds_in(path: Path, config: RunConfig) -> list[RoundRecord]:
    return list(read_rounds(path))


def test_a_crash_forgets_nothing_that_was_spent(tmp_path: Path) -> None:
    """With a seed for its noise, the run also ends with the same model, to the bit."""
    config = config_of(dp_epsilon=80, dp_seed=3, dp_sampling=0.9)
    whole = RunFolder.create(in_folder(config, tmp_path / "whole"))
    run(fleet(), whole, config)
    grid, path = fleet(), tmp_path / "crashed"

    crashed(path, grid, config, at=3)
    folder, again = resumed(path)
    run(grid, folder, again)

    assert_equal_bits(model_in(path), model_in(tmp_path / "whole"))
    spent = [[r.epsilon for r in rounds_in(at, config)] for at in (path, tmp_path / "whole")]
    assert spent[0] == spent[1] == sorted(spent[0])
    assert spent[0][0] == 0
    assert spent[0][-1] == pytest.approx(80, rel=1e-2)
    last = json.loads((path / ROUNDS).read_text().splitlines()[-1])
    assert last["delta"] == 1e-5
    assert last["clipping_norm"] == 0.5


def test_a_round_that_a_crash_cut_short_is_spent_where_clients_add_the_noise(
    tmp_path: Path,
) -> None:
    """They may be asked it again with nothing kept, and add other noise: each time counts."""
    config = config_of(dp_epsilon=1e3, dp_noise=2.0, dp_noise_at="client", dp_clip=1)
    plan, path, grid = privacy_of(config), tmp_path / "run", fleet()
    assert plan is not None

    crashed(path, grid, config, at=2)
    for _ in range(2):
        folder, again = resumed(path)
        with pytest.raises(CrashError):
            run(grid, folder, again, crash=2)
        folder.close()
    folder, again = resumed(path)
    run(grid, folder, again)

    asked = [0, 1, 5, 6, 7, 8]  # the second round four times
    assert [r.epsilon for r in rounds_in(path, config)] == [plan.spent(n) for n in asked]
    assert not {CHECKPOINT, RELEASED} & {file.name for file in path.iterdir()}


def test_a_secure_sum_is_not_made_twice_of_a_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that kept their state refuse it; what was asked again is spent again, and the run
    goes on with its next round.
    """
    config = config_of(dp_epsilon=1e3, dp_noise=2.0, **SUM)
    plan, path, grid = privacy_of(config), tmp_path / "run", fleet()
    assert plan is not None

    crashed(path, grid, config, at=2)
    assert "has added its share" not in caplog.text
    folder, again = resumed(path)
    run(grid, folder, again)

    rounds = rounds_in(path, config)
    spent = [plan.spent(n) for n in (0, 1, 3, 4, 5, 6)]
    assert [r.epsilon for r in rounds] == spent
    assert [bool(r.uncounted) for r in rounds] == [False, False, True, False, False, False]
    assert "this client has added its share of noise in this round before" in caplog.text


def test_a_damaged_account_of_what_was_spent_is_not_passed_over(tmp_path: Path) -> None:
    config = config_of(dp_epsilon=1e3, dp_noise=2.0, dp_noise_at="client", dp_clip=1)
    crashed(tmp_path, fleet(), config, at=2)
    whole = (tmp_path / RELEASED).read_bytes()
    (tmp_path / RELEASED).write_bytes(whole[:-20])

    with pytest.raises(ConfigError, match=f"cannot resume from {tmp_path / RELEASED}"):
        resumed(tmp_path)


def test_a_budget_ends_the_run_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = in_folder(config_of(dp_epsilon=15, dp_noise=0.6, dp_clip=1), tmp_path / "run")
    folder = RunFolder.create(config)
    run(fleet(), folder, config)

    *before, last = rounds_in(tmp_path / "run", config)
    with RunTable() as table:
        table.show(Listening(1, "here", 1, privacy=str(privacy_of(config))))
        for record in (*before, last):
            table.show(record)

    assert 1 < last.round < LENGTH
    assert last.ended == "the privacy budget of epsilon 15 has no further round"
    assert not any(record.ended for record in before)
    shown = capsys.readouterr().out
    assert "differential privacy: epsilon 15 at delta 1e-05; noise of 0.6 clipping norms" in shown
    assert "what is clipped off is not fed back" in " ".join(shown.split())
    assert f"the run ends after round {last.round}: {last.ended}" in " ".join(shown.split())
    assert "eps." in shown
    assert "resid." not in shown
    with pytest.raises(ConfigError, match=f"has finished: {last.round} rounds"):
        resumed(tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"dp_epsilon": 0, "dp_noise": 1}, "needs a budget"),
        ({"buffer": 3}, "--buffer cannot be used with --dp-epsilon"),
        ({"clients_per_round": 2}, "drawn by --dp-sampling"),
        ({"min_replies": 2}, "min_replies cannot be above 1"),
        ({"update": "feedback>topk"}, "without feedback"),
        ({"dp_noise_at": "moon"}, "server, client, sum; not at 'moon'"),
        ({"dp_epsilon": 1, "dp_noise": 0.5}, r"a round alone spends epsilon 9\.997 at delta"),
        ({"dp_clip": -1}, "dp_clip must be a number from 1e-30"),
        ({"secure_sum": 16}, "--secure-sum with --dp-epsilon needs --dp-noise-at sum"),
        ({"secure_sum": 16, "dp_noise_at": "client", "dp_clip": 1}, "needs --dp-noise-at sum"),
        ({"dp_noise_at": "sum"}, "--dp-noise-at sum needs --secure-sum"),
        (SUM | {"update": "feedback>topk"}, "without feedback"),
    ],
    ids=str,
)
def test_options_that_break_the_promise_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        strategy_of(RunConfig(**{"dp_epsilon": 8, "rounds": 10, **wrong}))


def test_clients_that_noise_may_feed_back_what_compression_leaves_out() -> None:
    """It has left out of what was noised already: to feed that back reveals nothing more."""
    config = RunConfig(
        dp_epsilon=8, dp_noise_at="client", dp_clip=1, update="feedback>topk", rounds=10
    )

    assert strategy_of(config).quorum.min_replies == 1
