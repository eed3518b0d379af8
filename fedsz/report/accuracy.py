"""Accuracy: over rounds (the paper's Figure 4) and over bounds (its Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from fedsz.formatting import percent
from fedsz.report import series
from fedsz.report.chart import Chart, Omitted
from fedsz.report.runs import Group, Setting, Spread, named, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS: Final = 6  # as many bounds as a page shows


def rounds_chart(setting: Setting, styles: series.Styles) -> Chart | Omitted:
    """Draw accuracy over rounds, a panel for each bound."""
    title = "Accuracy over rounds"
    if all(len(run.rounds) < 2 for run in setting.runs):
        return Omitted(title, "no round of training is recorded")
    panels = []
    for bound in series.thinned(setting.bounds, PANELS) or (None,):
        lines = {group.label: _over_rounds(group) for group in setting.at(bound)}
        says = _says(lines, "after the last round")
        panels.append(
            series.lines_panel(named(bound, ""), lines, styles, says, _rounds_axes, factor=100)
        )
    caption = (
        "Accuracy of the averaged model on the server's held-out images; round 0 is before"
        f" training. {series.spread_note(setting.runs)}"
        f"{series.others_note(len(setting.bounds) - len(panels))}"
    )
    return Chart.of(setting, "accuracy-rounds", title, caption, *panels)


def bounds_chart(setting: Setting, styles: series.Styles) -> Chart | Omitted:
    """Draw the accuracy after the last round over the bound, a panel for each kind of bound."""
    title = "Accuracy over error bound"
    if few := series.too_few_bounds(setting):
        return Omitted(title, few)
    level = Spread.of(run.accuracy for run in setting.baseline)
    more = f"; uncompressed {spread(level, percent)}" if level else ""
    caption = (
        "Accuracy of the averaged model after the last round. A codec without a bound is a level."
        f" {series.spread_note(setting.runs)}"
    )
    says = partial(_says, where="at the largest bound", more=more)
    panels = series.bounds_panels(
        setting, lambda run: run.accuracy, styles, says, lambda ax: ax.set_ylabel("accuracy, %"),
        factor=100,
    )  # fmt: skip
    return Chart.of(setting, "accuracy-bound", title, caption, *panels)


def _over_rounds(group: Group) -> series.Series:
    rounds = (zip(run.rounds, run.accuracies, strict=True) for run in group.runs)
    return series.series_of((done.round, accuracy) for run in rounds for done, accuracy in run)


def _says(lines: Mapping[str, series.Series], where: str, more: str = "") -> str:
    ends = [f"{k} {spread([*v.values()][-1], percent)}" for k, v in lines.items() if v]
    return f"Accuracy in percent {where}: {'; '.join(ends)}{more}"


def _rounds_axes(ax: Axes) -> None:
    ax.set(xlabel="round", ylabel="accuracy, %")
    ax.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
