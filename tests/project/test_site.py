"""The site is built without a warning, and what a newcomer wants is two clicks from its start."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag

import pytest

from tests.conftest import ROOT

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

pytestmark = [pytest.mark.release, pytest.mark.repository, pytest.mark.slow]
# What a newcomer wants to do, and a text of the page that says how.
TASKS = {
    "compress a file": "fedsz compress",
    "add fedsz to Flower's quickstart": "fedsz, line 2 of 2",
    "start a fleet with TLS": "fedsz keys init --host",
    "read what a round cost": "84% of the updates' energy arrived",
    "add a codec": "Take a wire_id that no codec has",
}


class Links(HTMLParser):
    """The links of a page, its anchors, and its pictures without a description."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.undescribed: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.targets.append(found["href"])
        if tag == "img":
            self.targets.append(found["src"])
            if not found.get("alt"):
                self.undescribed.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def led_to(page: Path, target: str) -> Path:
    """The file that a link of a page leads to."""
    path = (page.parent / urldefrag(target).url).resolve() if urldefrag(target).url else page
    return path / "index.html" if path.is_dir() else path


def test_every_link_leads_somewhere_and_every_picture_is_described(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    broken = []
    for page, links in pages.items():
        assert links.undescribed == [], page
        for target in links.targets:
            if re.match(r"[a-z]+:", target):
                continue
            goal, anchor = led_to(page, target), urldefrag(target).fragment
            if not goal.exists() or (anchor and anchor not in pages[goal].anchors):
                broken.append((str(page.relative_to(site)), target))
    assert broken == []


def shown(page: Path) -> str:
    """The text of a page, as a reader sees it."""
    return html.unescape(re.sub(r"<[^>]*>", "", page.read_text("utf-8")))


@pytest.mark.parametrize("task", TASKS)
def test_a_newcomer_gets_there_in_two_clicks(task: str, site: Path) -> None:
    start = site / "index.html"
    content = re.search(r"<article.*?</article>", start.read_text("utf-8"), re.DOTALL)
    near = {led_to(start, x) for x in re.findall(r'href="([^":]+)"', content[0])}
    reached = near | {
        led_to(page, target)
        for page in near
        if page.suffix == ".html"
        for target in Links(page).targets
        if not re.match(r"[a-z]+:", target)
    }
    texts = (shown(page) for page in reached if page.suffix == ".html")
    assert any(TASKS[task] in text for text in texts)


def test_no_page_asks_for_a_list_of_versions_that_is_not_there(site: Path) -> None:
    assert not (site / "versions.json").exists()
    assert '"provider"' not in (site / "index.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("typed", "page"),
    [
        ("FedAvg", "flower/"), ("strategy", "tutorials/flower-app/"), ("Keras", "flower/"),
        ("mod", "tutorials/flower-app/"), ("ClientApp", "tutorials/flower-app/"),
        ("ServerApp", "tutorials/flower-app/"), ("TensorFlow", "flower/"), ("XGBoost", "flower/"),
        ("compression", "choosing/"), ("quantization", "methods/"), ("bandwidth", "experiments/"),
        ("secure aggregation", "flower/"), ("differential privacy", "privacy/"),
        ("Raspberry Pi", "guides/raspberry-pi/"), ("straggler", "guides/replies/"),
        ("checkpoint", "guides/resuming/"), ("memory", "reference/measurements/"),
    ],
)  # fmt: skip
def test_the_search_leads_to_the_page_that_answers(typed: str, page: str, site: Path) -> None:
    """Material ranks tags above titles, and these above texts."""
    index = json.loads((site / "search" / "search_index.json").read_bytes())

    found = (doc["location"] for doc in index["docs"] if typed in doc.get("tags", ()))
    assert {urldefrag(location).url for location in found} == {page}
