"""What the checked-in rows say of the numbers in docs/results/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean, geometric_mean

import pyarrow.parquet as pq

from benchmarks.defaults import Line, lines
from fedsz.control.auto import GUARD
from fedsz.control.record import RoundRecord
from fedsz.report.rate_accuracy import RateAccuracy, rate_accuracies
from fedsz.report.runs import Setting, Spread, settings_of
from tests.conftest import ROOT
from tests.documented_rows import DATASETS, WAYS, Row, interval, runs, seeds, setting, updates, ways


def by_shares(row: Row) -> list[float]:
    """Three ways where shares are as the label says."""
    of = {name: updates(Row((f"{row.labels[0]}: {name}",), ())) for name in ("sz2", "hand", "auto")}
    found = (x for way in of.values() for x in (way.up, way.total, *interval(way)))
    return [seeds(of["auto"]), *found]


def each_part(row: Row) -> list[float]:
    """A way on equal shares of each data set."""
    of = [ways("updates", dataset=dataset)[row.labels[0]] for dataset in DATASETS.values()]
    return [x for way in of for x in (way.up, *interval(way), seeds(way))]


def long_runs(row: Row) -> list[float]:
    of = setting("horizon", dataset="cifar10")
    way = ways("horizon", dataset="cifar10")[row.labels[0]]
    return [seeds(way), way.up, way.down, way.total, *course_and_late(of, row.labels[0])]


def three_hundred_rounds() -> list[float]:
    conditions = {"dataset": "cifar10", "partition": "dirichlet:0.3"}
    way, of = ways("horizon", **conditions)["auto"], setting("horizon", **conditions)
    return [way.up, way.down, way.total, *course_and_late(of, "auto")]


def course_and_late(of: Setting, label: str) -> list[float]:
    """Points over all rounds and over the last twenty, each with its interval."""
    plain = {run.seed: run.accuracies for run in of.baseline}
    sent = {run.seed: run.accuracies for run in of.runs if str(run.way) == label}
    found: list[float] = []
    for rounds in (slice(1, None), slice(-20, None)):
        points = Spread.of(fmean(sent[seed][rounds]) - fmean(plain[seed][rounds]) for seed in sent)
        assert points
        found += [100 * points.mean, 100 * points.reach]
    return found


@cache
def defaults() -> dict[str, Line]:
    rows = pq.read_table(ROOT / "docs" / "results" / "defaults.parquet").to_pylist()
    return {line.name: line for line in lines(rows)}


def over_all_tasks() -> list[float]:
    """Least and most of what the default saves in both directions and changes over all rounds."""
    saved = sorted(line.both for line in defaults().values())
    moved = sorted(100 * line.course.mean for line in defaults().values())
    return [saved[0], saved[-1], moved[0], moved[-1]]


def default(row: Row) -> list[float]:
    """What the default costs and saves on a task of the portfolio."""
    line = defaults()[row.labels[0]]
    spreads = [100 * x for s in (line.points, line.course, line.loss) for x in (s.mean, s.reach)]
    ratios = line.up, line.down, line.both
    return [line.seeds, 100 * line.plain, *spreads, 100 * line.kept, *ratios]


PORTFOLIO = {
    "mlp": "digits",
    "logistic": "fashion_mnist",
    "lstm": "shakespeare",
    "gpt": "shakespeare",
}


def portfolio(row: Row) -> list[float]:
    """A way of ways.parquet, or of defaults.parquet, on each of four tasks."""
    name = WAYS.get(row.labels[0], row.labels[0])
    of = [ways("defaults", "ways", dataset=of, model=task)[name] for task, of in PORTFOLIO.items()]
    return [x for way in of for x in (way.up, *interval(way))]


def compared(row: Row) -> list[float]:
    """A way of methods.parquet, where four of four clients train in a round; ten of a hundred."""
    label, found = row.labels[0], []
    for clients in (4, 100):
        named = ways("methods", model="mlp", clients=clients, partition="dirichlet:0.3")
        sent, into, server = label.partition(" into ")
        way = named[WAYS.get(label, f"{sent}/0.015{into}{server}")]
        found += [way.up, way.total, *interval(way)]
    return found


def compared_large(row: Row) -> list[float]:
    """A way of methods-large.parquet on each of its large tasks, as `late_in` has it."""
    skewed = {"model": "cnn", "partition": "dirichlet:0.3"}
    tasks = {**skewed, "clients": 4}, {**skewed, "clients": 100}, {"model": "gpt"}
    return [x for conditions in tasks for x in late_in(row.labels[0], **conditions)]


def compared_tuned(row: Row) -> list[float]:
    """A way of methods-large.parquet where a MiniLM is tuned by LoRA, as `late_in` has it."""
    return late_in(row.labels[0], model="minilm-lora")


def late_in(way: str, **conditions: str | int) -> list[float]:
    """Times fewer bytes, and points over the last twenty rounds with their interval."""
    sent, into, server = way.partition(" into ")
    label = WAYS.get(way, f"{sent}/0.015{into}{server}")
    of = setting("methods-large", **conditions)
    plain = {run.seed: run for run in of.baseline}
    found = ways("methods-large", **conditions)[label]
    late = Spread.of(
        fmean(run.accuracies[-20:]) - fmean(plain[run.seed].accuracies[-20:])
        for run in of.runs
        if str(run.way) == label
    )
    assert late
    return [found.total, 100 * late.mean, 100 * late.reach]


def worth_of_feedback() -> list[float]:
    """Bytes up with feedback at 3.5e-2 as a share of those without at 1e-2; loss without it."""
    found = [ways("updates", dataset=dataset) for dataset in DATASETS.values()]
    shares = sorted(100 * of["delta@0.01"].up / of["delta+ef@0.035"].up for of in found)
    return [*shares, *sorted(-interval(of["delta@0.035"])[0] for of in found)]


def every_auto() -> list[RateAccuracy]:
    shares = ("iid", "dirichlet:0.5", "dirichlet:0.1")
    return [
        ways("updates", dataset=dataset, partition=partition)["auto"]
        for dataset in DATASETS.values()
        for partition in shares
    ]


def savings() -> list[float]:
    """Least and greatest of what `auto` saves."""
    found = every_auto()
    of = ("up", "down", "total", "fewer")
    return [f(getattr(way, name) for way in found) for name in of for f in (min, max)]


def sampled() -> list[float]:
    """What `auto` saves, and its points, where eight of fifty clients train in a round."""
    way = ways("sampled", dataset="fashion_mnist", partition="dirichlet:0.3")["auto"]
    assert way.difference
    return [way.up, way.down, way.total, 100 * way.difference.mean]


def hundred(row: Row) -> list[float]:
    """What a way costs and saves in a hundred rounds, with ten of a hundred clients."""
    name, _, data = row.labels[0].partition(", ")
    model = {"logistic regression": "logistic"}.get(name, name)
    dataset = DATASETS.get(data, data)
    of = setting("hundred", dataset=dataset, model=model, partition="dirichlet:0.3")
    label = WAYS.get(row.labels[1], f"{row.labels[1]}/0.015")
    way = ways("hundred", dataset=dataset, model=model, partition="dirichlet:0.3")[label]
    last = 100 * fmean(run.accuracy for run in of.baseline)
    return [seeds(way), last, way.up, way.down, way.total, *course_and_late(of, label)]


def guarded() -> list[float]:
    """Least and largest mean factor of `auto`'s guard in runs of a hundred clients."""
    table = pq.read_table(ROOT / "docs" / "results" / "hundred.parquet")
    found: dict[str, list[RoundRecord]] = {}
    for row in sorted(table.to_pylist(), key=lambda row: row["round"]):
        if row["policy"] == "auto":
            seen = {name: row[name] for name in ("round", "replies", "accuracy", "loss")}
            found.setdefault(row["run"], []).append(RoundRecord(**seen))
    factors = [geometric_mean(factors_of(history[:-1])) for history in found.values()]
    return [min(factors), max(factors)]


def factors_of(history: Sequence[RoundRecord]) -> Iterator[float]:
    """The guard's factor after each round."""
    guard = replace(GUARD, tolerance=0.5)
    for seen in history:
        guard.observe(seen)
        yield guard.factor


def ablation(row: Row) -> list[float]:
    """A way of ablations.parquet, by clients, rounds or epochs, and by bound and decay."""
    federation, text = row.labels
    numbers = [int(x) for x in re.findall(r"\d+", federation)]
    if "epoch" in federation:
        wanted = {"rounds": numbers[0], "epochs": numbers[1], "clients": 4}
    elif len(numbers) == 2:
        wanted = {"clients_per_round": numbers[0], "clients": numbers[1]}
    else:
        wanted = {"clients": numbers[0], "rounds": 20, "epochs": 1}
    (of,) = (
        of
        for of in settings_of(runs("ablations"))
        if wanted.items() <= dict(of.runs[0].conditions).items()
    )
    bound, _, decay = text.partition(", ")
    name = text if text == "auto" else f"delta+ef@{bound}/step:0.6" + (decay and f" ({decay})")
    (way,) = (way for way in rate_accuracies(of) if way.name == name)
    plain = 100 * fmean({run.seed: run.accuracy for run in of.baseline}.values())
    return [seeds(way), plain, way.up, way.down, way.total, *interval(way)]
