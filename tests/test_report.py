"""A report as it is drawn: one page that needs nothing else, its files, and both in a browser."""

from __future__ import annotations

import base64
import html
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from fedsz.palette import COLOURS
from fedsz.report import write_report
from tests.chromium import Page, browser, executable
from tests.reports import OF_CNN, report_of, trial
from tests.sweeps import course, written
from tests.test_cli import call, refuse

STRANGE = "<script>alert('1')</script> & $\\frac{ 模型"


class Made(NamedTuple):
    """What the command has made of a sweep."""

    source: Path
    figures: Path
    printed: list[str]
    page: str

    @property
    def target(self) -> Path:
        return self.source.with_suffix(".html")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("report")
    source = written(folder / "trial.parquet", trial())
    figures = folder / "figures"
    options = ("--figures", figures, "--bandwidth", "1gbps", "--latency", "5ms")
    done = call("report", source, *options)
    assert done.returncode == 0, done
    page = source.with_suffix(".html").read_text("utf-8")
    return Made(source, figures, done.stdout.splitlines(), page)


def cells(page: str, table: str) -> list[tuple[str, ...]]:
    body = page.split(f'<table id="{table}"')[1].split("</table>")[0]
    found = [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in body.split("<tr>")[1:]]
    return [tuple(map(html.unescape, row)) for row in found]


def test_the_page_and_the_files_have_all_that_there_is(made: Made) -> None:
    whole = report_of(made.source)

    assert made.printed == [str(made.target), str(made.figures)]
    assert "calculated for 1 Gbps and 5.00 ms" in made.page
    assert re.findall(r'<figure id="([^"]*)"', made.page) == ["bytes-to-accuracy", *OF_CNN]
    for name, table in whole.tables.items():
        if not name.endswith("timings"):
            assert cells(made.page, name) == [table.head, *map(tuple, table.rows)]
    for fact in whole.facts:
        assert html.escape(fact) in made.page
    names = {f"{name}.{end}" for name in whole.charts for end in ("svg", "png")}
    assert {path.name for path in made.figures.iterdir()} == names


def test_a_page_needs_nothing_else(made: Made) -> None:
    links = set(re.findall(r'(?:href|src|url\()="?([^")]*)', made.page))
    assert all(link.startswith("#") for link in links)
    assert "<script" not in made.page
    assert "@import" not in made.page
    assert not re.search("https?://(?!www.w3.org)", made.page)
    named = re.findall(r' id="([^"]*)"', made.page)
    assert len(named) == len(set(named))
    assert {link[1:] for link in links} <= set(named)


def test_figures_follow_the_colours_of_the_page(made: Made) -> None:
    head, body = made.page.split("<body>")

    assert set(re.findall(r"#[0-9a-f]{6}", body)) <= {"#ffffff"}  # of masks, if any
    assert {"ink", "blue", "rule"} <= set(re.findall(r"var\(--([a-z]+)\)", body))
    for _, dark in COLOURS.values():
        assert dark in head


def test_equal_sweeps_give_equal_bytes_on_any_machine(made: Made, tmp_path: Path) -> None:
    """Neither a display nor the user's backend, fonts and settings matter."""
    odd = tmp_path / "matplotlibrc"
    odd.write_text("font.family: No Such Font\ntext.usetex: True\nsavefig.dpi: 7\n")
    environment = {
        **os.environ, "MPLBACKEND": "nonsense", "DISPLAY": "", "MATPLOTLIBRC": str(odd),
        "MPLCONFIGDIR": "/proc/none",  # cannot be written
    }  # fmt: skip
    code = (
        "import sys; from pathlib import Path; from fedsz.report import write_report;"
        "source, target, figures = map(Path, sys.argv[1:]);"
        "write_report(source, target, bandwidths=[1e9], latency=0.005, figures=figures)"
    )
    there = tmp_path / "there.html"
    command = [sys.executable, "-c", code, str(made.source), str(there), str(tmp_path / "figures")]
    subprocess.run(command, env=environment, check=True, timeout=300)

    assert there.read_text("utf-8") == made.page
    for path in made.figures.iterdir():
        assert (tmp_path / "figures" / path.name).read_bytes() == path.read_bytes()
        if path.suffix == ".svg":
            ET.parse(path)  # noqa: S314 - we have just written it
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    strange = course("weights:zstd", (0.1, 0.5), codec=STRANGE, model=STRANGE, machine=STRANGE)
    source = written(tmp_path / "x.parquet", strange)

    page = write_report(source, tmp_path / "x.html", figures=tmp_path / "f").read_text("utf-8")

    assert "<script" not in page
    assert html.unescape(page).count("<script>") > 3
    for path in (tmp_path / "f").glob("*.svg"):
        ET.parse(path)  # noqa: S314


def test_what_the_command_refuses(made: Made, tmp_path: Path) -> None:
    other = ("-o", tmp_path / "other.html")

    assert "--force writes over it" in refuse("report", made.source)
    assert "is not empty" in refuse("report", made.source, *other, "--figures", made.figures)
    assert "is no bandwidth" in refuse("report", made.source, *other, "--bandwidth", "fast")
    assert "is no latency" in refuse("report", made.source, *other, "--latency", "5")
    assert "there is no" in refuse("report", tmp_path / "absent", *other)


def test_force_writes_over_a_report(tmp_path: Path) -> None:
    failed = [row for row in trial() if row.get("error")]
    source = written(tmp_path / "trial.parquet", failed)
    source.with_suffix(".html").write_text("an older one")

    assert call("report", source, "--force").returncode == 0
    assert "No run ended well" in source.with_suffix(".html").read_text("utf-8")


# In a browser

BOXES = """[...document.querySelectorAll('figure')].map(f => ({
  id: f.id,
  svgs: [...f.querySelectorAll('svg')].map(s => s.getBoundingClientRect().toJSON()),
  letters: Math.min(...[...f.querySelectorAll('text')].map(t => t.getBoundingClientRect().height)),
  caption: f.querySelector('figcaption').innerText,
}))"""
COLOURS_SEEN = (
    "[getComputedStyle(document.body).backgroundColor,"
    " getComputedStyle(document.querySelector('svg text')).fill,"
    " getComputedStyle(document.body).color]"
)


@pytest.fixture(scope="module")
def page(made: Made) -> Iterator[Page]:
    path = executable()
    if path is None:
        pytest.skip("there is no chromium here")
    with browser(path) as opened:
        opened.open(made.target)
        yield opened


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_every_figure_is_seen(page: Page, width: int) -> None:
    page.show(width)
    figures = page.value(BOXES)

    assert [figure["id"] for figure in figures] == ["bytes-to-accuracy", *OF_CNN]
    for figure in figures:
        assert figure["svgs"]
        for box in figure["svgs"]:
            assert box["width"] > 200
            assert box["height"] > 60
            assert 0 <= box["left"] < box["right"] <= width
        assert figure["letters"] >= 8
        assert "Model cnn" in figure["caption"]
    # Nothing but a table scrolls sideways, and that by itself.
    assert page.value("document.documentElement.scrollWidth") <= width
    assert set(page.value("[...document.querySelectorAll('.scroll')].map(r => r.tabIndex)")) == {0}


def test_it_opens_without_anything_else_and_prints(page: Page) -> None:
    told = [(event.get("method"), event.get("params", {})) for event in page.events]
    wrong = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert not [method for method, _ in told if method in wrong]
    (asked,) = (
        of["request"]["url"] for method, of in told if method == "Network.requestWillBeSent"
    )
    assert asked.startswith("file://")

    page.show(800)
    pdf = base64.b64decode(page("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000


def test_light_dark_and_paper(page: Page) -> None:
    def seen(*screen: str) -> Any:
        page.show(800, *screen)
        return page.value(COLOURS_SEEN)

    light, dark, paper = seen("light"), seen("dark"), seen("dark", "print")
    assert light[0] == "rgb(255, 255, 255)"
    assert light[1] == light[2]
    assert dark[1] == dark[2]
    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert paper == light


def test_what_is_seen_is_said(page: Page, made: Made) -> None:
    nodes = page("Accessibility.getFullAXTree")["nodes"]
    images = [
        node["name"]["value"]
        for node in nodes
        if node.get("role", {}).get("value") in ("image", "img") and not node.get("ignored")
    ]

    charts = report_of(made.source).charts
    timed = ("time-split", "transfer-bound", "transfer-bandwidth")  # on another link
    said = [
        panel.says
        for name, chart in charts.items()
        if not name.endswith(timed)
        for panel in chart.panels
    ]
    assert len(images) == sum(len(chart.panels) for chart in charts.values())
    assert set(said) <= set(images)
    assert all(len(name) > 20 for name in images)
