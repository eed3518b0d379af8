"""What the checked-in rows say of the numbers in README and docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from statistics import fmean, median
from typing import NamedTuple

from benchmarks.paper import published
from benchmarks.paper.model_complexity import complexity
from fedsz.report.rate_accuracy import RateAccuracy, rate_accuracies
from fedsz.report.runs import Group, Run, Setting, named, settings_of
from fedsz.report.source import read_source
from tests.conftest import ROOT

NUMBER = re.compile(r"(?<![\w.:@-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w-]|\.\d)")
DATASETS = {"CIFAR-10": "cifar10", "Fashion-MNIST": "fashion_mnist"}
WAYS = {
    "sz2": "weights:sz2@0.01",
    "auto": "auto",
    "hand": "delta+ef@0.035/0.015",
    "FedSZ as published": "weights:sz2@0.01",
    "FedSZ as published (sz2, 1e-2, weights)": "weights:sz2@0.01",
    "sz2, weights": "weights:sz2@0.01",
    "uniform, weights": "weights@0.01",
    "uniform, steps (--update delta)": "delta@0.01",
    "weights, rel 1e-2": "weights@0.01",
    "steps, rel 1e-2 of the weights": "delta@0.01",
    "steps, one standard deviation of the step": "delta@std:1",
    "eden": "feedback>rotate>centroids/0.015",
    "nncodec, finer": "delta+ef:nncodec:qp=-20,sparsity=0",
    "uniform, as fine": "delta+ef@abs:0.015625",
    "sparseloco": "feedback:decay=0.95>topk:k=64,chunk=4096>centroids/0.015",
    "top-k of 1 %, ternary": "feedback>topk>ternary/0.015",
}


class Row(NamedTuple):
    """A row of a table: labels without backquotes, empty ones filled from above, and the rest."""

    labels: tuple[str, ...]
    cells: tuple[str, ...]


def tables(page_text: str) -> Iterator[tuple[str, str]]:
    """Yield the tables that have a right-aligned column, each with the paragraph after it."""
    blocks = re.split(r"\n\s*\n", page_text)
    for block, after in zip(blocks, [*blocks[1:], ""], strict=True):
        if block.startswith("|") and "---:" in block:
            yield block, after


def rows(table: str) -> Iterator[Row]:
    head, kinds, *lines = ([cell.strip() for cell in x.split("|")[1:-1]] for x in table.split("\n"))
    words = sum(not kind.endswith(":") for kind in kinds[: len(head)])
    above = [""] * words
    for line in lines:
        above = [cell.replace("`", "") or old for cell, old in zip(line, above, strict=False)]
        if any(NUMBER.search(cell) for cell in line[words:]):
            yield Row(tuple(above), tuple(line[words:]))


@cache
def runs(*names: str) -> list[Run]:
    return read_source(*(ROOT / "docs" / "results" / f"{name}.parquet" for name in names))


@cache
def setting(*names: str, **conditions: str | int) -> Setting:
    """The runs of result files on equal conditions; the first file's conditions where several."""
    wanted = {"model": "cnn", "partition": "iid", **conditions}
    (found,) = (
        of
        for of in settings_of(runs(*names))
        if wanted.items() <= dict(of.runs[0].conditions).items()
    )
    return found


@cache
def ways(*names: str, **conditions: str | int) -> dict[str, RateAccuracy]:
    """Ways by name, without which tensors are lossy."""
    found = rate_accuracies(setting(*names, **conditions))
    return {re.sub(r" \(\w+>\d+\)$", "", way.name): way for way in found}


def interval(way: RateAccuracy) -> list[float]:
    """Mean and half the 95 % interval of the difference to uncompressed, in points."""
    assert way.difference
    return [100 * way.difference.mean, 100 * way.difference.reach]


def seeds(way: RateAccuracy) -> int:
    assert way.difference
    return way.difference.count


def updates(row: Row) -> RateAccuracy:
    """A way of updates.parquet by a label such as ``CIFAR-10, Dirichlet 0.5: hand``."""
    separator = ": " if ": " in row.labels[0] else ", "
    where, _, name = row.labels[0].partition(separator)
    dataset, _, shares = where.partition(", ")
    partition = f"dirichlet:{shares.split()[1]}" if shares.startswith("Dirichlet") else "iid"
    return ways("updates", dataset=DATASETS[dataset], partition=partition)[WAYS.get(name, name)]


def both_ways(row: Row) -> list[float]:
    way = updates(row)
    return [seeds(way), way.up, way.down, way.total, *interval(way)]


def by_bound(row: Row) -> list[float]:
    model, dataset = row.labels[0].partition(" (")[0].split(", ")
    prefix = "weights" if row.labels[1] == "uniform" else f"weights:{row.labels[1]}"
    found = ways("sweep", dataset=DATASETS[dataset], model=model)
    bounds = ("1e-05", "0.0001", "0.001", "0.01", "0.1")
    return [interval(found[f"{prefix}@{bound}"])[0] for bound in bounds]


def half_a_point(row: Row) -> list[float]:
    found = [ways("accuracy", dataset=name)[WAYS[row.labels[0]]] for name in DATASETS.values()]
    return [number for way in found for number in (*interval(way), way.up)]


def tuned(row: Row) -> list[float]:
    of = [ways("sweep", dataset=name, model="mobilenetv2") for name in DATASETS.values()]
    found = [way[WAYS[row.labels[0]]] for way in of]
    return [number for way in found for number in (interval(way)[0], way.up)]


def links(anchor: str) -> list[Row]:
    """The rows of a table of docs/results/links.txt."""
    page = (ROOT / "docs" / "results" / "links.txt").read_text("utf-8")
    (found,) = (table for table, _ in tables(page) if anchor in table)
    return list(rows(found))


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
    names = {
        "uniform, AVX2 alone": "uniform (AVX2)",
        "uniform, no SIMD": "uniform (no SIMD)",
    }
    name = row.labels[0].replace("*", "")
    name = names.get(name, name)
    return [
        *codecs("resnet50 weights")["rel 1e-2", name],
        *codecs("alexnet update").get(("std 1", name), ()),
    ]


def uncompressed(name: str, dataset: str, model: str = "cnn") -> float:
    """The mean accuracy of the uncompressed runs, in percent."""
    return 100 * fmean(run.accuracy for run in setting(name, dataset=dataset, model=model).baseline)


def group(codec: str, bound: str = "rel:0.01", dataset: str = "cifar10") -> Group:
    """mobilenetv2's runs of the sweep."""
    groups = setting("sweep", dataset=dataset, model="mobilenetv2").groups
    (found,) = (g for g in groups if (g.label, named(g.bound, "")) in ((codec, bound), (codec, "")))
    return found


def seconds_at_10_mbps() -> list[float]:
    found = []
    for codec in ("uncompressed", "sz2", "uniform"):
        of = group(codec).updates
        plain = codec == "uncompressed"
        transfer = median(8 * (u.raw if plain else u.sent) / 10e6 for u in of)
        work = 0.0 if plain else median(u.encode + u.decode for u in of)
        found.append(median(u.train for u in of) + transfer + work)
    return [*found, median(u.train for u in group("uniform").updates)]


def pays_below() -> list[float]:
    mega, *giga = (median(u.worth_below for u in group(name).updates) for name in
                   ("sz2", "szx", "uniform"))  # fmt: skip
    return [mega / 1e6, *(x / 1e9 for x in giga)]


def worst_at_the_knee() -> list[float]:
    """Of `cnn` at 1e-2, over codecs and data sets."""
    found = [ways("sweep", dataset=dataset) for dataset in DATASETS.values()]
    return [
        min(
            interval(of[f"weights{codec}@0.01"])[0]
            for of in found
            for codec in ("", ":sz2", ":szx")
        )
    ]


def swallowed() -> list[float]:
    of = ways("sweep", dataset="fashion_mnist", model="mobilenetv2")
    return sorted(-interval(of[name])[0] for name in ("weights:sz2@0.01", "weights@0.01"))


def ratios_at_the_knee() -> list[float]:
    """Median of SZx's at 1e-2, least and greatest of uniform's, over models and data sets."""
    found = [
        ways("sweep", dataset=dataset, model=model)
        for dataset in DATASETS.values() for model in ("cnn", "mobilenetv2")
    ]  # fmt: skip
    ours = [of["weights@0.01"].up for of in found]
    return [median(of["weights:szx@0.01"].up for of in found), min(ours), max(ours)]


def laws_of_errors() -> list[float]:
    """KS of the uniform law and of Laplace's: cnn, CIFAR-10, sz2 and uniform, 1e-4 and 1e-3."""
    found: dict[str, list[float]] = {"uniform": [], "laplace": []}
    for run in setting("sweep", dataset="cifar10").runs:
        if named(run.bound) in ("rel:0.0001", "rel:0.001") and run.way.config.codec in (
            "sz2",
            "uniform",
        ):
            (errors,) = (of for of in run.distributions if of.what == "error")
            for law in errors.laws:
                found.setdefault(law.name, []).append(law.ks)
    return [median(found["uniform"]), median(found["laplace"])]


def first_numbers(row: Row) -> str:
    """The first number of each cell, with a dash for none: the paper's beside ours."""
    return " ".join(cell.split("/")[0] for cell in row.cells)


def published_ratios(row: Row) -> list[float]:
    """The paper's half of Table I; ours are measured, and marked."""
    model, codec = row.labels[0].lower().split()
    if codec not in published.CODECS:
        return []
    return [published.TABLE_1[model, codec, bound].ratio for bound in published.BOUNDS]


def table_3(row: Row) -> list[float]:
    """The paper's, ours with 10 and 1000 classes; flops of the paper are none of multiply-adds."""
    model = row.labels[0].lower()
    printed = published.TABLE_3[model]
    found = [complexity(model, classes=classes, side=224) for classes in (10, 1000)]
    return [
        *(printed.parameters, *(of.parameters / 1e6 for of in found)),
        *(printed.megabytes, *(of.raw_bytes / 1e6 for of in found)),
        *(printed.lossy, *(100 * of.lossy_share for of in found)),
        *(printed.gigaflops, *(of.flops / 1e9 for of in found)),
        *(of.multiply_adds / 1e9 for of in found),
    ]


def slow_start() -> list[float]:
    """Up at 100 Mbps, 500 Mbps and 1 Gbps with 50 ms; then a plain socket; then down."""
    far = [row.cells for row in links("TCP ratio") if row.cells[1:3] == ("50 ms", "raw")][-3:]
    return [float(cells[column]) for column in (10, 11, 6) for cells in far]


def speedups() -> list[float]:
    """Least and greatest up to 100 Mbps but for its last; that; the fastest link; its model."""
    *found, (last, model) = (map(float, row.cells[-2:]) for row in links("speed-up"))
    slow = [measured for measured, _ in found[:8]]
    ninth, _ = found[8]
    return [min(slow), max(slow), ninth, last, model]
