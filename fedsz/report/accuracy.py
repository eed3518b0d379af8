"""Accuracy: over rounds (the paper's Figure 4) and over bounds (its Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fedsz.bounds import ErrorBound
from fedsz.formatting import percent
from fedsz.report import series
from fedsz.report.chart import Chart, Omitted, Panel
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, named
from fedsz.report.statistics import Spread, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS: Final = 6  # as many bounds as a page shows


def rounds_chart(setting: Setting, styles: series.Styles) -> Chart | Omitted:
    """Draw accuracy over rounds, a panel for each bound."""
    title = "Accuracy over rounds"
    if all(len(run.rounds) < 2 for run in setting.runs):
        return Omitted(title, "no round of training is recorded")
    bounds: Sequence[ErrorBound | None] = series.thinned(setting.bounds, PANELS) or [None]
    panels = []
    for bound in bounds:
        found = {label: _over_rounds(runs) for label, runs in setting.at(bound)}
        lines = {label: line for label, line in found.items() if line}
        draw = partial(_draw_rounds, lines=lines, styles=styles)
        panels.append(Panel(named(bound, ""), draw, _says(lines, "after the last round")))
    return Chart(
        f"{setting.name}-accuracy-rounds",
        title,
        "Accuracy of the averaged model on the server's held-out images; round 0 is before"
        f" training. {series.spread_note(setting.runs)}"
        f"{series.others_note(len(setting.bounds) - len(panels))}",
        setting.provenance,
        tuple(panels),
    )


def bounds_chart(setting: Setting, styles: series.Styles) -> Chart | Omitted:
    """Draw the accuracy after the last round over the bound, a panel for each kind of bound."""
    title = "Accuracy over error bound"
    if few := series.too_few_bounds(setting):
        return Omitted(title, few)
    flat = series.levels(setting, _accuracy)
    level = spread(flat.get(UNCOMPRESSED), percent)
    more = f"; uncompressed {level}" if UNCOMPRESSED in flat else ""
    return Chart(
        f"{setting.name}-accuracy-bound",
        title,
        "Accuracy of the averaged model after the last round. What no bound steers is a level."
        f" {series.spread_note(setting.runs)}",
        setting.provenance,
        tuple(
            series.bounds_panels(
                setting, _accuracy, flat, styles,
                lambda lines: _says(lines, "at the largest bound") + more,
                series.percent_axis, factor=100,
            )
        ),
    )  # fmt: skip


def _accuracy(run: Run) -> float:
    return run.accuracy


def _over_rounds(runs: Sequence[Run]) -> series.Series:
    values: dict[int, list[float]] = {}
    for run in runs:
        for done in run.rounds:
            values.setdefault(done.number, []).append(done.accuracy)
    spreads = {number: Spread.of(found) for number, found in sorted(values.items())}
    return {number: found for number, found in spreads.items() if found}


def _says(lines: Mapping[str, series.Series], where: str) -> str:
    ends = (
        f"{label} {spread(list(line.values())[-1], percent)}"
        for label, line in lines.items()
        if line
    )
    return f"Accuracy in percent {where}: " + "; ".join(ends)


def _draw_rounds(ax: Axes, lines: Mapping[str, series.Series], styles: series.Styles) -> None:
    for label, line in lines.items():
        series.draw_series(ax, label, line, styles[label], 100, markers=len(line) <= 20)
    ax.set_xlabel("round")
    series.percent_axis(ax)
    ax.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
