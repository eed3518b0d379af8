"""The page: every chart and table of a report in one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsz.report.chart import Chart, Item, Omitted, Table
from fedsz.report.style import COLOURS, files, inline
from fedsz.whole_files import write_whole


@dataclass(frozen=True)
class Section:
    """A part of a page: charts, then tables, then what is left out."""

    name: str  # unique in a report; letters, digits and dashes
    title: str
    items: Sequence[Item]


def render(title: str, facts: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page: a title, sentences that stand on top, and the sections in order."""
    import jinja2
    from markupsafe import Markup

    def svgs(chart: Chart) -> list[Markup]:
        # Ours: names in it were escaped by matplotlib.
        return [Markup(svg) for svg in inline(chart)]  # noqa: S704

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedsz.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.tests |= {
        "chart": lambda item: isinstance(item, Chart),
        "table": lambda item: isinstance(item, Table),
        "omitted": lambda item: isinstance(item, Omitted),
    }
    return environment.get_template("template.html.j2").render(
        title=title, facts=facts, sections=sections, svgs=svgs, colours=COLOURS
    )


def write_figures(folder: Path, sections: Sequence[Section]) -> None:
    """Write every chart as NAME.svg and NAME.png.

    Raises:
        ConfigError: one of them cannot be written.
    """
    items = (item for section in sections for item in section.items)
    for chart in items:
        if isinstance(chart, Chart):
            for suffix, data in files(chart).items():
                write_whole(folder / f"{chart.name}.{suffix}", data)
