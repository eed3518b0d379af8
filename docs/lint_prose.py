"""Holds prose and names to the field's words: python docs/lint_prose.py, or make lint.

No page has a sentence above `LONGEST` words, or one of the `HOUSE` words, for which the field has
others. No class, function, argument or attribute of the packages in `NAMED` is called by one of the
`VAGUE` words, which are no terms of the field: a word is in the glossary, or it names no concept.
Code, tables, quotations and headings are not prose.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 35
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
# Packages whose names are checked, but for secure sums and privacy, and for a paper of lattices.
NAMED = ("core", "flower", "control", "methods", "contrib")
OTHERS = re.compile("secure_|masked_|private|local_noise|differential_privacy|uveqfed")
# A vague word in a name, and terms in its place.
VAGUE = {
    "told": "request, settings, message",
    "meant": "target, server model",
    "given": "the thing that is given",
    "held": "reference digest",
    "left": "residual, rest",
    "aside": "passthrough, metadata",
    "turn": "round",
    "whole": "key frame, integers",
    "kept": "residual, energy fraction, state",
    "seen": "record, statistics",
    "lattice": "grid",
    "bench": "backoff",
    "ordinary": "typical",
    "usual": "typical, default",
    "somebody": "the client, the server, the caller",
}
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +")
NOT_PROSE = ("#", "|", "!", ":::", "    ", ">", "Measured:")
WORD = re.compile(r"[A-Za-z0-9][\w'’.,/-]*")


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


def sentence_findings(found: list[str]) -> Iterator[str]:
    """Yield what is wrong with sentences, each by itself."""
    for sentence in found:
        if (length := len(WORD.findall(sentence))) > LONGEST:
            yield f"a sentence of {length} words: {sentence[:60]}..."
        for pattern, better in HOUSE.items():
            if match := re.search(pattern, sentence, re.IGNORECASE):
                yield f"{match[0]!r}: write {better}: {sentence[:60]}"


def findings(page: str) -> Iterator[str]:
    """Yield what is wrong with a Markdown text."""
    yield from sentence_findings(list(sentences(page)))


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of all classes, functions, arguments and attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id


def name_findings(source: str) -> Iterator[str]:
    """Yield what is wrong with the names in a Python source."""
    for line, name in names_in(source):
        for word in re.findall("[A-Z]?[a-z]+", name):
            if better := VAGUE.get(word.lower()):
                yield f"line {line}: {name!r}: use {better}"


def pages(patterns: list[str]) -> list[Path]:
    """Return the pages that any pattern matches, once each."""
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def main() -> int:
    """Print what was found; return the exit status."""
    found = [
        f"{path.relative_to(ROOT)}: {finding}"
        for path in pages(LINTED)
        for finding in findings(path.read_text("utf-8"))
    ]
    found += [
        f"{path.relative_to(ROOT)}: {finding}"
        for path in pages([f"fedsz/{package}/*.py" for package in NAMED])
        if not OTHERS.match(path.name)
        for finding in name_findings(path.read_text("utf-8"))
    ]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
