"""A report in a browser: every figure is seen, nothing goes wrong, on any screen."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from fedsz.report import write_report
from tests.chromium import Page, browser, executable
from tests.sweeps import swept, written

FIGURES = [
    "accuracy-bytes", "accuracy-ratio", "accuracy-rounds", "accuracy-bound", "time-split",
    "transfer-bound", "transfer-bandwidth", "weights", "errors",
]  # fmt: skip
BOXES = """[...document.querySelectorAll('figure')].map(f => ({
  id: f.id,
  svgs: [...f.querySelectorAll('svg')].map(s => s.getBoundingClientRect().toJSON()),
  letters: Math.min(...[...f.querySelectorAll('text')].map(t => t.getBoundingClientRect().height)),
  caption: f.querySelector('figcaption').innerText,
}))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    path = executable()
    if path is None:
        pytest.skip("there is no chromium here")
    folder = tmp_path_factory.mktemp("report")
    rows = swept(codecs="raw,szx,uniform", error_bounds="1e-2..1e-1")
    report = write_report(written(folder / "trial.parquet", rows), folder / "trial.html")
    with browser(path) as opened:
        opened.open(report)
        yield opened


NAMES = """[...document.querySelectorAll('#cnn-digits-accuracy-bytes, #cnn-digits-accuracy-ratio')]
.map(f => [...f.querySelectorAll('text')]
  .filter(t => /^(uncompressed|weights)/.test(t.textContent))
  .map(t => ({name: t.textContent, ...t.getBoundingClientRect().toJSON()})))"""


@pytest.mark.parametrize("width", [360, 1400])
def test_no_name_of_a_way_covers_another(page: Page, width: int) -> None:
    page.show(width)
    for names in page.value(NAMES):
        assert len(names) == len({name["name"] for name in names}) >= 3
        for a, b in itertools.combinations(names, 2):
            apart = a["right"] <= b["left"] or b["right"] <= a["left"]
            # Boxes of letters hold room for accents.
            assert apart or abs(a["top"] - b["top"]) > 0.6 * a["height"], (a, b)


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_every_figure_is_seen(page: Page, width: int) -> None:
    page.show(width)
    figures = page.value(BOXES)

    of_setting = [f"cnn-digits-{name}" for name in FIGURES]
    assert [figure["id"] for figure in figures] == ["bytes-to-accuracy", *of_setting]
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


def test_nothing_goes_wrong(page: Page) -> None:
    bad = [
        event
        for event in page.events
        if event.get("method")
        in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    ]
    asked = [
        event["params"]["request"]["url"]
        for event in page.events
        if event.get("method") == "Network.requestWillBeSent"
    ]

    assert bad == []
    assert len(asked) == 1
    assert asked[0].startswith("file://")


def colours(page: Page) -> list[Any]:
    return page.value(
        "[getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('svg text')).fill,"
        " getComputedStyle(document.body).color]"
    )


def test_light_dark_and_paper(page: Page) -> None:
    page.show(800, "light")
    light = colours(page)
    page.show(800, "dark")
    dark = colours(page)
    page.show(800, "dark", "print")
    paper = colours(page)

    assert light[0] == "rgb(255, 255, 255)"
    assert light[1] == light[2]
    assert dark[1] == dark[2]
    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert paper == light


def test_it_prints(page: Page) -> None:
    page.show(800)
    pdf = base64.b64decode(page("Page.printToPDF", preferCSSPageSize=True)["data"])

    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000


def test_what_is_seen_is_said(page: Page) -> None:
    nodes = page("Accessibility.getFullAXTree")["nodes"]
    images = [
        node["name"]["value"]
        for node in nodes
        if node.get("role", {}).get("value") in ("image", "img") and not node.get("ignored")
    ]

    assert len(images) == page.value("document.querySelectorAll('figure svg').length")
    assert all(len(name) > 20 for name in images)


def test_keys_reach_wide_tables(page: Page) -> None:
    regions = page.value("[...document.querySelectorAll('.scroll')].map(r => r.tabIndex)")

    assert regions
    assert set(regions) == {0}


def test_the_page_stays_where_it_is(page: Page) -> None:
    """Links lead to what is on the page."""
    dangling = page.value(
        "[...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'))"
        ".filter(h => !h.startsWith('#') || !document.getElementById(h.slice(1)))"
    )

    assert dangling == []
