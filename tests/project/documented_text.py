"""What docs/results/*.txt and the paper say of the numbers in README and docs."""

from __future__ import annotations

from functools import cache

from benchmarks.paper import published
from benchmarks.paper.model_complexity import complexity
from tests.conftest import ROOT
from tests.project.documented_rows import NUMBER, Row, rows, tables


@cache
def codecs_text() -> str:
    return (ROOT / "docs" / "results" / "codecs.txt").read_text("utf-8")


def beside_the_others(row: Row) -> list[float]:
    """A row of the first table of docs/results/codecs.txt: ``cnn update, std 1``."""
    (table, _), *_ = tables(codecs_text())
    (found,) = (of.cells for of in rows(table) if ", ".join(of.labels) == row.labels[0])
    return [float(number.replace(",", "")) for cell in found for number in NUMBER.findall(cell)[:1]]


@cache
def codecs(data: str) -> dict[tuple[str, str], list[float]]:
    """Ratio and both speeds of a part of docs/results/codecs.txt, by bound and codec."""
    (table, _), *_ = tables(codecs_text().split(f"\n### {data}\n")[1])
    found = {}
    for row in rows(table):
        numbers = [NUMBER.findall(row.cells[i])[:1] for i in (0, 2, 4)]
        found[row.labels] = [float(x.replace(",", "")) for number in numbers for x in number]
    return found


def codec_speeds(row: Row) -> list[float]:
    names = {"uniform, AVX2 alone": "uniform (AVX2)", "uniform, no SIMD": "uniform (no SIMD)"}
    name = row.labels[0].replace("*", "")
    name = names.get(name, name)
    return [
        *codecs("resnet50 weights")["rel 1e-2", name],
        *codecs("alexnet update").get(("std 1", name), ()),
    ]


def first_numbers(row: Row) -> str:
    """The first number of each cell, with a dash for none: the paper's beside ours."""
    return " ".join(cell.split("/")[0] for cell in row.cells)


def published_ratios(row: Row) -> list[float]:
    """The paper's half of Table I; ours are measured, and marked."""
    (codec,) = row.labels
    if codec not in published.CODECS:
        return []
    models = ("alexnet", "mobilenetv2", "resnet50")
    return [published.TABLE_1[model, codec, published.RECOMMENDED_BOUND].ratio for model in models]


def table_3() -> list[float]:
    """Millions of parameters: the paper's and, by classes, ours; the lossy share with ten."""
    ours = {
        (model, classes): complexity(model, classes=classes, side=224)
        for model in published.TABLE_3
        for classes in (10, 1000)
    }
    printed = {model: of.parameters for model, of in published.TABLE_3.items()}
    millions = {key: of.parameters / 1e6 for key, of in ours.items()}
    return [
        printed["resnet50"],
        *(millions["resnet50", classes] for classes in (10, 1000)),
        *(printed[model] for model in ("mobilenetv2", "alexnet")),
        *(millions[model, 1000] for model in ("mobilenetv2", "alexnet")),
        100 * ours["mobilenetv2", 10].lossy_share,
    ]
