"""Accuracy over rounds and bounds (the paper's Figures 4 and 5), over bytes, and bytes to it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final

from fedsz.formatting import count, digits, one_line, size_in_digits, tick
from fedsz.report import series
from fedsz.report.chart import Chart, Omitted, Panel
from fedsz.report.rate_accuracy import LOSS, NEARLY, Compared, RateAccuracy, Reached, best
from fedsz.report.runs import UNCOMPRESSED, Setting, Spread, machines, named
from fedsz.report.series import GREY, PERCENT, Axis, log_axis
from fedsz.report.style import LIGHT, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS: Final = 6  # as many bounds as a page shows
NAMED: Final = 8  # ways with a colour and a name of their own in a figure
DEEP: Final = 25.0  # points below uncompressed at which the figure along the rounds ends
FREQUENT: Final = 7  # ways that bytes to an accuracy are drawn of: as many as there are colours
LETTERS: Final = 58  # of a setting's name that it has room for
WAY: Final = 44  # letters of a way's name that its legend has room for
LINE: Final = 0.4  # inches of a setting
AXES: Final = 1.0  # inches of the axis and the legend
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


def reached_chart(compared: Compared, reach: float | None) -> Chart | Omitted:
    """Draw how many times fewer bytes than uncompressed it takes to be nearly as accurate."""
    title = "Bytes to an accuracy"
    found = {
        (setting.title, way.name): [_middle(reached) for reached in way.reached]
        for setting, ways in compared
        for way in ways
        if way.name != UNCOMPRESSED
    }
    if not found:
        return Omitted(title, "no run compresses")
    if not any(setting.baseline for setting, _ in compared):
        return Omitted(title, "there is no uncompressed run (raw) to compare with")
    if not any(x > 0 for values in found.values() for x in values):
        return Omitted(title, "no compressed run reached it by training")
    settings = [setting.title for setting, _ in compared]
    styles = line_styles(_most_frequent([way for _, way in found]))
    columns = columns_to(reach)
    says = "Times fewer bytes than uncompressed: " + "; ".join(
        f"{setting}, {way}: {', '.join(_said(x) for x in values)} ({', '.join(columns)})"
        for (setting, way), values in found.items()
    )

    def draw(ax: Axes) -> None:
        drawn: set[str] = set()
        for (setting, way), values in found.items():
            style = styles.get(way, GREY)
            y = settings.index(setting)
            marked = zip(values, (style.colour, "none"), strict=False)
            ends = [(x, fill) for x, fill in marked if x > 0]
            ax.plot([x for x, _ in ends], [y] * len(ends), color=style.colour, linewidth=0.8)
            for x, fill in ends:
                ax.plot(x, y, style.marker or "o", color=style.colour, markerfacecolor=fill)
            if way in styles and way not in drawn:
                drawn.add(way)
                ax.plot([], [], style.marker or "o", color=style.colour, label=one_line(way, WAY))
        for y, setting in enumerate(settings):
            note = ax.annotate(
                textwrap.shorten(setting, LETTERS, placeholder=" …"), (0, y), (2, 5),
                xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=9,
                color=LIGHT["soft"],
            )  # fmt: skip
            note.set_in_layout(False)
        ax.set_xscale("log")
        ax.set_xlabel("times fewer bytes, up plus down")
        ax.set_yticks(range(len(settings)), [""] * len(settings))
        ax.set_ylim(len(settings) - 0.5, -0.8)
        ax.margins(x=0.08)
        log_axis(ax.xaxis, lambda value: f"{value:,g}", 100)

    marks = "" if reach else " Full marks: 95 %; hollow ones: 99 %."
    caption = (
        f"Bytes up plus down until {goals(reach)}, uncompressed over each way; medians over the"
        f" seeds.{marks} A way that most seeds did not get there with has no mark."
    )
    provenance = machines([run for setting, _ in compared for run in setting.runs])
    if len(compared) == 1:
        provenance = compared[0][0].provenance
    panel = Panel("", draw, says, AXES + LINE * len(settings))
    return Chart("bytes-to-accuracy", title, caption, provenance, (panel,))


def columns_to(reach: float | None) -> list[str]:
    """Return what columns of bytes to an accuracy are called."""
    return [f"bytes to {100 * part:g} %" for part in ((reach,) if reach else NEARLY)]


def goals(reach: float | None) -> str:
    """Return to which accuracies bytes are counted, in words."""
    if reach:
        return f"an accuracy of {100 * reach:g} %"
    parts = " and ".join(f"{100 * part:g} %" for part in NEARLY)
    return f"{parts} of the best accuracy of the uncompressed run of the same seed"


def _middle(reached: Reached) -> float:
    known = [x for x in reached.fewer if not math.isnan(x)]
    return median(known) if known else 0.0


def _said(times: float) -> str:
    return digits(times) if times > 0 else "not reached"


def _most_frequent(ways: Sequence[str]) -> list[str]:
    """Return the names that most settings have, at most `FREQUENT`, in their order."""
    order = list(dict.fromkeys(ways))
    return sorted(order, key=lambda way: (-ways.count(way), order.index(way)))[:FREQUENT]


def _styles(ways: Sequence[RateAccuracy]) -> series.Styles:
    return line_styles(best(ways, NAMED))


def _interval(of: Spread) -> Spread:
    """Return a mean difference in points, from the least to the greatest of its interval."""
    mean, reach = 100 * of.mean, 0.0 if math.isnan(of.reach) else 100 * of.reach
    return replace(of, middle=mean, least=mean - reach, greatest=mean + reach)


def _grey(drawn: Iterable[str], ways: Sequence[RateAccuracy]) -> str:
    others = set(drawn) - set(_styles(ways))
    return " Grey: other schemes, which the table names." if others else ""
