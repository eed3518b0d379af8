"""Holds the prose of README and docs to plain English: python docs/lint_prose.py, or make lint.

Every page has no sentence above `LONGEST` words, a median of `MEDIAN` words at most, and none of
the `HOUSE` words, for which the field has others. Pages for newcomers also keep to a
Flesch-Kincaid grade. Code, tables, quotations and headings are not prose.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST, MEDIAN, GRADE = 35, 16, 10.0
NEWCOMERS = ["README.md", "docs/index.md", "docs/tutorials/*.md", "docs/guides/*.md"]
LINTED = ["*.md", "docs/**/*.md", "compressors/*.md", "examples/**/*.md"]
# A pattern, and what to write in its place.
HOUSE = {
    r"in the way of": "like",
    r"a (?:codec|model|policy|test) more": "another one, or adding one",
    r"\bis missed\b": "is reported as absent",
    r"\bfor ever\b": "without end, or always",
    r"\bpile up\b": "accumulate",
    r"\bsent home\b": "disconnected",
    r"\bwhoever\b": "anyone who, or a client that",
    r"\bwhat there is\b": "name the thing",
    r"\bthe rest of what\b": "name the thing",
    r"\bnone is left\b": "no file is left",
    r"\bsteers?\b": "controls",
    r"\bmend(?:s|ed)?\b": "repairs, or fixes",
    r"\bheed(?:s|ed)?\b": "uses",
    r"\bworth of\b": "effect of",
    r"\borigin\b": "environment",
    r"\bway (?:up|down)\b": "uplink, downlink",
    r"\bways? of updating\b": "scheme",
    r"\bhand(?:s|ed)? (?:over|on)\b": "passes",
}
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +")
NOT_PROSE = ("#", "|", "!", ":::", "    ", ">", "Measured:")
WORD = re.compile(r"[A-Za-z0-9][\w'’.,/-]*")
VOWELS = re.compile(r"[aeiouy]+")
SILENT = re.compile(r"([^aeiouyl]e|[^aeiouytd]ed)$")  # make, moved; not table, needed


def paragraphs(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a Markdown text, each on one line."""
    text = COMMENT.sub("", FENCED.sub("", page))
    gathered: list[str] = []
    for line in [*text.splitlines(), ""]:
        begins = bool(ITEM.match(line))
        prose = line.strip() and (begins or gathered or not line.startswith(NOT_PROSE))
        if begins or not prose or (not gathered and line.startswith(NOT_PROSE)):
            if gathered:
                yield " ".join(gathered)
            gathered = []
        if prose and not line.startswith(NOT_PROSE[:4]):
            gathered.append(ITEM.sub("", line).strip())


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a Markdown text; code in them counts as one word."""
    for paragraph in paragraphs(page):
        text = re.sub(r"`[^`]*`", "code", paragraph)
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("*", "")
        for sentence in re.split(r"(?<=[.!?])\)?\s+(?=[\"(A-Z0-9]|code)", text):
            if len(WORD.findall(sentence)) > 1:
                yield sentence


def syllables(word: str) -> int:
    """Return about how many syllables a word has: its groups of vowels that are not silent."""
    return max(1, len(VOWELS.findall(SILENT.sub("", word.lower()))))


def grade(found: list[str]) -> float:
    """Return the Flesch-Kincaid grade: 0.39 words/sentence + 11.8 syllables/word - 15.59."""
    words = [word for sentence in found for word in WORD.findall(sentence)]
    spoken = sum(syllables(part) for word in words for part in re.split(r"[-/']", word))
    return 0.39 * len(words) / len(found) + 11.8 * spoken / len(words) - 15.59


def sentence_findings(found: list[str]) -> Iterator[str]:
    """Yield what is wrong with sentences, each by itself."""
    for sentence in found:
        if (length := len(WORD.findall(sentence))) > LONGEST:
            yield f"a sentence of {length} words: {sentence[:60]}..."
        for pattern, better in HOUSE.items():
            if match := re.search(pattern, sentence, re.IGNORECASE):
                yield f"{match[0]!r}: write {better}: {sentence[:60]}"


def findings(page: str, *, newcomers: bool) -> Iterator[str]:
    """Yield what is wrong with a Markdown text."""
    found = list(sentences(page))
    yield from sentence_findings(found)
    median = statistics.median(len(WORD.findall(sentence)) for sentence in found) if found else 0
    if median > MEDIAN:
        yield f"the median length of its sentences is {median:g} words"
    if newcomers and found and (level := grade(found)) > GRADE:
        yield f"its Flesch-Kincaid grade is {level:.1f}"


def pages(patterns: list[str]) -> list[Path]:
    """Return the pages that any pattern matches, once each."""
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def main() -> int:
    """Print what was found, or with --measure each page's figures; return the exit status."""
    if "--measure" in sys.argv:
        for path in pages(["*.md", "docs/**/*.md"]):
            found = list(sentences(path.read_text("utf-8")))
            lengths = [len(WORD.findall(sentence)) for sentence in found] or [0]
            print(
                f"{path.relative_to(ROOT)}: {len(found)} sentences, longest {max(lengths)},"
                f" median {statistics.median(lengths):g}, grade {grade(found) if found else 0:.1f}"
            )
        return 0
    newcomers, bad = pages(NEWCOMERS), 0
    for path in pages(LINTED):
        for finding in findings(path.read_text("utf-8"), newcomers=path in newcomers):
            print(f"{path.relative_to(ROOT)}: {finding}")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
