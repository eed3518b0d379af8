"""What lies beside the package: configs, compose file, entry points, documents."""

from __future__ import annotations

import ast
import html
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from benchmarks.paper.options import PaperConfig
from fedsz.cli.screen import HEADS
from fedsz.codecs import CODECS
from fedsz.experiments.sweep_plan import SWEPT, SweepConfig, run_id
from fedsz.training import options as panels
from fedsz.training.options import RESULTS, SERVER, TRAVEL, WATCHING, RunConfig, options, options_of
from tests.conftest import ROOT

pytestmark = pytest.mark.repository
MOST_LINES = 60  # of a function's body, without its docstring
PANELS = {panels.LEARNED, panels.LEARNING, panels.COMPRESSION, panels.TRUST, SWEPT}
PANELS |= {panels.SECURE, panels.PRIVACY, TRAVEL, WATCHING, RESULTS}
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_are_read_and_begin_with_their_command(path: Path) -> None:
    first = path.read_text().splitlines()[:3]
    sweeps = any("fedsz sweep" in line for line in first)

    (SweepConfig if sweeps else RunConfig).read(path)

    assert any(line.startswith("#") and f"--config configs/{path.name}" in line for line in first)


@pytest.mark.parametrize(("side", "kind"), [("server", "ServerApp"), ("client", "ClientApp")])
def test_entry_points_are_plain_assignments(side: str, kind: str) -> None:
    """Flower finds an app by reading the source."""
    assert type(runpy.run_path(str(ROOT / side / "app.py"))["app"]).__name__ == kind
    tree = ast.parse((ROOT / side / "app.py").read_text())
    names = [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]  # type: ignore[attr-defined]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert names == ["app"]
    assert project["tool"]["flwr"]["app"]["components"][f"{side}app"] == f"{side}.app:app"


def test_the_flower_app_takes_every_option_of_a_server() -> None:
    """But those that say how messages travel, and where results go: Flower sees to these."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    config = project["tool"]["flwr"]["app"]["config"]
    given = {name.replace("-", "_"): value for name, value in config.items()}
    theirs = (TRAVEL, RESULTS, WATCHING)
    wanted = [name for name in options_of(SERVER) if options()[name].panel not in theirs]
    assert list(given) == wanted
    assert RunConfig.of(given) == RunConfig()


def test_every_option_says_who_takes_it() -> None:
    for kind in (RunConfig, SweepConfig, PaperConfig):
        for name, about in options(kind).items():
            assert about.says, name
            assert about.panel in PANELS, name
    commands = {command for about in options().values() for command in about.commands}
    assert commands == {"run", "server", "client", "sweep", "paper", "compress", "bench", "advise"}
    assert all(about.commands for about in options().values())


def test_what_defines_a_run_is_what_can_change_its_result() -> None:
    """A sweep that forgot one would take different runs for the same."""
    run = SweepConfig(codecs="uniform", error_bounds="1e-2").runs[0]
    changes_nothing = {"data_dir", "min_clients", "tolerance"}  # the last for a fixed policy
    texts = {
        "dataset": "cifar10", "model": "alexnet", "initial": str(ROOT / "README.md"),
        "policy": "auto", "update": "delta", "error_bound": "abs:1", "codec": "szx",
        "lossless": "zstd", "rule": "shape", "downlink": "std:1", "decay": 0.5,
    }  # fmt: skip
    for name, option in options().items():
        if option.panel not in (TRAVEL, RESULTS, WATCHING):
            value, other = getattr(run, name), object.__new__(RunConfig)
            value = texts.get(name, f"{value}x" if isinstance(value, str) else value + 1)
            vars(other).update({**vars(run), name: value})
            same = run_id(other) == run_id(run)
            assert same == (name in changes_nothing), name


def test_the_picture_of_a_run_shows_what_a_run_prints_today() -> None:
    """Its columns are those of the table, and it loads nothing."""
    picture = (ROOT / "docs" / "run.svg").read_text("utf-8")
    shown = html.unescape(picture).replace("\xa0", " ")

    assert all(" ".join(filter(None, heads)) in " ".join(shown.split()) for heads in HEADS)
    assert re.findall(r"https?://[^\s\"]+", picture) == ["http://www.w3.org/2000/svg"]
    assert len(picture) < 100_000


def test_documents_name_every_codec() -> None:
    for document in ("README.md", "docs/reference/codecs.md", "docs/format.md"):
        text = (ROOT / document).read_text()
        assert all(f"`{codec.name}`" in text for codec in CODECS), document


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_a_page_links_to_what_exists(page: str) -> None:
    """Links in docs/ are checked where the site is built: tests/project/test_site.py."""
    text = (ROOT / page).read_text("utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert {target for target in targets if not (ROOT / target).exists()} == set()


def test_each_test_that_is_named_exists() -> None:
    found: dict[str, tuple[str, ...]] = {}
    for path in (*ROOT.glob("*.*"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"):
        text = path.read_text("utf-8") if path.is_file() else ""
        for name in re.findall(r"\btests/[a-z_/]*test_[a-z_]+\.py", text):
            found[name] = (*found.get(name, ()), path.name)

    assert len(found) > 20
    assert {name: pages for name, pages in found.items() if not (ROOT / name).is_file()} == {}


def test_log_lines_that_a_page_explains_are_logged() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.+?`(?: or `.+?`)*) \|", page.partition("## Log lines")[2], re.M)
    texts = [text for row in rows for text in re.findall("`(.+?)`", row)]
    code = " ".join(path.read_text("utf-8") for path in (ROOT / "fedsz").rglob("*.py"))
    joined = re.sub(r'"\s*f?"', "", code)  # literals that go on in the next line

    assert len(texts) >= 8
    assert [text for text in texts if text not in joined] == []


def test_no_function_is_long() -> None:
    """A file has as many lines as its subject needs."""
    found = {}
    for folder in ("fedsz", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    body = node.body[ast.get_docstring(node) is not None :] or node.body
                    lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
                    found[f"{path.relative_to(ROOT)}: {node.name}"] = lines

    assert {name: lines for name, lines in found.items() if lines > MOST_LINES} == {}
