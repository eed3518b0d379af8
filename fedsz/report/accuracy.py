"""Accuracy: over rounds (the paper's Figure 4) and over bounds (its Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fedsz.bounds import ErrorBound
from fedsz.formatting import percent
from fedsz.report.chart import Chart, Omitted, Panel
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, named
from fedsz.report.series import (
    Series,
    Styles,
    by_kind,
    draw_over_bounds,
    draw_series,
    levels,
    others_note,
    over_bounds,
    spread_note,
    thinned,
    too_few_bounds,
)
from fedsz.report.statistics import Spread, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS: Final = 6  # as many bounds as a page shows


def rounds_chart(setting: Setting, styles: Styles) -> Chart | Omitted:
    """Draw accuracy over rounds, a panel for each bound."""
    title = "Accuracy over rounds"
    if all(len(run.rounds) < 2 for run in setting.runs):
        return Omitted(title, "no round of training is recorded")
    bounds: Sequence[ErrorBound | None] = thinned(setting.bounds, PANELS) or [None]
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
        f" training. {spread_note(setting.runs)}{others_note(len(setting.bounds) - len(panels))}",
        setting.provenance,
        tuple(panels),
    )


def bounds_chart(setting: Setting, styles: Styles) -> Chart | Omitted:
    """Draw the accuracy after the last round over the bound, a panel for each kind of bound."""
    title = "Accuracy over error bound"
    if few := too_few_bounds(setting):
        return Omitted(title, few)
    flat = levels(setting, _accuracy)
    panels = []
    for kind, bounds in by_kind(setting.bounds):
        lines = over_bounds(setting, bounds, _accuracy)
        says = _says(lines, "at the largest bound")
        if UNCOMPRESSED in flat:
            says += f"; uncompressed {spread(flat[UNCOMPRESSED], percent)}"
        draw = partial(_draw_bounds, kind=kind, lines=lines, flat=flat, styles=styles)
        panels.append(Panel("", draw, says))
    return Chart(
        f"{setting.name}-accuracy-bound",
        title,
        "Accuracy of the averaged model after the last round. What no bound steers is a level."
        f" {spread_note(setting.runs)}",
        setting.provenance,
        tuple(panels),
    )


def _accuracy(run: Run) -> float:
    return run.accuracy


def _over_rounds(runs: Sequence[Run]) -> Series:
    values: dict[int, list[float]] = {}
    for run in runs:
        for done in run.rounds:
            values.setdefault(done.number, []).append(done.accuracy)
    spreads = {number: Spread.of(found) for number, found in sorted(values.items())}
    return {number: found for number, found in spreads.items() if found}


def _says(lines: Mapping[str, Series], where: str) -> str:
    ends = (
        f"{label} {spread(list(line.values())[-1], percent)}"
        for label, line in lines.items()
        if line
    )
    return f"Accuracy in percent {where}: " + "; ".join(ends)


def _draw_rounds(ax: Axes, lines: Mapping[str, Series], styles: Styles) -> None:
    for label, line in lines.items():
        draw_series(ax, label, line, styles[label], 100, markers=len(line) <= 20)
    ax.set_xlabel("round")
    ax.set_ylabel("accuracy, %")
    ax.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]


def _draw_bounds(
    ax: Axes, kind: str, lines: Mapping[str, Series], flat: Mapping[str, Spread], styles: Styles
) -> None:
    draw_over_bounds(ax, kind, lines, flat, styles, factor=100)
    ax.set_ylabel("accuracy, %")
