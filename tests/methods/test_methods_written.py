"""Every chain of the pages of methods can be written wherever a run is described, and is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsz.cli import app
from fedsz.experiments.scheme import Scheme
from fedsz.experiments.sweep_plan import SweepConfig
from fedsz.methods import PRESETS, all_methods
from fedsz.methods import parse as chain_of
from fedsz.spec_strings import settings_of
from fedsz.training.options import RunConfig
from tests.cli.test_cli import refuse

pytestmark = pytest.mark.repository
DOCS = Path(__file__).parents[2] / "docs"
PAGES = DOCS / "methods.md", DOCS / "results" / "methods.md"
CODE = re.compile(r"`([^`]+)`")
COMMANDS = "run --update", "server --insecure --update", "sweep --ways"
BAD = {
    "topk:k=0": "topk k must be a number of elements or a share",
    "ternary>topk": "topk cannot follow ternary",
    "topk>uniform": "uniform needs a bound",
    "feedback>qsgd": "write qsgd:unbiased=0",
    "topkk": "no method 'topkk'",
}


def chains() -> list[str]:
    """Return what cells of code in tables hold, but for servers, and updates with their bounds."""
    lines = (line for page in PAGES for line in page.read_text("utf-8").splitlines())
    rows = (line for line in lines if line.startswith("| `"))
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    found = [match[1].replace("\\|", "|") for cell in cells if (match := CODE.fullmatch(cell))]
    found = [text.partition(" into ")[0] for text in found]
    return [text for text in dict.fromkeys(found) if not text.startswith("delta+ef")]


def test_there_are_chains_in_the_tables() -> None:
    assert len(chains()) > 30


def test_every_chain_is_an_update_of_a_run_on_the_command_line_and_in_a_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.toml"
    for text in chains():
        file.write_text(f'update = "{text}"\n')

        told, read = RunConfig(update=text), RunConfig.read(file)

        assert told == read
        assert str(told.compression.pipeline) == str(chain_of(text))


def test_every_chain_is_a_way_of_a_sweep_and_read_back_from_it() -> None:
    ways = chains()
    listed, with_commas = (SweepConfig.of({"ways": each}) for each in (ways, ",".join(ways)))

    assert listed.runs == with_commas.runs
    updates = {str(chain_of(text)) for text in ways}
    assert {run.update for run in listed.runs} == updates
    for run in listed.runs:
        (again,) = SweepConfig.of({"ways": str(Scheme.of_run(run))}).runs
        assert again.compression == run.compression


def test_methods_are_listed_with_their_settings_and_a_line_each() -> None:
    *lines, last = CliRunner().invoke(app, ["methods"]).output.splitlines()

    shown = [re.split(" {2,}", line) for line in lines[1:]]  # below the heads
    settings = [",".join(f"{k}={v}" for k, v in settings_of(m).items()) for m in all_methods()]
    parts = [
        [m.name, written, m.summary] if written else [m.name, m.summary]
        for m, written in zip(all_methods(), settings, strict=True)
    ]
    assert shown == [*parts, *([p.name, p.chain, p.summary] for p in PRESETS)]
    assert "uniform@std:1" in last


@pytest.mark.parametrize(
    ("command", "text", "why"),
    [
        *((command, *bad) for command in COMMANDS for bad in BAD.items()),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(command: str, text: str, why: str) -> None:
    assert why in refuse(*command.split(), text)
