"""The fenced blocks of README and docs, as tests read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.conftest import ROOT

DOCS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *DOCS) if DOCS else ()  # a wheel's tests have none
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


class Snippet(NamedTuple):
    """A block of a page: its language, its title or "", and its text."""

    page: str
    language: str
    title: str
    code: str


def snippets(page: str, *languages: str) -> Iterator[Snippet]:
    """Yield the blocks of a page that are in one of these languages."""
    for language, title, code in FENCE.findall((ROOT / page).read_text("utf-8")):
        if language in languages:
            yield Snippet(page, language, title, code)


def file_name(snippet: Snippet) -> str:
    """Return the name of the file that a block is, from the comment in its first line, or ""."""
    found = re.match(r"# (\w+\.py)\b", snippet.code)
    return found[1] if found else ""


def named(page: str, name: str) -> str:
    """Return the block of Python that is a file of this name."""
    (found,) = (s.code for s in snippets(page, "python") if file_name(s) == name)
    return found
