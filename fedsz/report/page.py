"""The page: what is in it, in order, and all of it as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedsz.experiments.link_model import Link
from fedsz.formatting import count, digits, listed
from fedsz.palette import css
from fedsz.report import accuracy, distributions, tables, times
from fedsz.report.chart import Chart, Item, Omitted, Table
from fedsz.report.rate_accuracy import Compared, RateAccuracy, rate_accuracies
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, difference, machines, settings_of
from fedsz.report.style import files, inline, line_styles
from fedsz.whole_files import write_whole

EQUAL: Final = 0.005  # mean loss of accuracy, as a share, up to which ways are compared by bytes


@dataclass(frozen=True)
class Section:
    """A part of a page: charts, then tables, then what is left out."""

    name: str  # unique in a report; letters, digits and dashes
    title: str
    items: Sequence[Item]


def contents(
    sources: Sequence[Path],  # what the runs were read from
    runs: Sequence[Run],
    links: Sequence[Link],  # that times are calculated for; figures of one link take the first
    scaling: Sequence[times.Point] | None,  # rows of a table of scaling
    reach: float | None = None,  # accuracy that bytes are counted to; see `rate_accuracies`
) -> tuple[str, list[str], list[Section]]:
    """Return the title, the facts on top and the sections of a report."""
    settings = settings_of(runs)
    styles = line_styles(group.label for setting in settings for group in setting.groups)
    compared = [(setting, rate_accuracies(setting, reach)) for setting in settings]
    sections = []
    if settings:
        sections.append(Section("overview", "Overview", [tables.ways(compared, reach)]))
        curves = [accuracy.reached_chart(compared, reach)]
        for setting, ways in compared:
            curves += [accuracy.bytes_chart(setting, ways), accuracy.ratio_chart(setting, ways)]
        sections.append(Section("bytes", "Accuracy over bytes", curves))
        if any(len(setting.bounds) > 1 for setting in settings):
            sections.append(Section("bounds", "Ratio over bounds", [tables.ratios(settings)]))
    for setting in settings:
        items = [
            accuracy.rounds_chart(setting, styles),
            accuracy.bounds_chart(setting, styles),
            times.split_chart(setting, links[0]),
            times.bounds_chart(setting, styles, links),
            times.bandwidths_chart(setting, styles, links),
            distributions.weights_chart(setting),
            distributions.errors_chart(setting),
            tables.accuracies(setting),
            tables.timings(setting, links[0]),
            distributions.fits(setting),
        ]
        sections.append(Section(setting.name, setting.title, items))
    if scaling is not None:
        sections.append(Section("scaling-of-rounds", "Scaling", [times.scaling_figure(scaling)]))
    if failed := tables.failures(runs):
        sections.append(Section("failed-runs", "Failed runs", [failed]))
    what = "Run" if all(source.is_dir() for source in sources) else "Sweep"
    names = ", ".join(source.resolve().stem for source in sources)
    return f"{what} {names}", list(_facts(runs, compared)), sections


def render(title: str, facts: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page: a title, sentences that stand on top, and the sections in order."""
    import jinja2
    from markupsafe import Markup

    loader = jinja2.PackageLoader("fedsz.report", ".")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    for kind in (Chart, Table, Omitted):
        environment.tests[kind.__name__.lower()] = lambda item, kind=kind: isinstance(item, kind)
    values = {"title": title, "facts": facts, "sections": sections, "palette": css()}
    return environment.get_template("template.html.j2").render(
        values,
        svgs=lambda chart: map(Markup, inline(chart)),  # matplotlib has escaped the names
    )


def write_figures(folder: Path, sections: Sequence[Section]) -> None:
    """Write every chart as NAME.svg and NAME.png.

    Raises:
        ConfigError: one of them cannot be written.
    """
    items = (item for section in sections for item in section.items)
    for chart in (item for item in items if isinstance(item, Chart)):
        for suffix, data in files(chart).items():
            write_whole(folder / f"{chart.name}.{suffix}", data)


def _facts(runs: Sequence[Run], compared: Compared) -> Iterator[str]:
    failed = sum(bool(run.error) for run in runs)
    bad = f", {failed} of them failed" if failed else ""
    seeds = sorted({run.seed for run in runs})
    yield f"{count(len(runs), 'run')}{bad}; {listed('seed', seeds)}; {machines(runs)}."
    versions = sorted({run.version for run in runs if run.version})
    days = sorted({f"{run.time:%Y-%m-%d}" for run in runs if run.time})
    if versions and days:
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        yield f"Made with fedsz {', '.join(versions)}, {when}."
    if not compared:
        yield "No run ended well, so there is no figure."
    yield from filter(None, (_fewest_bytes(setting, ways) for setting, ways in compared))


def _fewest_bytes(setting: Setting, compared: Sequence[RateAccuracy]) -> str:
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
            f"{setting.title}: none of {all_ways} has a mean accuracy {near}. {best.name} comes"
            f" nearest: {difference(found)} points, {digits(best.total)} times fewer bytes."
        )
        if found and not found.mean + found.reach < -EQUAL:  # of one seed, the reach is NaN
            seeds = count(found.count, "seed")
            said += f" That may be chance: {seeds} cannot tell. Sweep with more --seeds."
        return said
    best = max(equal, key=lambda way: way.total)
    said = (
        f"{setting.title}: {best.name} sends {digits(best.total)} times fewer bytes over whole runs"
        f" ({digits(best.up)} up, {digits(best.down)} down)"
    )
    if len(ways) > 1:
        among = f"those with a mean accuracy {near} ({len(equal)} of {all_ways})"
        said += f", the fewest of {among if setting.baseline else all_ways}"
    if best.difference:
        seeds = count(best.difference.count, "seed")
        said += f"; its accuracy: {difference(best.difference)} points (mean of {seeds})"
    return f"{said}."
