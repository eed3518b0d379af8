"""The site is built without a warning; its links lead somewhere, its pictures are described."""

from __future__ import annotations

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
