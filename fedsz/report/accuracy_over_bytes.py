"""Accuracy over bytes, up plus down: along the rounds, and at their end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from fedsz.formatting import count, digits, percent, points, size_in_digits, tick
from fedsz.report.chart import Chart, Item, Omitted, Panel
from fedsz.report.point_labels import Line, Spot, write_names
from fedsz.report.rate_accuracy import LOSS, Compared, RateAccuracy, best
from fedsz.report.runs import Setting, difference
from fedsz.report.series import CROWDED, Styles, log_axis
from fedsz.report.style import LIGHT, LineStyle, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED: Final = 8  # ways with a colour and a name of their own in a figure
BESIDE: Final = 4  # names that lines along the rounds have room for; a legend has more
ROOM: Final = 0.15  # of the width, at the right of the last point
DEEP: Final = 25.0  # points below uncompressed at which the figure along the rounds ends
BEYOND: Final = 2.0  # points that whiskers are seen beyond the means
HEIGHT: Final = 4.2  # inches, which leave room for the names
ROW: Final = 0.2  # inches of a name in a legend
NO_BYTES: Final = "the bytes of no run are recorded"
SEEDS: Final = " Interval: 95 %, Student's t over the seeds."


def charts(compared: Compared) -> Iterator[Item]:
    """Yield two figures for each setting."""
    for setting, ways in compared:
        styles = line_styles(best(ways, NAMED))
        yield rounds_chart(setting, ways, styles)
        yield end_chart(setting, ways, styles)


def rounds_chart(setting: Setting, ways: Sequence[RateAccuracy], styles: Styles) -> Chart | Omitted:
    """Draw accuracy over the bytes so far, a line for each scheme."""
    title = f"Accuracy over bytes, {setting.title}"
    courses = {way.name: way.course for way in ways if way.course}
    if not courses:
        return Omitted(title, NO_BYTES)
    if setting.baseline:
        show, what, lowest = points, "accuracy, points from uncompressed at the end", -DEEP
        zero = (
            "Zero is the last accuracy of the uncompressed run of the same seed; what is farther"
            f" than {DEEP:g} points below is cut off."
        )
    else:
        show, what, lowest = percent, "accuracy, %", 0.0
        zero = "There is no uncompressed run to compare with."
    says = f"{what.capitalize()}: " + "; ".join(
        f"{name} {show(course[-1][1])} after {size_in_digits(course[-1][0])}"
        for name, course in courses.items()
    )

    named = len(styles.keys() & courses.keys())
    crowded = named > BESIDE
    height = HEIGHT + (ROW * named if crowded else 0.0)

    def draw(ax: Axes) -> None:
        ends: list[Spot] = []
        lines: list[Line] = []
        for name, course in courses.items():
            line = [(at, 100 * accuracy) for at, accuracy in course]
            x, y = zip(*line, strict=True)
            if style := styles.get(name):
                label = name if crowded else None
                marked = style.line(markers=len(x) <= CROWDED)
                ax.plot(x, y, markersize=3.5, label=label, **marked)
                ends.append(Spot(x[-1], y[-1], name, style.colour))
                lines.append(line)
            else:
                ax.plot(x, y, color=LIGHT["soft"], linewidth=0.8, alpha=0.6, zorder=1.5)
        ax.set(xlabel="bytes up plus down", ylabel=what)
        _bytes_axes(ax, lowest, math.inf, lambda value: tick(value, size_in_digits), room=60)
        if not crowded:
            write_names(ax, ends, lines)

    caption = (
        "A mark for each round: all bytes up plus down until then, of all clients, and the accuracy"
        f" of the averaged model; means over the seeds. {zero}{_grey(courses, styles)}"
    )
    return Chart.of(setting, "accuracy-bytes", title, caption, Panel("", draw, says, height))


def end_chart(setting: Setting, ways: Sequence[RateAccuracy], styles: Styles) -> Chart | Omitted:
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
    far = len(known) - len(shown)
    left = f" {count(far, 'scheme')} that lost more than {100 * LOSS:g} points: in the table."
    says = "Points from uncompressed: " + "; ".join(
        f"{name} {difference(end)} at {digits(total)}" for name, (total, end) in known.items()
    )

    def draw(ax: Axes) -> None:
        ends: list[Spot] = []
        lines: list[Line] = []
        ax.axhline(0, color=LIGHT["soft"], linewidth=0.8)
        for name, (total, end) in shown.items():
            style = styles.get(name, LineStyle(LIGHT["soft"], "-", "o"))
            mean, reach = 100 * end.mean, 0.0 if math.isnan(end.reach) else 100 * end.reach
            ax.errorbar(
                [total], [mean], yerr=[reach], color=style.colour, marker=style.marker or "o",
                markersize=5 if name in styles else 3, elinewidth=0.9 if name in styles else 0.4,
            )  # fmt: skip
            lines.append([(total, mean - reach), (total, mean + reach)])
            if name in styles:
                ends.append(Spot(total, mean, name, style.colour))
        ax.set_xlabel("times fewer bytes, up plus down")
        ax.set_ylabel("accuracy, points from uncompressed")
        means = [100 * end.mean for _, end in shown.values()]
        _bytes_axes(ax, min(means) - BEYOND, max(means) + BEYOND, lambda value: f"{value:,g}")
        lines.append([(x, 0.0) for x in ax.get_xlim()])
        write_names(ax, ends, lines)

    caption = (
        "After the last round: how many times fewer bytes went up plus down, and the mean"
        " difference to the uncompressed run of the same seed."
        f"{SEEDS}{_grey(known, styles)}{left if far else ''}"
    )
    return Chart.of(setting, "accuracy-ratio", title, caption, Panel("", draw, says, HEIGHT))


def _grey(drawn: Iterable[str], styles: Styles) -> str:
    return " Grey: other schemes, which the table names." if set(drawn) - set(styles) else ""


def _bytes_axes(
    ax: Axes, lowest: float, highest: float, show: Callable[[float], str], room: float = 200
) -> None:
    """Leave room for names at the right, and fix the limits: names are placed by them."""
    ax.set_xscale("log")
    ax.margins(0.12, 0.12)
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * (high / low) ** ROOM)
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, lowest), max(min(high, highest), lowest + 1))
    log_axis(ax.xaxis, show, room)
