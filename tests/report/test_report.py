"""A report as it is drawn: one page that needs nothing else, and its files."""

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
from typing import NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from fedsz.palette import COLOURS, GROUNDS
from fedsz.report import write_report
from fedsz.report.figures import log_axis, looks
from tests.chromium import Page, browser, executable
from tests.cli.test_cli import call, refuse
from tests.reports import OF_CNN, report_of, trial
from tests.sweeps import course, written

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
    assert "1 Gbps and 5.00 ms of latency" in made.page
    assert re.findall(r'<figure id="([^"]*)"', made.page) == OF_CNN
    for name, table in whole.tables.items():
        assert cells(made.page, name) == [table.head, *map(tuple, table.rows)]
    for fact in [*whole.facts, *whole.summaries]:
        assert html.escape(fact) in made.page
    names = {f"{name}.{end}" for name in whole.charts for end in ("svg", "png")}
    assert {path.name for path in made.figures.iterdir()} == names


def test_a_page_needs_nothing_else(made: Made) -> None:
    links = set(re.findall(r'(?:href|src|url\()="?([^")]*)', made.page))
    links = {link for link in links if not link.startswith("data:image/svg+xml;base64,")}
    assert all(link.startswith("#") for link in links)
    assert "<script" not in made.page
    assert "@import" not in made.page
    assert not re.search("https?://", made.page)
    named = re.findall(r' id="([^"]*)"', made.page)
    assert len(named) == len(set(named))
    assert {link[1:] for link in links} <= set(named)


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


@pytest.mark.parametrize("column", [0, 1])
def test_colours_stand_out(column: int) -> None:
    def luminance(colour: str) -> float:  # WCAG 2.1
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    ground = luminance(GROUNDS["card"][column])
    for name, pair in COLOURS.items():
        high, low = sorted((luminance(pair[column]), ground), reverse=True)
        least = {"ink": 7, "soft": 4.5, "rule": 1}.get(name, 3)
        assert (high + 0.05) / (low + 0.05) >= least, name


def test_looks_tell_many_lines_apart() -> None:
    names = [f"uniform:effort={i}" for i in range(30)]
    found = looks(names)

    assert len({(str(look["linestyle"]), look["color"], look["marker"])
                for look in found.values()}) == 31  # fmt: skip
    assert looks(reversed(names)) == found


@pytest.mark.parametrize("limits", [(13, 34), (0.8, 30), (0.5, 5000), (1e-5, 0.1)])
def test_a_logarithmic_axis_has_two_names_at_least(limits: tuple[float, float]) -> None:
    figure = Figure()
    ax = figure.subplots()
    ax.set_xscale("log")
    ax.set_xlim(*limits)

    log_axis(ax.xaxis, lambda value: f"{value:,g}")
    figure.draw_without_rendering()

    places = [x.get_position()[0] for x in ax.get_xticklabels()]
    assert 2 <= sum(limits[0] <= x <= limits[1] for x in places) <= 9


# In a browser

BOXES = """[...document.querySelectorAll('figure')].map(f => ({
  id: f.id,
  image: f.querySelector('img').getBoundingClientRect().toJSON(),
  drawn: f.querySelector('img').naturalWidth,
  says: f.querySelector('img').alt,
}))"""


@pytest.fixture(scope="module")
def page(made: Made) -> Iterator[Page]:
    path = executable()
    if path is None:
        pytest.skip("there is no chromium here")
    with browser(path) as opened:
        opened.open(made.target)
        yield opened


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_every_figure_is_seen_and_said(page: Page, width: int) -> None:
    page.show(width)
    figures = page.value(BOXES)

    assert [figure["id"] for figure in figures] == OF_CNN
    for figure in figures:
        assert figure["drawn"] > 0
        assert len(figure["says"]) > 20
        assert figure["image"]["width"] > 200
        assert 0 <= figure["image"]["left"] < figure["image"]["right"] <= width
    # Nothing but a table scrolls sideways, and that by itself.
    assert page.value("document.documentElement.scrollWidth") <= width
    assert set(page.value("[...document.querySelectorAll('.scroll')].map(r => r.tabIndex)")) == {0}


def test_it_opens_without_anything_else_and_prints(page: Page) -> None:
    told = [(event.get("method"), event.get("params", {})) for event in page.events]
    wrong = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert not [method for method, _ in told if method in wrong]
    asked = [of["request"]["url"] for method, of in told if method == "Network.requestWillBeSent"]
    assert all(url.startswith(("file://", "data:")) for url in asked)

    page.show(800)
    pdf = base64.b64decode(page("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000
