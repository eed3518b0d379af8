"""Measured numbers in README and docs: what the checked-in rows say, or marked with their origin.

A table of measurements has a right-aligned column. Its numbers are recomputed here and compared to
the printed precision, or a line "Measured: MACHINE; commit HASH; `COMMAND`" follows it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("benchmarks")

from tests.project import documented_rows as rows
from tests.project.documented_rows import NUMBER, Row
from tests.project.snippets import DOCS

pytestmark = pytest.mark.repository

# The format, the protocol and the page on privacy measure nothing; other tests have the matrix of
# apps (flower/test_flower_table.py), what leaks (privacy/test_privacy_page.py) and how far one
# client pulls (privacy/test_threat_model.py).
ELSEWHERE = {
    "docs/format.md",
    "docs/protocol.md",
    "docs/flower.md",
    "docs/privacy.md",
    "docs/results/privacy.md",
    "docs/threat-model.md",
}
PAGES = ["README.md", *(page for page in DOCS if page not in ELSEWHERE)]
MARK = re.compile(r"Measured: .+; commit [0-9a-f]{7}; `.+`")
SAVINGS, PAPER, CODECS = "docs/results/savings.md", "docs/results/paper.md", "docs/codecs.md"
COMPARED = "docs/results/methods.md"

Recomputed = Callable[[Row], Sequence[float]]


class Table(NamedTuple):
    """The table that holds ``anchor``: what its rows should say, NaN for what is not printed."""

    page: str
    anchor: str
    recomputed: Recomputed
    marked: bool = False  # since not all of it is recomputed


TUNED, LORA, MOBILE = "methods-large", {"model": "minilm-lora"}, ("sweep", "mobilenetv2")


def of(told: Callable[..., list[float]], what: str, *files: str, **conditions: str) -> Recomputed:
    """What `told` says of the way that a row's first label names."""
    return lambda row: told(what, row.labels[0], *files, **conditions)


TABLES = [
    Table(CODECS, "`uniform`, AVX2 alone", rows.codec_speeds),
    Table(CODECS, "| cnn weights, rel 1e-2 |", rows.beside_the_others),
    Table(
        "README.md",
        "Fashion-MNIST, FedSZ as published",
        of(rows.updates, "seeds up down total points"),
    ),
    Table(SAVINGS, "| data and way |", of(rows.updates, "seeds up down total points")),
    Table("docs/choosing.md", "| settings | reference model |", rows.client_state),
    Table(SAVINGS, "| task, long |", rows.core),
    Table("README.md", "| task, long |", rows.core),
    Table(COMPARED, "| way | up | both | points |", rows.compared),
    Table(COMPARED, "| way, three tasks |", rows.compared_large),
    Table(COMPARED, "| way, MiniLM by LoRA |", of(rows.by_downlink, "total late", TUNED, **LORA)),
    Table(PAPER, "| cnn, CIFAR-10", rows.by_bound),
    Table(PAPER, "| uniform, steps (`--update delta`)", of(rows.on_both, "points up", "accuracy")),
    Table(PAPER, "| steps, one standard deviation", of(rows.on_both, "mean up", *MOBILE)),
    Table(PAPER, "| | AlexNet | MobileNetV2 |", rows.published_ratios, marked=True),
]


def agree(printed: str, recomputed: Sequence[float]) -> bool:
    """Whether the numbers of a text are these, to the precision that they are printed with."""
    found = NUMBER.findall(printed)
    known = [value for value in recomputed if not math.isnan(value)]
    return len(found) == len(known) and all(
        abs(float(number.replace(",", "")) - value)
        <= 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
        for number, value in zip(found, known, strict=True)
    )


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.anchor.strip("| "))
def test_tables(table: Table) -> None:
    (found,) = (block for block, _ in rows.tables(rows.text(table.page)) if table.anchor in block)
    wrong = {}
    for row in rows.rows(found):
        recomputed = table.recomputed(row)
        # Of a marked table, the first number of each cell is recomputed.
        printed = " ".join(cell.split("/")[0] if table.marked else cell for cell in row.cells)
        if not agree(printed, recomputed):
            wrong[row.labels] = (printed, [float(f"{value:.6g}") for value in recomputed])

    assert wrong == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_measured_table_is_recomputed_or_marked(page: str) -> None:
    anchors = [table.anchor for table in TABLES if table.page == page and not table.marked]
    unknown = [
        block.splitlines()[0]
        for block, after in rows.tables(rows.text(page))
        if not any(anchor in block for anchor in anchors) and not MARK.match(after)
    ]

    assert unknown == []
