"""The page: its charts and tables, in one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedsz.experiments.link_model import Link
from fedsz.formatting import NOTHING, count, digits, listed, percent, size_in_digits
from fedsz.palette import css
from fedsz.report.charts import charts
from fedsz.report.figures import Chart, drawn
from fedsz.report.rate_accuracy import NEARLY, RateAccuracy, rate_accuracies
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread, difference, machines, settings_of
from fedsz.report.runs import spread as shown

EQUAL: Final = 0.005  # mean loss of accuracy, as a share, up to which ways are compared by bytes


@dataclass(frozen=True)
class Table:
    """Rows of cells, as people read them."""

    name: str  # unique in a report; letters, digits and dashes
    title: str
    caption: str  # what the numbers are
    head: tuple[str, ...]  # a name per column
    rows: Sequence[tuple[str, ...]]
    words: int = 1  # how many columns, from the left, hold words


@dataclass(frozen=True)
class Section:
    """What is said of runs that can be compared."""

    name: str  # unique in a report; letters, digits and dashes
    title: str
    summary: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


def contents(
    runs: Sequence[Run],
    links: Sequence[Link],  # that times are calculated for
    reach: float | None = None,  # accuracy that bytes are counted to; see `rate_accuracies`
) -> tuple[list[str], list[Section]]:
    """Return the facts on top and the sections of a report."""
    sections = []
    for setting in settings_of(runs):
        ways = rate_accuracies(setting, reach)
        sections.append(
            Section(
                setting.name,
                setting.title,
                f"{_fewest_bytes(setting, ways)} {setting.provenance}".strip(),
                list(charts(setting, ways, links)),
                [_ways(setting, ways, reach)],
            )
        )
    if failed := _failures(runs):
        sections.append(Section("failed-runs", "Failed runs", "", (), [failed]))
    return list(_facts(runs)), sections


def render(title: str, facts: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page: a title, sentences that stand on top, and the sections in order."""
    import jinja2

    def picture(chart: Chart) -> str:
        return base64.b64encode(drawn(chart)["svg"]).decode()

    loader = jinja2.PackageLoader("fedsz.report", ".")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    values = {"title": title, "facts": facts, "sections": sections, "palette": css()}
    return environment.get_template("template.html.j2").render(values, picture=picture)


def title_of(sources: Sequence[Path]) -> str:
    """Return what a report of these files and folders is called."""
    what = "Run" if all(source.is_dir() for source in sources) else "Sweep"
    return f"{what} {', '.join(source.resolve().stem for source in sources)}"


def _facts(runs: Sequence[Run]) -> Iterator[str]:
    failed = sum(bool(run.error) for run in runs)
    bad = f", {failed} of them failed" if failed else ""
    seeds = sorted({run.seed for run in runs})
    yield f"{count(len(runs), 'run')}{bad}; {listed('seed', seeds)}; {machines(runs)}."
    versions = sorted({run.version for run in runs if run.version})
    days = sorted({f"{run.time:%Y-%m-%d}" for run in runs if run.time})
    if versions and days:
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        yield f"Made with fedsz {', '.join(versions)}, {when}."
    for run in runs:
        if run.missing_rounds:
            made, all_rounds = run.rounds[-1].round, count(run.conditions["rounds"], "round")
            way = run.name or run.way
            yield f"Not finished: {way}, seed {run.seed}, has made {made} of {all_rounds}."
    if not any(not run.error and run.rounds for run in runs):
        yield "No run ended well, so there is no figure."


def _fewest_bytes(setting: Setting, compared: Sequence[RateAccuracy]) -> str:
    """Say which way sends the fewest bytes of those that are about as accurate."""
    ways = [way for way in compared if way.name != UNCOMPRESSED and way.smallness]
    if not ways:
        return ""
    # Rounded, because accuracies are shares of whole images, and 0.5 points exactly are equal.
    equal = [way for way in ways if round(way.points, 6) >= -EQUAL] if setting.baseline else ways
    near, all_ways = f"within {100 * EQUAL:g} points of uncompressed", count(len(ways), "scheme")
    if not equal:
        best = max(ways, key=lambda way: way.points)
        found = best.difference
        said = (
            f"None of {all_ways} has a mean accuracy {near}. {best.name} comes"
            f" nearest: {difference(found)} points, {digits(best.total)} times fewer bytes."
        )
        if found and not found.mean + found.reach < -EQUAL:  # of one seed, the reach is NaN
            seeds = count(found.count, "seed")
            said += f" That may be chance: {seeds} cannot tell. Sweep with more --seeds."
        return said
    best = max(equal, key=lambda way: way.total)
    said = (
        f"{best.name} sends {digits(best.total)} times fewer bytes over whole runs"
        f" ({digits(best.up)} up, {digits(best.down)} down)"
    )
    if len(ways) > 1:
        among = f"those with a mean accuracy {near} ({len(equal)} of {all_ways})"
        said += f", the fewest of {among if setting.baseline else all_ways}"
    if best.difference:
        seeds = count(best.difference.count, "seed")
        said += f"; its accuracy: {difference(best.difference)} points (mean of {seeds})"
    return f"{said}."


def _ways(setting: Setting, ways: Sequence[RateAccuracy], reach: float | None) -> Table:
    """Return what each way saves and costs; for ``reach`` see `rate_accuracies`."""
    goals = (reach,) if reach else NEARLY
    to = f"an accuracy of {100 * reach:g} %" if reach else "so much of the best uncompressed one"
    rows = []
    for way in ways:
        accuracy = shown(Spread.of(run.accuracy for run in way.runs), percent)
        pairs = str(way.difference.count) if way.difference else NOTHING
        points = NOTHING if way.name == UNCOMPRESSED else difference(way.difference)
        error = max(run.max_error for run in way.runs)
        ratios = (digits(x) for x in (way.up, way.down, way.total))
        rows.append(
            (way.name, *ratios, accuracy, points, pairs, digits(error), *map(_sent, way.reached))
        )
    caption = (
        "Ratios are uncompressed bytes over sent ones, of all rounds and seeds. Accuracy is after"
        " the last round: the median (least … greatest). Points are the mean difference to the"
        " uncompressed run of the same seed, with its 95 % interval by Student's t. The error is"
        " the largest of any round, over its bound. Bytes are up plus down until"
        f" {to}, on a straight line between rounds: the mean over the seeds that got there,"
        " and how many did if not all."
    )
    head = (
        *("way", "ratio up", "ratio down", "ratio of all", "accuracy, %", "points", "seeds"),
        *("error / bound", *(f"bytes to {100 * goal:g} %" for goal in goals)),
    )
    return Table(f"{setting.name}-ways", "Bytes and accuracy", caption, head, rows)


def _sent(reached: Sequence[float]) -> str:
    there = [nbytes for nbytes in reached if math.isfinite(nbytes)]
    if not reached or not there:
        return "not reached" if reached else NOTHING
    share = f" ({len(there)} of {len(reached)})" if len(there) < len(reached) else ""
    return f"{size_in_digits(sum(there) / len(there))}{share}"


def _failures(runs: Sequence[Run]) -> Table | None:
    """Return the runs that failed, and why."""
    conditions = ("model", "dataset", "clients", "rounds")
    rows = [
        (*(str(run.conditions[x]) for x in conditions), str(run.way), str(run.seed), run.error)
        for run in runs
        if run.error
    ]
    head = (*conditions, "scheme", "seed", "error")
    caption = "They are in no figure and in no other table."
    return Table("failures", "Runs that failed", caption, head, rows, words=7) if rows else None
