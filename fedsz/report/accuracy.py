"""Accuracy over rounds and bounds (the paper's Figures 4 and 5), and over bytes up plus down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from fedsz.formatting import count, size_in_digits, tick
from fedsz.report import series
from fedsz.report.chart import Chart, Omitted
from fedsz.report.rate_accuracy import LOSS, RateAccuracy, best
from fedsz.report.runs import Setting, Spread, named
from fedsz.report.series import PERCENT, Axis
from fedsz.report.style import LIGHT, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS: Final = 6  # as many bounds as a page shows
NAMED: Final = 8  # ways with a colour and a name of their own in a figure
DEEP: Final = 25.0  # points below uncompressed at which the figure along the rounds ends
BEYOND: Final = 2.0  # points that whiskers are seen beyond the means
HEIGHT: Final = 3.4  # inches
ROW: Final = 0.2  # inches of a name in a legend
NO_BYTES: Final = "the bytes of no run are recorded"
SEEDS: Final = " Interval: 95 %, Student's t over the seeds."

BYTES: Final = Axis("bytes up plus down", partial(tick, show=size_in_digits), log=True)
POINTS: Final = Axis("points from uncompressed", "{:+.2f}".format)
RATIO: Final = Axis("times fewer bytes, up plus down", "{:,.3g}".format, log=True)


def rounds_chart(setting: Setting, styles: series.Styles) -> Chart | Omitted:
    """Draw accuracy over rounds, a panel for each bound."""
    title = "Accuracy over rounds"
    if all(len(run.rounds) < 2 for run in setting.runs):
        return Omitted(title, "no round of training is recorded")
    panels = []
    for bound in series.thinned(setting.bounds, PANELS) or (None,):
        lines = {
            group.label: series.series_of(
                (done.round, 100 * accuracy)
                for run in group.runs
                for done, accuracy in zip(run.rounds, run.accuracies, strict=True)
            )
            for group in setting.at(bound)
        }
        panels.append(series.lines_panel(named(bound, ""), lines, styles, series.ROUNDS, PERCENT))
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
    caption = (
        "Accuracy of the averaged model after the last round. A codec without a bound is a level."
        f" {series.spread_note(setting.runs)}"
    )
    panels = series.bounds_panels(setting, lambda run: 100 * run.accuracy, styles, PERCENT)
    return Chart.of(setting, "accuracy-bound", title, caption, *panels)


def bytes_chart(setting: Setting, ways: Sequence[RateAccuracy]) -> Chart | Omitted:
    """Draw accuracy over the bytes so far, a line for each scheme."""
    title = f"Accuracy over bytes, {setting.title}"
    lines = {
        way.name: series.series_of((sent, 100 * accuracy) for sent, accuracy in way.course)
        for way in ways
        if way.course
    }
    if not lines:
        return Omitted(title, NO_BYTES)
    y, zero = PERCENT, "There is no uncompressed run to compare with."
    if setting.baseline:
        y = POINTS
        zero = (
            "Zero is the last accuracy of the uncompressed run of the same seed; what is farther"
            f" than {DEEP:g} points below is cut off."
        )

    def cut(ax: Axes) -> None:
        low, high = ax.get_ylim()
        ax.set_ylim(max(low, -DEEP), max(high, 1 - DEEP))

    caption = (
        "A mark for each round: all bytes up plus down until then, of all clients, and the accuracy"
        f" of the averaged model; means over the seeds. {zero}{_grey(lines, ways)}"
    )
    height = HEIGHT + ROW * min(len(lines), NAMED)
    panel = series.lines_panel("", lines, _styles(ways), BYTES, y, height=height, more=cut)
    return Chart.of(setting, "accuracy-bytes", title, caption, panel)


def ratio_chart(setting: Setting, ways: Sequence[RateAccuracy]) -> Chart | Omitted:
    """Draw the difference of accuracy after the last round over the ratio of all bytes."""
    title = f"Accuracy over ratio, {setting.title}"
    if not setting.baseline:
        return Omitted(title, "there is no uncompressed run (raw) to compare with")
    finite = [way for way in ways if math.isfinite(way.total)]
    known = {way.name: (way.total, way.difference) for way in finite if way.difference}
    if len(known) < 2:
        return Omitted(title, "no run compresses" if known else NO_BYTES)
    near = {name: end for name, end in known.items() if end[1].mean > -LOSS}
    shown = near if len(near) > 1 else known
    lines = {name: {total: _interval(end)} for name, (total, end) in shown.items()}
    means = [100 * end.mean for _, end in shown.values()]

    def near_zero(ax: Axes) -> None:
        ax.axhline(0, color=LIGHT["soft"], linewidth=0.8)
        low, high = ax.get_ylim()
        ax.set_ylim(max(low, min(means) - BEYOND), min(high, max(means) + BEYOND))

    far = len(known) - len(shown)
    left = f" {count(far, 'scheme')} that lost more than {100 * LOSS:g} points: in the table."
    caption = (
        "After the last round: how many times fewer bytes went up plus down, and the mean"
        " difference to the uncompressed run of the same seed."
        f"{SEEDS}{_grey(lines, ways)}{left if far else ''}"
    )
    height = HEIGHT + ROW * min(len(lines), NAMED)
    panel = series.lines_panel(
        "", lines, _styles(ways), RATIO, POINTS, height=height, more=near_zero
    )
    return Chart.of(setting, "accuracy-ratio", title, caption, panel)


def _styles(ways: Sequence[RateAccuracy]) -> series.Styles:
    return line_styles(best(ways, NAMED))


def _interval(of: Spread) -> Spread:
    """Return a mean difference in points, from the least to the greatest of its interval."""
    mean, reach = 100 * of.mean, 0.0 if math.isnan(of.reach) else 100 * of.reach
    return replace(of, middle=mean, least=mean - reach, greatest=mean + reach)


def _grey(drawn: Iterable[str], ways: Sequence[RateAccuracy]) -> str:
    others = set(drawn) - set(_styles(ways))
    return " Grey: other schemes, which the table names." if others else ""
