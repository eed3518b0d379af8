"""All ways of all settings beside each other: one table, and one picture of what it says."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from fedsz.formatting import NOTHING, digits, size_in_digits
from fedsz.report.accuracy import NO_BYTES, SEEDS
from fedsz.report.chart import Chart, Omitted, Panel, Table
from fedsz.report.rate_accuracy import NEARLY, USUAL_WAY, Compared, RateAccuracy, Reached
from fedsz.report.runs import UNCOMPRESSED, Spread, difference, machines
from fedsz.report.series import log_axis
from fedsz.report.style import LIGHT, LineStyle, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED: Final = 7  # ways that the picture shows: as many as there are colours
LETTERS: Final = 58  # of a setting's name that the picture has room for
WAY: Final = 44  # letters of a way's name that the legend has room for
ROW: Final = 0.4  # inches of a setting in the picture
AXES: Final = 1.0  # inches of its axis and its legend


def table(compared: Compared, reach: float | None) -> Table | Omitted:
    """Return what each way of each setting saves and costs; for ``reach`` see `rate_accuracies`."""
    title = "Ways"
    if not any(math.isfinite(way.up) for _, ways in compared for way in ways):
        return Omitted(title, NO_BYTES)
    rows = [
        ("" if i else setting.title, *_cells(way))
        for setting, ways in compared
        for i, way in enumerate(ways)
    ]
    caption = (
        "Ratios are uncompressed bytes over sent ones, of all rounds and seeds. Points are the mean"
        " difference to the uncompressed run of the same seed, after the last round."
        f"{SEEDS} Kept: the least share of an update's energy that arrived in a round. Fewer up:"
        f" bytes up of {USUAL_WAY} over this way's, of the same seeds. Bytes to an accuracy are up"
        f" plus down until {_goals(reach)}, on a straight line between rounds; medians"
        " over the seeds that got there, and how many did if not all."
    )
    head = (
        *("run", "way", "ratio up", "ratio down", "ratio of all", "points", "seeds"),
        *("kept, %", "times fewer up", *_columns(reach)),
    )
    return Table("ways", title, caption, head, rows, words=2)


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
    columns = _columns(reach)
    says = "Times fewer bytes than uncompressed: " + "; ".join(
        f"{setting}, {way}: {', '.join(_said(x) for x in values)} ({', '.join(columns)})"
        for (setting, way), values in found.items()
    )

    def draw(ax: Axes) -> None:
        drawn: set[str] = set()
        for (setting, way), values in found.items():
            style = styles.get(way, LineStyle(LIGHT["soft"], "-", "o"))
            y = settings.index(setting)
            marked = zip(values, (style.colour, "none"), strict=False)
            ends = [(x, fill) for x, fill in marked if x > 0]
            ax.plot([x for x, _ in ends], [y] * len(ends), color=style.colour, linewidth=0.8)
            for x, fill in ends:
                ax.plot(x, y, style.marker or "o", color=style.colour, markerfacecolor=fill)
            if way in styles and way not in drawn:
                drawn.add(way)
                ax.plot([], [], style.marker or "o", color=style.colour, label=_cut(way))
        for y, setting in enumerate(settings):
            above: dict[str, Any] = {"xytext": (2, 5), "textcoords": "offset points", "fontsize": 9}
            where: Any = ("axes fraction", "data")
            name = textwrap.shorten(setting, LETTERS, placeholder=" …")
            note = ax.annotate(name, (0, y), xycoords=where, color=LIGHT["soft"], **above)
            note.set_in_layout(False)
        ax.set_xscale("log")
        ax.set_xlabel("times fewer bytes, up plus down")
        ax.set_yticks(range(len(settings)), [""] * len(settings))
        ax.set_ylim(len(settings) - 0.5, -0.8)
        ax.margins(x=0.08)
        log_axis(ax.xaxis, lambda value: f"{value:,g}", 100)

    marks = "" if reach else " Full marks: 95 %; hollow ones: 99 %."
    caption = (
        f"Bytes up plus down until {_goals(reach)}, uncompressed over each way; medians over the"
        f" seeds.{marks} A way that most seeds did not get there with has no mark."
    )
    provenance = machines([run for setting, _ in compared for run in setting.runs])
    if len(compared) == 1:
        provenance = compared[0][0].provenance
    panel = Panel("", draw, says, AXES + ROW * len(settings))
    return Chart("bytes-to-accuracy", title, caption, provenance, (panel,))


def _cells(way: RateAccuracy) -> tuple[str, ...]:
    ratios = map(digits, (way.up, way.down, way.total))
    lost = NOTHING if way.name == UNCOMPRESSED else difference(way.difference)
    seeds = str(way.difference.count) if way.difference else NOTHING
    kept = f"{100 * way.kept:.0f}" if math.isfinite(way.kept) else NOTHING
    reached = (_sent(reached.sent) for reached in way.reached)
    return way.name, *ratios, lost, seeds, kept, digits(way.fewer), *reached


def _sent(found: Sequence[float]) -> str:
    if not found:
        return NOTHING
    known = Spread.of(found)
    if known is None:
        return "not reached"
    some = f" ({known.count} of {len(found)})" if known.count < len(found) else ""
    return size_in_digits(known.middle) + some


def _middle(reached: Reached) -> float:
    known = [x for x in reached.fewer if not math.isnan(x)]
    return median(known) if known else 0.0


def _cut(way: str) -> str:
    return way if len(way) <= WAY else f"{way[: WAY - 1]}…"


def _said(times: float) -> str:
    return digits(times) if times > 0 else "not reached"


def _most_frequent(ways: Sequence[str]) -> list[str]:
    """Return the names that most settings have, at most `NAMED`, in their order."""
    order = list(dict.fromkeys(ways))
    return sorted(order, key=lambda way: (-ways.count(way), order.index(way)))[:NAMED]


def _columns(reach: float | None) -> list[str]:
    return [f"bytes to {100 * part:g} %" for part in ((reach,) if reach else NEARLY)]


def _goals(reach: float | None) -> str:
    if reach:
        return f"an accuracy of {100 * reach:g} %"
    parts = " and ".join(f"{100 * part:g} %" for part in NEARLY)
    return f"{parts} of the best accuracy of the uncompressed run of the same seed"
