"""What checked-in rows, and the paper, say of the numbers in README and docs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.paper import published
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
from fedsz.report.rate_accuracy import RateAccuracy, rate_accuracies
from fedsz.report.runs import Run, Setting, Spread, settings_of
from fedsz.report.source import read_source
from tests.conftest import ROOT

NUMBER = re.compile(r"(?<![\w.:@-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w-]|\.\d)")
CODECS = "docs/results/codecs.txt"
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


def numbers_of(cell: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(cell)]


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
    named_ = {re.sub(r" \(\w+>\d+\)$", "", way.name): way for way in found}
    return {name: replace(way, name=name) for name, way in named_.items()}


def interval(of: Spread | None) -> list[float]:
    """Mean and half the 95 % interval of a share, in points."""
    assert of
    return [100 * of.mean, 100 * of.reach]


def over(rounds: slice, of: Setting, way: RateAccuracy) -> list[float]:
    """Points of accuracy over these rounds, as `interval` has it."""
    plain = {run.seed: run.accuracies for run in of.baseline}
    sent = {run.seed: run.accuracies for run in of.runs if str(run.way) == way.name}
    return interval(Spread.of(fmean(sent[s][rounds]) - fmean(plain[s][rounds]) for s in sent))


# What tables say of a way.
NUMBERS: Mapping[str, Callable[[Setting, RateAccuracy], list[float]]] = {
    "seeds": lambda _, way: [way.difference.count if way.difference else 0],
    "up": lambda _, way: [way.up],
    "down": lambda _, way: [way.down],
    "total": lambda _, way: [way.total],
    "mean": lambda _, way: interval(way.difference)[:1],
    "points": lambda _, way: interval(way.difference),
    "late": lambda of, way: over(slice(-20, None), of, way),
}


def told(what: str, label: str, *files: str, **conditions: str | int) -> list[float]:
    """The `NUMBERS` of these names, of the way that a label of `WAYS` or its own text says."""
    of, way = setting(*files, **conditions), ways(*files, **conditions)[WAYS.get(label, label)]
    return [number for name in what.split() for number in NUMBERS[name](of, way)]


def by_downlink(what: str, label: str, *files: str, **conditions: str | int) -> list[float]:
    """Of a way that comes down at 0.015, as tables leave out."""
    return told(what, WAYS.get(label, f"{label}/0.015"), *files, **conditions)


def on_both(what: str, label: str, file: str, model: str = "cnn") -> list[float]:
    """Of both data sets."""
    datasets = DATASETS.values()
    return [x for of in datasets for x in told(what, label, file, dataset=of, model=model)]


def updates(what: str, label: str) -> list[float]:
    """Of updates.parquet by a label such as ``CIFAR-10, Dirichlet 0.5: auto``."""
    where, _, name = label.partition(": " if ": " in label else ", ")
    dataset, _, shares = where.partition(", ")
    partition = f"dirichlet:{shares.split()[1]}" if shares.startswith("Dirichlet") else "iid"
    return told(what, name, "updates", dataset=DATASETS[dataset], partition=partition)


def by_bound(row: Row) -> list[float]:
    model, dataset = row.labels[0].partition(" (")[0].split(", ")
    prefix = "weights" if row.labels[1] == "uniform" else f"weights:{row.labels[1]}"
    where = {"dataset": DATASETS[dataset], "model": model}
    bounds = ("0.0001", "0.001", "0.01", "0.1")
    return [x for at in bounds for x in told("mean", f"{prefix}@{at}", "sweep", **where)]


def compared(row: Row) -> list[float]:
    """A way of methods.parquet, where ten of a hundred clients train in a round."""
    where = {"model": "mlp", "partition": "dirichlet:0.3", "clients": 100}
    return by_downlink("up total points", row.labels[0], "methods", **where)


def on_large(what: str, label: str) -> list[list[float]]:
    """A way of methods-large.parquet on each of its large tasks."""
    skewed = {"model": "cnn", "partition": "dirichlet:0.3"}
    tasks = {**skewed, "clients": 4}, {**skewed, "clients": 100}, {"model": "gpt"}
    return [by_downlink(what, label, "methods-large", **of) for of in tasks]


def compared_large(row: Row) -> list[float]:
    return [x for numbers in on_large("total late", row.labels[0]) for x in numbers]


def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def beside_the_others(row: Row) -> list[float]:
    """A row of the first table of docs/results/codecs.txt: ``cnn update, std 1``."""
    (table, _), *_ = tables(text(CODECS))
    (found,) = (of.cells for of in rows(table) if ", ".join(of.labels) == row.labels[0])
    return [x for cell in found for x in numbers_of(cell)[:1]]


@cache
def codecs(data: str) -> dict[tuple[str, str], list[float]]:
    """Ratio and both speeds of a part of docs/results/codecs.txt, by bound and codec."""
    (table, _), *_ = tables(text(CODECS).split(f"\n### {data}\n")[1])
    return {
        row.labels: [x for i in (0, 2, 4) for x in numbers_of(row.cells[i])[:1]]
        for row in rows(table)
    }  # fmt: skip


def codec_speeds(row: Row) -> list[float]:
    names = {"uniform, AVX2 alone": "uniform (AVX2)", "uniform, no SIMD": "uniform (no SIMD)"}
    name = row.labels[0].replace("*", "")
    name = names.get(name, name)
    update = codecs("alexnet update").get(("std 1", name), ())
    return [*codecs("resnet50 weights")["rel 1e-2", name], *update]


def published_ratios(row: Row) -> list[float]:
    """The paper's half of Table I; ours are measured, and marked."""
    (codec,) = row.labels
    models = published.MODELS if codec in published.CODECS else ()
    return [published.TABLE_1[model, codec, published.RECOMMENDED_BOUND].ratio for model in models]


@cache
def core_runs() -> Mapping[tuple[str, str], Mapping[int, dict[str, Any]]]:
    """The runs of core.parquet by task and way, then by seed."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for run in pq.read_table(ROOT / "docs" / "results" / "core.parquet").to_pylist():
        found.setdefault((run["task"], run["way"]), {})[run["seed"]] = run
    return found


def core(row: Row) -> list[float]:
    """What `auto` costs and saves on a task, beside uncompressed runs of the same seeds."""
    (task,) = row.labels
    plain, auto = core_runs()[task, "raw"], core_runs()[task, "auto"]
    points = [
        100 * (fmean(run["accuracies"]) - fmean(plain[seed]["accuracies"]))
        for seed, run in auto.items()
    ]
    runs = list(auto.values())
    saved = (fmean(run[name] for run in runs) for name in ("up", "down", "both"))
    return [len(runs[0]["accuracies"]), len(runs), fmean(points), min(points), *saved]


SETTINGS: Mapping[str, dict[str, Any]] = {
    "--update delta": {"update": "delta"},
    "--update delta --downlink std:1": {"update": "delta", "downlink": "std:1"},
    "--update delta+ef": {"update": "delta+ef"},
    "--policy auto": {},
    "--update dgc>topk": {"update": "dgc>topk"},
    "--update ecx>topk": {"update": "ecx>topk"},
}


def client_state(row: Row) -> list[float]:
    """Sizes of a client's records after three rounds, as shares of a model of one tensor."""
    contexts: list[Context] = []
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        contexts.append(context)
        (x,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        step = np.random.default_rng(len(contexts)).normal(size=x.shape).astype(np.float32)
        arrays, metrics = ArrayRecord([x + step]), MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    first = ArrayRecord([np.zeros((512, 512), np.float32)])
    grid = FedSZGrid(LocalGrid(app, [{}]), **SETTINGS[row.labels[0]])
    strategy = StreamingFedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1)
    strategy.start(grid, first, num_rounds=3)
    records = contexts[-1].state.array_records
    return [
        sum(
            len(array.data) / 512 / 512 / 4
            for name, record in records.items()
            for array in record.values()
            if name.startswith(f"fedsz.{kind}.")
        )
        for kind in ("reference", "memory", "reply")
    ]
