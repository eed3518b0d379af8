"""The tasks and apps of the docs, and the examples, as a user runs them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CONFIG, read_rounds
from tests.conftest import ROOT
from tests.snippets import named

pytestmark = [pytest.mark.repository, pytest.mark.slow]
LIMIT = 200.0  # seconds; far more than anything here takes on a busy machine


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(folder: Path, *options: str) -> tuple[list[float], list[float | None]]:
    """Losses and accuracies of `fedsz run`, whose clients are two processes."""
    command = ("-m", "fedsz", "run", "--run-dir", "out", "--clients", "2", *options)
    with started(folder, *command) as process:
        _, told = process.communicate(timeout=LIMIT)
    assert (process.returncode, told) == (0, "")
    rounds = list(read_rounds(folder / "out", RunConfig().compression))
    assert [done.replies for done in rounds[1:]] == [2] * (len(rounds) - 1)
    assert all(done.loss is not None for done in rounds)
    return [done.loss or 0.0 for done in rounds], [done.accuracy for done in rounds]


@pytest.mark.sampled(0)  # the tutorial's commands are run, and own tasks repeated in process
def test_the_task_of_the_tutorial_runs_and_its_run_can_be_repeated(tmp_path: Path) -> None:
    code = named("docs/tutorials/own-task.md", "digits_task.py")
    (tmp_path / "digits_task.py").write_text(code)
    losses, accuracies = run(tmp_path, "--task", "digits_task:Digits", "--rounds", "3")

    assert losses[-1] < losses[0] / 2
    assert accuracies[-1] is not None
    assert accuracies[-1] > 0.7
    assert tomllib.loads((tmp_path / "out" / CONFIG).read_text())["task"] == "digits_task:Digits"
    (tmp_path / "out").rename(tmp_path / "first")
    assert run(tmp_path, "--config", f"first/{CONFIG}") == (losses, accuracies)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["digits", "digits_sklearn"])
def test_the_examples_of_tasks_run(name: str, tmp_path: Path) -> None:
    source = ROOT / "examples" / "own_task" / f"{name}.py"
    (tmp_path / source.name).write_text(source.read_text())
    options = ("--task", f"{name}:Digits", "--rounds", "3", "--learning-rate", "0.05")
    losses, accuracies = run(tmp_path, *options)

    assert losses[-1] < losses[0] / 2
    assert (accuracies[-1] is None) == (name == "digits_sklearn")


def test_the_apps_of_the_docs_run_over_grpc(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for name in ("server.py", "client.py"):
        (tmp_path / name).write_text(named("docs/flower.md", name).replace("8080", port))
    with (
        started(tmp_path, "server.py") as server,
        started(tmp_path, "client.py", "0") as first,
        started(tmp_path, "client.py", "1") as second,
    ):
        out, log = server.communicate(timeout=LIMIT)
        assert server.returncode == 0, log
        assert [first.wait(LIMIT), second.wait(LIMIT)] == [0, 0]

    told = re.search(r"'loss': '?([\d.e+-]+)", out)
    assert told is not None, out
    assert float(told[1]) < 2.0  # log(10) is 2.3: what it starts from
