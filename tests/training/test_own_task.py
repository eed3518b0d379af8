"""Tasks of one's own: how they are found, checked and run; mistakes are one line."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedsz.cli import app
from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError, TaskError
from fedsz.experiments.results import SWEEP, read
from fedsz.report.source import read_source
from fedsz.training import apps
from fedsz.training.options import RunConfig
from fedsz.training.task import client_task, load_task
from tests.fleets import decided_again, federated, shares

MEAN = '''
import numpy as np

TRUE = np.linspace(-1, 1, 3000, dtype=np.float32).reshape(60, 50)


class Mean:
    """The mean of vectors that differ from client to client: its loss is the squared distance."""

    def build_model(self):
        return {"mean.weight": np.zeros((60, 50), np.float32)}

    def load_share(self, index, count):
        return np.random.default_rng(index).normal(TRUE, 0.1, (20, 60, 50)).astype(np.float32)

    def load_test(self):
        return TRUE

    def train(self, model, share):
        model["mean.weight"] += np.float32(0.5) * (share.mean(0) - model["mean.weight"])
        return {"examples": len(share)}

    def evaluate(self, model, test):
        return {"loss": np.square(model["mean.weight"] - test).mean()}
'''

MAKER = "    def __init__(self, config):\n        self.config = config\n"
STATE = 'return {"mean.weight": np.zeros((60, 50), np.float32)}'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module `mine`; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "mine.py").write_text(MEAN)
    apps._loaded.cache_clear()  # a client keeps the task of its run
    yield tmp_path
    for name in ("mine", "bad"):
        sys.modules.pop(name, None)


def run(**options: Any) -> list[RoundRecord]:
    """Train the task of the module `mine` with two clients that were started with it."""
    config = RunConfig(task="mine:Mean", **options)
    rows = federated(config, shares(2, task="mine:Mean"))
    decided_again(config, rows)
    return rows


def test_arrays_are_learned_without_torch_and_without_an_accuracy() -> None:
    start, *rounds = run(rounds=4)

    assert rounds[-1].loss < start.loss / 20
    for done in rounds:
        assert (done.accuracy, done.replies, done.failures) == (None, 2, [])
        assert done.ratio > 3


@pytest.mark.parametrize(
    "policy",
    [
        *("fixed", "auto", "layers", "gate+accuracy", "dc2:rule=aimd,seconds=10"),
        "schedule:first=std:3,last=std:1+accuracy",
    ],
)
def test_every_policy_decides_without_an_accuracy_and_again(policy: str, folder: Path) -> None:
    run(rounds=4, policy=policy, run_dir="out", update="delta+ef", error_bound="std:1")

    (found,) = read_source(folder / "out")
    assert all(math.isnan(accuracy) for accuracy in found.accuracies)
    shown = CliRunner().invoke(app, ["decisions", "out"])
    assert (shown.exit_code, shown.exception) == (0, None)


def test_a_sweep_of_a_task_without_an_accuracy() -> None:
    command = "sweep --task mine:Mean --codecs raw,uniform --error-bounds 1e-2 --rounds 2"
    shown = CliRunner().invoke(app, [*command.split(), "--clients=2", "--results=s.parquet"])

    assert shown.exit_code == 0, shown.output
    assert "loss" in shown.output
    rows = read(Path("s.parquet"), SWEEP).to_pylist()
    assert {row["error"] for row in rows} == {None}
    assert {(row["task"], row["accuracy"]) for row in rows} == {("mine:Mean", None)}
    assert all(run.error == "" for run in read_source(Path("s.parquet")))


def test_a_class_and_functions_are_tasks_and_may_be_told_the_options(
    folder: Path,
) -> None:
    more = "def make(): return Mean(None)\ndef made_of(config): return Mean(config)\n"
    (folder / "mine.py").write_text(f"{MEAN}{MAKER}{more}")
    load_task(RunConfig(task="tabular"))
    assert str(folder) not in sys.path  # a task of fedsz takes nothing from there

    for name, told in (("Mean", True), ("make", False), ("made_of", True)):
        config = RunConfig(task=f"mine:{name}", epochs=3, data_dir="here")
        loaded: Any = load_task(config)
        assert loaded.build_model().keys() == {"mean.weight"}
        assert loaded.task.config == (config if told else None)
    assert str(folder) in sys.path


def test_equal_seeds_give_equal_runs_of_a_task_that_draws(folder: Path) -> None:
    drawn = MEAN.replace("np.zeros((60, 50), np.float32)", "np.random.rand(60, 50).astype('f')")
    (folder / "mine.py").write_text(
        drawn.replace("share.mean(0)", "np.random.permutation(share)[0]")
    )
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    losses = [[done.loss for done in run(rounds=2, seed=seed)] for seed in (1, 1, 2)]

    assert losses[0] == losses[1] != losses[2]
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


@pytest.mark.parametrize(
    ("task", "source", "says"),
    [
        ("image", "", "no task 'image'; have images, text, tabular, and module:Class of your own"),
        ("mine:", "", "no task 'mine:'; have images"),
        ("no:Mean", "", "no module 'no' in .* or among the installed packages"),
        ("mine.deeper:Mean", "", "no module 'mine.deeper'|'mine' is not a package"),
        ("mine:Men", "", r"module mine has no 'Men' \(did you mean 'Mean'\?\)"),
        ("mine:TRUE", "", "is a ndarray, which is no task"),
        ("bad:A", "import nowhere", "cannot import bad: ModuleNotFoundError: No mod.* 'nowhere'"),
        ("bad:A", "1 / 0", r"cannot import bad: ZeroDivisionError.* \(bad.py, line 1\)"),
        ("bad:A", "class A(:", "cannot import bad: SyntaxError"),
        ("bad:A", "class A:\n    def train(self, model, share): ...", "no method 'build_model'"),
        ("bad:A", "class A:\n    def __init__(self, path, size): ...", "cannot be made: TypeError"),
        ("bad:A", "class A:\n    def __init__(self): self.x", "cannot be made: AttributeError"),
    ],
)
def test_what_is_no_task_is_one_line(task: str, source: str, says: str, folder: Path) -> None:
    (folder / "bad.py").write_text(source)
    with pytest.raises((ConfigError, TaskError), match=says) as caught:
        load_task(RunConfig(task=task))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (STATE, "pass", "a NoneType is no model"),
        (STATE, "return {}", "without arrays"),
        ("np.zeros((60, 50), np.float32)", "[0.0]", r"state_dict\['mean.weight'\] is a list"),
        ('return {"loss"', 'return {"lost"', "evaluate must return 'loss', a number; got lost"),
        ('return {"loss":', 'return {"accuracy": 97.2, "loss":', r"in \[0, 1\], got 97.2"),
        ('return {"loss":', 'return {"loss": "low"} or {"loss":', "got 'low' for 'loss'"),
        ('return {"loss":', "return 1.0\n        {1:", "return a dict of numbers, got a float"),
        ("return TRUE", "open('nowhere')", r"load_test failed: FileNotFo.*mine.py, line 17"),
    ],
)
def test_a_method_that_is_wrong_is_one_line_with_its_name(
    before: str, after: str, says: str, folder: Path
) -> None:
    assert before in MEAN
    (folder / "mine.py").write_text(MEAN.replace(before, after))
    with pytest.raises((ConfigError, TaskError), match=says) as caught:
        run(rounds=1)

    assert "mine:Mean" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ("{}", "train must return 'examples', a whole number from 1 on; got nothing"),
        ("{'examples': 0}", "got 0"),
        ("{'examples': 1.5}", "got 1.5"),
        ("{'examples': float('inf')}", "got inf"),
        ("None", "train must return a dict of numbers, got a NoneType"),
        ("undefined", r"train failed: NameError: name 'undefined' .*\(mine.py, line 21\)"),
    ],
)
def test_a_client_whose_training_is_wrong_says_so(report: str, says: str, folder: Path) -> None:
    wrong = MEAN.replace('{"examples": len(share)}', report)
    (folder / "mine.py").write_text(wrong)
    *_, last = run(rounds=1)

    assert last.replies == 0
    for failure in last.failures:
        assert re.search(says, failure.reason), failure.reason


def test_no_server_makes_a_client_import_what_it_was_not_started_with(folder: Path) -> None:
    *_, last = federated(RunConfig(task="mine:Mean", rounds=1), shares(2))
    (reason,) = {failure.reason for failure in last.failures}
    assert "the server asks for task 'mine:Mean', which is no task of fedsz" in reason

    marker = folder / "imported"
    (folder / "bad.py").write_text(f"open({str(marker)!r}, 'w')")
    for have in ("", "images"):
        with pytest.raises(ConfigError, match="the server asks for"):
            client_task(have, "bad:Task")
    assert not marker.exists()


def test_no_server_leads_a_client_to_other_files(folder: Path) -> None:
    config = RunConfig(task="mine:Mean", rounds=1, dataset="../secret")
    for more, replies in (({}, 0), ({"dataset": "../secret"}, 2)):
        *_, last = federated(config, shares(2, task="mine:Mean", **more))

        assert last.replies == replies
        assert all("no data set '../secret'" in one.reason for one in last.failures)


@pytest.mark.parametrize(
    ("have", "asked", "runs"),
    [
        ("", "text", "text"),
        ("text", "text", "text"),
        ("mine:Mean", "mine:Mean", "mine:Mean"),
        ("here:Mean", "there:Mean", "here:Mean"),  # each has its own way to the data
        ("images", "text", None),
        ("mine:Mean", "images", None),
        ("images", "mine:Mean", None),
    ],
)
def test_a_client_runs_the_task_it_has(have: str, asked: str, runs: str | None) -> None:
    says = f"has task '{have}', the server asks for '{asked}'"
    with nullcontext() if runs else pytest.raises(ConfigError, match=says):
        assert client_task(have, asked) == runs
