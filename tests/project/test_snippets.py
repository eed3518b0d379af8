"""Every block of Python and of commands in README and docs: run, or held against the program."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import click
import numpy as np
import pytest
from safetensors.numpy import save_file

from fedsz.cli import app, report
from tests.cli.test_cli import call
from tests.conftest import ROOT
from tests.flower_engine import LONG, environment, superlink
from tests.links import free_port
from tests.project.snippets import PAGES, Snippet, file_name, named, snippets

pytestmark = pytest.mark.repository
TUTORIALS = {  # and what it prints if all went well
    "docs/tutorials/compress-a-file.md": "back.pt: 2 tensors",
    "docs/tutorials/flower-app.md": "fedsz: round 2: 2 replies",
    "docs/tutorials/fleet-with-tls.md": "revoked",
    "docs/tutorials/lora.md": "fedsz: round 2: 2 replies",
    "docs/tutorials/own-task.md": "accuracy",
}
INSTALLS = re.compile(r"(pip install|python3 -m venv|\. \.venv/)")  # done already where tests run
PYTHON = [snippet for page in PAGES for snippet in snippets(page, "python")]


def plain(snippet: Snippet) -> bool:
    return not snippet.title and not file_name(snippet)


@pytest.mark.parametrize(
    "excerpt", [s for s in PYTHON if s.title], ids=lambda s: f"{s.page}: {s.title}"
)
def test_an_excerpt_stands_in_its_file(excerpt: Snippet) -> None:
    assert excerpt.code in (ROOT / excerpt.title).read_text("utf-8")


@pytest.mark.parametrize("page", sorted({s.page for s in PYTHON if plain(s)}))
def test_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is neither an excerpt nor a file, as one program for each page."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    program = tmp_path / "page.py"
    program.write_text("\n".join(s.code for s in PYTHON if s.page == page and plain(s)))

    runpy.run_path(str(program))


def test_files_of_python_are_run_elsewhere() -> None:
    """tests/project/test_readme.py runs them."""
    files = {(s.page, file_name(s)) for s in PYTHON if file_name(s)}

    assert files == {
        ("docs/flower.md", "client.py"),
        ("docs/flower.md", "server.py"),
        ("docs/tutorials/own-task.md", "digits_task.py"),
    }


def commands(page: str) -> Iterator[list[str]]:
    """Yield the commands of a page, as a shell splits them."""
    for snippet in snippets(page, "sh", "console"):
        for line in snippet.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def check(words: list[str]) -> None:
    """Raise click.UsageError for a command of fedsz, or an option, that does not exist."""
    command: click.Command = app
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    if command.name == "paper":
        command = report.paper_command()
    context = click.Context(command)
    command.make_parser(context).parse_args(list(words))


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands(page))])
def test_commands_exist(page: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *words in commands(page):
        if program == "fedsz":
            check(words)
        elif program == "make":
            assert set(words) <= targets
        elif program == "python" and words[0] == "-m":
            assert (ROOT / (words[1].replace(".", "/") + ".py")).exists(), words
        elif program == "python":
            assert (ROOT / words[0]).exists(), words


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(click.NoSuchOption):
        check(["keys", "init", "--hots", "fl.example.org"])


def script(page: str) -> str:
    """A page's commands as one script. Those of terminals run side by side, and must end well."""
    lines, waits = ["set -e"], "for pid in $pids; do wait $pid; done; pids="
    for snippet in snippets(page, "sh"):
        code = "\n".join(x for x in snippet.code.splitlines() if not INSTALLS.match(x))
        terminal = snippet.title.startswith("Terminal")
        lines.append(f'( {code}\n) & pids="$pids $!"' if terminal else f"{waits}\n{code}")
    return "\n".join([*lines, waits])


def test_every_tutorial_is_run() -> None:
    assert sorted(TUTORIALS) == [page for page in PAGES if page.startswith("docs/tutorials/")]


def test_files_are_compressed_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    save_file({"fc.weight": weights}, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    (wanted,) = (s.code for s in snippets("README.md", "sh") if "fedsz compress" in s.code)
    for line in wanted.splitlines():
        program, *words = shlex.split(line)
        assert (program, call(*words).returncode) == ("fedsz", 0)

    assert (tmp_path / "model.pt").exists()


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: Path(page).stem)
def test_a_tutorial_does_what_it_says(page: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    wanted = script(page).replace("8080", str(free_port()))
    if "transformers" in page or "lora" in page:
        pytest.importorskip("transformers")
        pytest.importorskip("peft")
    flower = "flwr run" in wanted
    if flower:
        pytest.importorskip("ray", reason="needs flwr[simulation]")
    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for snippet in snippets(page, "python"):
        if name := file_name(snippet):
            (tmp_path / name).write_text(named(page, name))
    with superlink(home) if flower else nullcontext():
        shell = subprocess.Popen(
            ["bash", "-c", wanted],  # noqa: S607 - as a reader's shell
            cwd=tmp_path,
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            told, _ = shell.communicate(timeout=LONG)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, told
    assert TUTORIALS[page] in told
