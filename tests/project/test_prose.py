"""The linter of prose finds what it should, and nothing in the pages that are held to it."""

from __future__ import annotations

import inspect
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import click
import pytest

import fedsz
import fedsz.flower
from fedsz.cli import app
from fedsz.training.options import options
from tests.conftest import ROOT

pytestmark = pytest.mark.repository
LINTER = ROOT / "docs" / "lint_prose.py"


@pytest.fixture(scope="module")
def lint() -> Any:
    return SimpleNamespace(**runpy.run_path(str(LINTER)))


def test_the_pages_are_plain() -> None:
    done = subprocess.run(
        [sys.executable, str(LINTER)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 200


def test_what_is_not_plain_is_found_in_prose_alone(lint: Any) -> None:
    found = {
        "A word " * 18 + ".": "a sentence of 36 words",
        "- One.\n- Errors pile up.\n": "'pile up': write accumulate",
        "They\npile\nup.": "'pile up': write accumulate",
    }
    for page, finding in found.items():
        assert any(finding in one for one in lint.findings(page)), page
    code = "# Errors pile up\n\n```sh\npile up\n```\n\n| pile up |\n| --- |\n\nOr `pile up`.\n"
    assert list(lint.findings(code)) == []
    page = "One thing\n\nAnother thing is. A third is:\n- an item\n- a link [to it](x.md)"
    sentences = ["One thing", "Another thing is.", "A third is:", "an item", "a link to it"]
    assert list(lint.sentences(page)) == sentences


def test_a_name_is_a_term_of_the_field(lint: Any) -> None:
    source = "class LeftOut:\n    told: int\n    def f(self, seen_in): self.kept = seen_in\n"

    found = "\n".join(lint.name_findings(source))
    assert [found.count(name) for name in ("LeftOut", "told", "seen_in", "kept")] == [1] * 4
    assert list(lint.name_findings("def theft(kepta, whole_sale): left = 1")) == [
        "line 1: 'whole_sale': use key frame, integers"
    ]


def test_docstrings_and_help_are_plain(lint: Any) -> None:
    """What the Python reference shows, up to the examples; each argument is an item of a list."""
    texts = {f"option {name}": about.says for name, about in options().items()}
    texts |= {f"fedsz {name}": command.help or "" for name, command in app.commands.items()}
    for module in (fedsz, fedsz.flower):
        for name in module.__all__:
            text = (inspect.getdoc(getattr(module, name)) or "").partition("Examples:")[0]
            text = re.sub(r"(?m)^    (?=\S)", "- ", text.replace("``", "`"))
            texts[name] = re.sub(r"(?m)^        ", "  ", text)

    found = {name: lint.sentence_findings(list(lint.sentences(x))) for name, x in texts.items()}
    assert {name: what for name, of in found.items() if (what := list(of))} == {}


def test_help_explains_each_argument() -> None:
    for name, command in app.commands.items():
        for argument in command.params:
            if isinstance(argument, click.Argument):
                shown = (argument.metavar or argument.name or "").rstrip(".").upper()
                assert shown in (command.help or ""), f"{name} does not explain {shown}"
