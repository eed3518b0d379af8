"""Accuracy over bytes, up plus down: along the rounds, at the end, and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fedsz.report.chart import Absent, Chart, Panel, Sheet
from fedsz.report.interval import Interval
from fedsz.report.numbers import NOTHING, digits, percent, points, size, spread, tick
from fedsz.report.point_labels import Line, Spot, write_names
from fedsz.report.runs import UNCOMPRESSED, Setup, Spread, count
from fedsz.report.style import LIGHT, Look, log_axis, looks
from fedsz.report.traffic import LOSS, NEARLY, USUAL_WAY, Priced, best, priced

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED: Final = 8  # ways with a colour and a name of their own in a figure
ROOM: Final = 0.15  # of the width, at the right of the last point
DEEP: Final = 25.0  # points below uncompressed at which the figure along the rounds ends
BEYOND: Final = 2.0  # points that whiskers are seen beyond the means
HEIGHT: Final = 4.2  # inches, which leave room for the names
NO_BYTES: Final = "the bytes of no run are recorded"
NO_BASELINE: Final = "there is no uncompressed run (raw) to compare with"
SEEDS: Final = " Interval: 95 %, Student's t over the seeds."


def prices(setups: Sequence[Setup], reach: float | None) -> list[Chart | Sheet | Absent]:
    """Return two figures and a table for each setup.

    Args:
        setups: what can be compared.
        reach: accuracy, 0 to 1, that bytes are counted to; None for a share of the best of the
            uncompressed run.
    """
    items: list[Chart | Sheet | Absent] = []
    for setup in setups:
        ways = priced(setup, reach)
        names = best(ways, NAMED)
        styles = looks(names)
        items += [
            along(setup, ways, styles),
            at_the_end(setup, ways, styles),
            table(setup, ways, reach),
        ]
    return items


def along(setup: Setup, ways: Sequence[Priced], styles: Mapping[str, Look]) -> Chart | Absent:
    """Draw accuracy over the bytes so far, a line for each way."""
    title = f"Accuracy over bytes, {setup.title}"
    courses = {way.name: way.course for way in ways if way.course}
    if not courses:
        return Absent(title, NO_BYTES)
    compared = bool(setup.baseline)
    show, what = (
        (points, "accuracy, points from uncompressed at the end")
        if compared
        else (percent, "accuracy, %")
    )
    says = f"{what.capitalize()}: " + "; ".join(
        f"{name} {show(course[-1][1])} after {size(course[-1][0])}"
        for name, course in courses.items()
    )
    zero = (
        " Zero is the last accuracy of the uncompressed run of the same seed; what is farther than"
        f" {DEEP:g} points below is cut off."
        if compared
        else " There is no uncompressed run to compare with."
    )
    return Chart(
        f"{setup.name}-accuracy-bytes",
        title,
        "A mark for each round: all bytes up plus down until then, of all clients, and the accuracy"
        f" of the averaged model; means over the seeds.{zero}{_grey(courses, styles)}",
        setup.provenance,
        (Panel("", _along(courses, styles, what, -DEEP if compared else 0.0), says, HEIGHT),),
    )


def at_the_end(setup: Setup, ways: Sequence[Priced], styles: Mapping[str, Look]) -> Chart | Absent:
    """Draw the difference of accuracy after the last round over the ratio of all bytes."""
    title = f"Accuracy over ratio, {setup.title}"
    if not setup.baseline:
        return Absent(title, NO_BASELINE)
    known = {
        way.name: (way.total, way.difference)
        for way in ways
        if way.difference and math.isfinite(way.total)
    }
    if len(known) < 2:
        return Absent(title, "no run compresses" if known else NO_BYTES)
    near = {name: end for name, end in known.items() if end[1].mean > -LOSS}
    far = len(known) - len(near) if len(near) > 1 else 0
    left = f" {count(far, 'way')} that lost more than {100 * LOSS:g} points: in the table." * bool(
        far
    )
    says = "Points from uncompressed: " + "; ".join(
        f"{name} {_difference(end)} at {digits(total)}" for name, (total, end) in known.items()
    )
    return Chart(
        f"{setup.name}-accuracy-ratio",
        title,
        "After the last round: how many times fewer bytes went up plus down, and the mean"
        f" difference to the uncompressed run of the same seed.{SEEDS}{_grey(known, styles)}{left}",
        setup.provenance,
        (Panel("", _at_the_end(near if far else known, styles), says, HEIGHT),),
    )


def table(setup: Setup, ways: Sequence[Priced], reach: float | None) -> Sheet | Absent:
    """Return ratios, differences, and bytes to an accuracy."""
    title = f"Ways of updating, {setup.title}"
    if not any(math.isfinite(way.up) for way in ways):
        return Absent(title, NO_BYTES)
    goal = (
        f"an accuracy of {percent(reach)} %"
        if reach
        else f"{100 * NEARLY:g} % of the best accuracy of the uncompressed run of the same seed"
    )
    rows = tuple(
        (
            way.name,
            digits(way.up),
            digits(way.down),
            digits(way.total),
            NOTHING if way.name == UNCOMPRESSED else _difference(way.difference),
            str(way.difference.count) if way.difference else NOTHING,
            digits(way.fewer),
            _reached(way.reached),
        )
        for way in ways
    )
    return Sheet(
        f"{setup.name}-ways",
        title,
        "Ratios are uncompressed bytes over sent ones, of all rounds and seeds. Points are the mean"
        f" difference to the uncompressed run of the same seed, after the last round.{SEEDS} Fewer"
        f" up: bytes up of {USUAL_WAY} over this way's, of the same seeds. Bytes to reach: up plus"
        f" down until {goal}, on a straight line between rounds; median over the seeds (least …"
        " greatest)."
        f" {setup.provenance}",
        (
            "way", "ratio up", "ratio down", "ratio of all", "points", "seeds",
            "times fewer up", "bytes to reach",
        ),
        rows,
    )  # fmt: skip


def _difference(found: Interval | None) -> str:
    if found is None:
        return NOTHING
    reach = "" if math.isnan(found.reach) else f" ± {100 * found.reach:.2f}"
    return f"{points(found.mean)}{reach}"


def _reached(found: Sequence[float]) -> str:
    if not found:
        return NOTHING
    known = Spread.of(found)
    if known is None:
        return "not reached"
    missed = len(found) - known.count
    return spread(known, size) + (f", not reached by {missed} of {len(found)}" if missed else "")


def _grey(drawn: Mapping[str, Any], styles: Mapping[str, Look]) -> str:
    return " Grey: other ways, which the table names." if set(drawn) - set(styles) else ""


def _along(
    courses: Mapping[str, Sequence[tuple[float, float]]],
    styles: Mapping[str, Look],
    what: str,
    lowest: float,
) -> Any:
    def draw(ax: Axes) -> None:
        ends: list[Spot] = []
        lines: list[Line] = []
        for name, course in courses.items():
            x, y = [at for at, _ in course], [100 * accuracy for _, accuracy in course]
            look = styles.get(name)
            if look is None:
                ax.plot(x, y, color=LIGHT["soft"], linewidth=0.8, alpha=0.6, zorder=1.5)
            else:
                ax.plot(x, y, markersize=3.5, **look.line(markers=len(x) <= 20))
                ends.append(Spot(x[-1], y[-1], name, look.colour))
                lines.append(list(zip(x, y, strict=True)))
        ax.set_xscale("log")
        ax.margins(0.12, 0.12)
        _fixed(ax, lowest)
        log_axis(ax.xaxis, lambda value: tick(value, size), room=60)
        ax.set_xlabel("bytes up plus down")
        ax.set_ylabel(what)
        write_names(ax, ends, lines)

    return draw


def _at_the_end(known: Mapping[str, tuple[float, Interval]], styles: Mapping[str, Look]) -> Any:
    def draw(ax: Axes) -> None:
        ends: list[Spot] = []
        lines: list[Line] = []
        ax.axhline(0, color=LIGHT["soft"], linewidth=0.8)
        for name, (total, end) in known.items():
            look = styles.get(name, Look(LIGHT["soft"], "-", "o"))
            reach = 0.0 if math.isnan(end.reach) else 100 * end.reach
            ax.errorbar(
                [total], [100 * end.mean], yerr=[reach], color=look.colour,
                marker=look.marker or "o", markersize=5 if name in styles else 3,
                elinewidth=0.9 if name in styles else 0.4,
            )  # fmt: skip
            lines.append([(total, 100 * end.mean - reach), (total, 100 * end.mean + reach)])
            if name in styles:
                ends.append(Spot(total, 100 * end.mean, name, look.colour))
        ax.set_xscale("log")
        ax.margins(0.12, 0.12)
        means = [100 * end.mean for _, end in known.values()]
        lines.append([(x, 0.0) for x in ax.get_xlim()])
        _fixed(ax, min(means) - BEYOND, max(means) + BEYOND)
        log_axis(ax.xaxis, lambda value: f"{value:,g}")
        ax.set_xlabel("times fewer bytes, up plus down")
        ax.set_ylabel("accuracy, points from uncompressed")
        write_names(ax, ends, lines)

    return draw


def _fixed(ax: Axes, lowest: float, highest: float = math.inf) -> None:
    """Leave room for names at the right, and keep the limits: names are placed by them."""
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * (high / low) ** ROOM)
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, lowest), max(min(high, highest), lowest + 1))
