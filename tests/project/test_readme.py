"""The tasks and apps of the docs, and the examples, as a user runs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fedsz.training.options import RunConfig
from tests.conftest import ROOT
from tests.fleets import Fleet, federated, shares
from tests.links import free_port
from tests.project.snippets import named

pytestmark = pytest.mark.repository
LIMIT = 200.0  # seconds; far more than anything here takes on a busy machine


@pytest.mark.parametrize(
    ("name", "learning_rate"), [("digits_task", 0.01), ("digits", 0.05), ("digits_sklearn", 0.05)]
)
def test_tasks_of_the_tutorial_and_of_examples_learn(
    name: str, learning_rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "digits_task":
        code = named("docs/tutorials/own-task.md", "digits_task.py")
    else:
        code = (ROOT / "examples" / "own_task" / f"{name}.py").read_text()
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    task = f"{name}:Digits"
    config = RunConfig(task=task, rounds=3, learning_rate=learning_rate)

    start, *rounds = federated(config, shares(2, task=task))

    assert [done.replies for done in rounds] == [2] * 3
    assert rounds[-1].loss < start.loss / 2
    assert (rounds[-1].accuracy is None) == (name == "digits_sklearn")
    assert name != "digits_task" or rounds[-1].accuracy > 0.7


@pytest.mark.slow
def test_the_apps_of_the_docs_run_over_grpc(fleet: Fleet) -> None:
    port = str(free_port())
    for name in ("server.py", "client.py"):
        (fleet.folder / name).write_text(named("docs/flower.md", name).replace("8080", port))
    server = fleet.run("server.py")
    clients = [fleet.run("client.py", i) for i in (0, 1)]

    out, log = server.communicate(timeout=LIMIT)
    assert server.returncode == 0, log
    assert [client.wait(LIMIT) for client in clients] == [0, 0]
    told = re.search(r"'loss': '?([\d.e+-]+)", out)
    assert told, out
    assert float(told[1]) < 2.0  # log(10) is 2.3: what it starts from
