"""What is in a report, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsz.experiments.link_model import Link
from fedsz.report import curves, tables, times
from fedsz.report import distributions as laws
from fedsz.report.accuracy_over_bytes import prices
from fedsz.report.chart import Absent, Chart, Sheet
from fedsz.report.numbers import digits, named, points
from fedsz.report.page import Section
from fedsz.report.runs import (
    UNCOMPRESSED,
    Run,
    Setup,
    Spread,
    count,
    listed,
    machines,
    paired,
    setups,
)
from fedsz.report.scaling import Point, scaling_figure
from fedsz.report.style import looks
from fedsz.report.times import updates


def contents(
    sources: Sequence[Path],
    runs: Sequence[Run],
    links: Sequence[Link],
    scaling: Sequence[Point] | None,
    reach: float | None = None,
) -> tuple[str, list[str], list[Section]]:
    """Return the title, the facts on top and the sections of a report.

    Args:
        sources: what the runs were read from.
        runs: all of them.
        links: that times are calculated for; figures of one link take the first.
        scaling: rows of a table of scaling, if there is one.
        reach: accuracy that bytes are counted to; see `prices`.
    """
    groups = setups(runs)
    sections = []
    if groups:
        sections.append(_section("overview", "Overview", [tables.ratios(groups)]))
        sections.append(_section("bytes", "Accuracy over bytes", prices(groups, reach)))
    labels = {label for setup in groups for label in setup.labels}
    style: dict[str, Any] = {"looks": looks(labels)}
    for setup in groups:
        items: list[Chart | Sheet | Absent] = [
            curves.over_rounds(setup, **style),
            curves.over_bounds(setup, **style),
            times.split(setup, links[0]),
            times.over_bounds(setup, links=links, **style),
            times.over_bandwidths(setup, links=links, latency=links[0].latency, **style),
            laws.weights(setup),
            laws.errors(setup),
            tables.accuracies(setup),
            tables.timings(setup, links[0]),
            laws.fits(setup),
        ]
        sections.append(_section(setup.name, setup.title, items))
    if scaling is not None:
        sections.append(_section("scaling-of-rounds", "Scaling", [scaling_figure(scaling)]))
    if failed := tables.failures(runs):
        sections.append(_section("failed-runs", "Failed runs", [failed]))
    what = "Run" if all(source.is_dir() for source in sources) else "Sweep"
    names = ", ".join(source.resolve().stem for source in sources)
    return f"{what} {names}", list(_facts(runs, groups)), sections


def _section(name: str, title: str, items: Sequence[Chart | Sheet | Absent]) -> Section:
    return Section(name, title, tuple(items))


def _facts(runs: Sequence[Run], groups: Sequence[Setup]) -> Iterator[str]:
    failed = sum(bool(run.error) for run in runs)
    bad = f", {failed} of them failed" if failed else ""
    seeds = sorted({run.seed for run in runs})
    yield f"{count(len(runs), 'run')}{bad}; {listed('seed', seeds)}; {machines(runs)}."
    versions = sorted({run.version for run in runs if run.version})
    days = sorted({f"{run.time:%Y-%m-%d}" for run in runs if run.time})
    if versions and days:
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        yield f"Made with fedsz {', '.join(versions)}, {when}."
    if not groups:
        yield "No run ended well, so there is no figure."
    for setup in groups:
        if said := _smallest(setup):
            yield said


def _smallest(setup: Setup) -> str:
    """Say which way makes updates smallest at the usual bound, and at what price."""
    found = {
        label: ratio
        for label, runs in setup.at(setup.usual)
        if label != UNCOMPRESSED
        if (ratio := Spread.of(update.ratio for update in updates(runs)))
    }
    if not found:
        return ""
    best = max(found, key=lambda label: found[label].middle)
    bound = setup.usual if best in setup.bounded else None
    runs = setup.of(best, bound)
    price = Spread.of(paired(runs, setup.baseline, lambda run: run.accuracy))
    beside = (
        f"; accuracy {points(price.mean)} points from uncompressed"
        f" (mean of {count(price.count, 'seed')})"
        if price
        else ""
    )
    at = f" at {named(bound)}" if bound else ""
    rivals = f", the smallest of {len(found)} ways" if len(found) > 1 else ""
    return (
        f"{setup.title}{at}: {best} makes updates {digits(found[best].middle)} times smaller"
        f"{rivals}{beside}."
    )
