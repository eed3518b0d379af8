"""Accuracy over bytes, up plus down: what schemes cost, and what they give for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np

from fedsz.control.record import RoundRecord
from fedsz.experiments.scheme import Scheme
from fedsz.formatting import NOTHING, count, digits, percent, points, size_in_digits, tick
from fedsz.report.chart import Chart, Item, Omitted, Panel, Table
from fedsz.report.point_labels import Line, Spot, write_names
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread, spread
from fedsz.report.series import CROWDED, Styles, log_axis
from fedsz.report.style import LIGHT, LineStyle, line_styles
from fedsz.update.config import CompressionConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OF_THE_PAPER: Final = CompressionConfig(update="weights", codec="sz2", error_bound="1e-2")
USUAL_WAY: Final = Scheme(_OF_THE_PAPER)
NEARLY: Final = 0.95  # of the best accuracy without compression
LOSS: Final = 0.05  # accuracy below uncompressed, as a share, at which a way is of no interest
NAMED: Final = 8  # ways with a colour and a name of their own in a figure
ROOM: Final = 0.15  # of the width, at the right of the last point
DEEP: Final = 25.0  # points below uncompressed at which the figure along the rounds ends
BEYOND: Final = 2.0  # points that whiskers are seen beyond the means
HEIGHT: Final = 4.2  # inches, which leave room for the names
NO_BYTES: Final = "the bytes of no run are recorded"
SEEDS: Final = " Interval: 95 %, Student's t over the seeds."


@dataclass(frozen=True)
class RateAccuracy:
    """What a scheme costs in bytes and in accuracy, over all seeds."""

    name: str  # "uncompressed", or as sweeps write it
    up: float  # how many times fewer bytes than uncompressed, over whole runs
    down: float
    total: float
    fewer: float  # how many times fewer bytes up than `USUAL_WAY`, seed by seed; NaN without it
    difference: Spread | None  # of the last accuracy to uncompressed, seed by seed, as a share
    # After each round, means over the seeds of all bytes so far, and of the accuracy's difference
    # to the last of the uncompressed run; without one, of the accuracy.
    course: tuple[tuple[float, float], ...]
    # For each seed the bytes to the accuracy that was asked for, infinite if it was never reached;
    # of seeds for which that accuracy is known.
    reached: tuple[float, ...]

    @property
    def points(self) -> float:
        """The mean difference, as a share; -inf if it is not known."""
        return self.difference.mean if self.difference else -math.inf

    @property
    def smallness(self) -> float:
        """The ratio of all bytes; 0 if it is not known."""
        return self.total if math.isfinite(self.total) else 0.0


def rate_accuracies(setting: Setting, reach: float | None = None) -> list[RateAccuracy]:
    """Return the ways of runs that can be compared, uncompressed first.

    Bytes are counted to the accuracy ``reach``, 0 to 1; if it is None, to `NEARLY` the best of the
    uncompressed run, seed by seed.
    """
    ways: dict[str, list[Run]] = {}
    for run in sorted(setting.runs, key=lambda run: run.seed):
        ways.setdefault(setting.label(run, bound=True), []).append(run)
    found = [_rate_accuracy(setting, name, runs, reach) for name, runs in ways.items()]
    return sorted(found, key=lambda way: (way.name != UNCOMPRESSED, way.smallness, way.name))


def best(ways: Sequence[RateAccuracy], number: int) -> list[str]:
    """Return the names of at most ``number`` ways that matter most, in the order of ``ways``.

    Uncompressed and `USUAL_WAY`; those that no other is both smaller and at least as accurate as;
    then the smallest. Ways that lose more than `LOSS` come last.
    """
    known = [way for way in ways if math.isfinite(way.total) and way.points > -LOSS]
    front, top = [], -math.inf
    for way in sorted(known, key=lambda way: (-way.total, -way.points)):
        if way.points > top:
            top = way.points
            front.append(way.name)
    lossy = {way.name for way in ways if way.difference and way.points <= -LOSS}
    smallest = sorted(ways, key=lambda way: (way.name in lossy, -way.smallness))
    wanted = [UNCOMPRESSED, str(USUAL_WAY), *front, *(way.name for way in smallest)]
    have = {way.name for way in ways}
    chosen = [name for name in dict.fromkeys(wanted) if name in have][:number]
    return [way.name for way in ways if way.name in chosen]


def bytes_items(settings: Sequence[Setting], reach: float | None) -> Iterator[Item]:
    """Yield two figures and a table for each setting; for ``reach`` see `rate_accuracies`."""
    for setting in settings:
        ways = rate_accuracies(setting, reach)
        styles = line_styles(best(ways, NAMED))
        yield rounds_chart(setting, ways, styles)
        yield end_chart(setting, ways, styles)
        yield table(setting, ways, reach)


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

    def draw(ax: Axes) -> None:
        ends: list[Spot] = []
        lines: list[Line] = []
        for name, course in courses.items():
            line = [(at, 100 * accuracy) for at, accuracy in course]
            x, y = zip(*line, strict=True)
            if style := styles.get(name):
                ax.plot(x, y, markersize=3.5, **style.line(markers=len(x) <= CROWDED))
                ends.append(Spot(x[-1], y[-1], name, style.colour))
                lines.append(line)
            else:
                ax.plot(x, y, color=LIGHT["soft"], linewidth=0.8, alpha=0.6, zorder=1.5)
        ax.set(xlabel="bytes up plus down", ylabel=what)
        _bytes_axes(ax, lowest, math.inf, lambda value: tick(value, size_in_digits), room=60)
        write_names(ax, ends, lines)

    caption = (
        "A mark for each round: all bytes up plus down until then, of all clients, and the accuracy"
        f" of the averaged model; means over the seeds. {zero}{_grey(courses, styles)}"
    )
    return Chart.of(setting, "accuracy-bytes", title, caption, Panel("", draw, says, HEIGHT))


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


def table(setting: Setting, ways: Sequence[RateAccuracy], reach: float | None) -> Table | Omitted:
    """Return ratios, differences, and bytes to an accuracy."""
    title = f"Schemes, {setting.title}"
    if not any(math.isfinite(way.up) for way in ways):
        return Omitted(title, NO_BYTES)
    goal = (
        f"an accuracy of {percent(reach)} %"
        if reach
        else f"{100 * NEARLY:g} % of the best accuracy of the uncompressed run of the same seed"
    )
    rows = []
    for way in ways:
        ratios = map(digits, (way.up, way.down, way.total))
        lost = NOTHING if way.name == UNCOMPRESSED else difference(way.difference)
        seeds = str(way.difference.count) if way.difference else NOTHING
        rows.append((way.name, *ratios, lost, seeds, digits(way.fewer), _reached(way.reached)))
    caption = (
        "Ratios are uncompressed bytes over sent ones, of all rounds and seeds. Points are the mean"
        f" difference to the uncompressed run of the same seed, after the last round.{SEEDS} Fewer"
        f" up: bytes up of {USUAL_WAY} over this scheme's, of the same seeds. Bytes to reach: up"
        f" plus down until {goal}, on a straight line between rounds; median over the seeds"
        f" (least … greatest). {setting.provenance}"
    )
    head = (
        *("scheme", "ratio up", "ratio down", "ratio of all", "points", "seeds"),
        *("times fewer up", "bytes to reach"),
    )
    return Table(f"{setting.name}-ways", title, caption, head, rows)


def difference(found: Spread | None) -> str:
    """Return a mean difference in points with its 95 % interval: ``-0.34 ± 0.48``."""
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
    more = f", not reached by {missed} of {len(found)}" if missed else ""
    return spread(known, size_in_digits) + more


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


def _rate_accuracy(
    setting: Setting, name: str, runs: Sequence[Run], reach: float | None
) -> RateAccuracy:
    plain = {run.seed: run for run in setting.baseline}
    usual = [run for run in setting.runs if run.way == USUAL_WAY]
    (raw_up, raw_down), (up, down) = _moved(runs)
    seeds = {run.seed for run in runs} & {run.seed for run in usual}
    theirs, ours = (_moved([run for run in some if run.seed in seeds])[1] for some in (usual, runs))
    goals = {run.seed: reach for run in runs if reach}
    for seed, run in plain.items():
        highest = max(filter(math.isfinite, run.accuracies), default=math.inf)
        goals.setdefault(seed, NEARLY * highest)
    total = _ratio(raw_up + raw_down, up + down)
    ratios = (_ratio(raw_up, up), _ratio(raw_down, down), total, _ratio(theirs[0], ours[0]))
    reached = tuple(_bytes_to(run, goals[run.seed]) for run in runs if run.seed in goals)
    return RateAccuracy(name, *ratios, setting.difference(runs), _course(runs, plain), reached)


def _sent(run: Run, done: RoundRecord) -> tuple[float, float]:
    """Return the bytes up and down of a round; uncompressed, without any header."""
    if run.uncompressed:
        return done.raw_up, done.raw_down
    return done.sent_up, done.sent_down


def _moved(runs: Sequence[Run]) -> list[list[float]]:
    """Return the bytes of all rounds before compression, up and down, and the same after it."""
    done = [((r.raw_up, r.raw_down), _sent(run, r)) for run in runs for r in run.trained]
    found: list[list[float]] = np.reshape(done, (-1, 2, 2)).sum(axis=0).tolist()
    return found


def _ratio(raw: float, sent: float) -> float:
    return raw / sent if sent > 0 else math.nan


def _spent(run: Run) -> list[float]:
    return list(accumulate(sum(_sent(run, done)) if done.round else 0.0 for done in run.rounds))


def _course(runs: Sequence[Run], plain: Mapping[int, Run]) -> tuple[tuple[float, float], ...]:
    rounds = []
    for run in runs:
        if run.seed in plain or not plain:
            zero = plain[run.seed].accuracy if plain else 0.0
            rounds.append(list(zip(_spent(run), [y - zero for y in run.accuracies], strict=True)))
    together = zip(*rounds, strict=False)  # as far as all seeds went
    means = [tuple(map(fmean, zip(*seeds, strict=True))) for seeds in together]
    return tuple((x, y) for x, y in means if x > 0 and math.isfinite(y))


def _bytes_to(run: Run, goal: float) -> float:
    """Return the bytes until an accuracy is first reached, between rounds on a straight line."""
    start, low = 0.0, math.nan
    for total, accuracy in zip(_spent(run), run.accuracies, strict=True):
        if accuracy >= goal:
            part = (goal - low) / (accuracy - low) if low < goal else 1.0
            return start + part * (total - start)
        start, low = total, accuracy
    return math.inf
