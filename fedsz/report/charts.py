"""The charts of a report: accuracy over bytes, time of a round, bytes by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedsz.experiments.link_model import Link
from fedsz.formatting import bandwidth, one_line, seconds, size_in_digits, tick
from fedsz.report.figures import LABEL, LIGHT, Chart, Panel, log_axis, looks
from fedsz.report.rate_accuracy import RateAccuracy, best
from fedsz.report.runs import Run, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED: Final = 8  # ways with a colour and a name in a chart
PHASES: Final = {
    "model down": "indigo", "training": "soft", "encode": "red", "update up": "blue",
    "decode": "gold",
}  # fmt: skip
PARTS: Final = {"updates up": "blue", "model down": "indigo", "evaluation, queries": "gold"}

Parts = Mapping[str, float]


def charts(
    setting: Setting, ways: Sequence[RateAccuracy], links: Sequence[Link]
) -> Iterable[Chart]:
    """Yield the charts that the runs of a setting suffice for."""
    shown = best(ways, NAMED)
    found = (
        accuracy_over_bytes(setting, ways, shown),
        time_of_a_round(setting, shown, links),
        bytes_by_part(setting, shown),
    )
    return filter(None, found)


def accuracy_over_bytes(
    setting: Setting, ways: Sequence[RateAccuracy], shown: Sequence[RateAccuracy]
) -> Chart | None:
    """Return accuracy over the bytes so far; ways that are not ``shown`` are grey."""
    known = [way for way in ways if way.course]
    if not known:
        return None
    styles = looks(way.name for way in shown)
    grey = {"color": LIGHT["soft"], "linewidth": 0.7, "alpha": 0.5}

    def draw(ax: Axes) -> None:
        for way in known:
            sent, accuracies = zip(*way.course, strict=True)
            look = {"marker": "o", **styles.get(way.name, grey), "markersize": 3}
            ax.plot(sent, [100 * accuracy for accuracy in accuracies], **look)
        ax.set(xscale="log", xlabel="bytes up plus down", ylabel="accuracy, %")
        log_axis(ax.xaxis, partial(tick, show=size_in_digits))

    others = " Grey: other schemes, which the table names." if len(known) > len(shown) else ""
    caption = (
        "A mark for each round: all bytes up plus down until then, of all clients, and the accuracy"
        f" of the averaged model; means over the seeds.{others}"
    )
    ends = ((way.name, *way.course[-1]) for way in known)
    says = "; ".join(f"{name}: {100 * y:.2f} % at {size_in_digits(x)}" for name, x, y in ends)
    title = f"Accuracy over bytes, {setting.title}"
    return _chart(setting, "accuracy-bytes", title, caption, [Panel("", draw, 4.2)], says)


def time_of_a_round(
    setting: Setting, shown: Sequence[RateAccuracy], links: Sequence[Link]
) -> Chart | None:
    """Return where the time of a client's round goes, a bar for each way, a panel for each link."""
    costs = {way.name: [run.update for run in way.runs if run.update] for way in shown}
    panels, said = [], []
    for link in links:

        def phases(name: str, link: Link = link) -> dict[str, float]:
            of = costs[name]
            return {
                "model down": fmean(link.seconds(update.down_bytes) for update in of),
                "training": fmean(update.train_seconds for update in of),
                "encode": fmean(update.encode_seconds for update in of),
                "update up": fmean(link.seconds(update.sent_bytes) for update in of),
                "decode": fmean(update.decode_seconds for update in of),
            }

        bars = {name: phases(name) for name, updates in costs.items() if updates}
        if not bars:
            return None
        title = named_link(link)
        panels.append(_bars_panel(title, bars, PHASES, seconds, "seconds"))
        said += [
            f"{title}, {name}: {seconds(np.nansum([*bar.values()]))}" for name, bar in bars.items()
        ]
    caption = (
        "One client's round: the model comes down, the client trains and encodes, the update goes"
        " up, the server decodes it. Transfers are calculated from bytes, bandwidth and latency;"
        " all else is measured. Means over the seeds."
    )
    title = f"Time of a round, {setting.title}"
    return _chart(setting, "time", title, caption, panels, "; ".join(said))


def named_link(link: Link) -> str:
    """Return a link's bandwidth, and its latency if it has one."""
    delay = f" and {seconds(link.latency)} of latency" if link.latency else ""
    return f"{bandwidth(link.bandwidth)}{delay}"


def bytes_by_part(setting: Setting, shown: Sequence[RateAccuracy]) -> Chart | None:
    """Return the bytes of a run by what they are for, a bar for each way."""

    def parts(runs: Sequence[Run]) -> dict[str, float]:
        columns = zip(PARTS, ("sent_up", "sent_down", "sent_other"), strict=True)
        return {
            part: sum(getattr(r, name) for run in runs for r in run.trained) / len(runs)
            for part, name in columns
        }

    bars = {way.name: parts(way.runs) for way in shown}
    bars = {name: of for name, of in bars.items() if np.nansum([*of.values()]) > 0}
    if not bars:
        return None
    totals = {name: size_in_digits(np.nansum([*of.values()])) for name, of in bars.items()}
    says = "; ".join(f"{name}: {total}" for name, total in totals.items())
    caption = "Bytes of a whole run, of all clients, after compression; means over the seeds."
    title = f"Bytes by part, {setting.title}"
    panel = _bars_panel("", bars, PARTS, size_in_digits, "bytes")
    return _chart(setting, "bytes", title, caption, [panel], says)


def _bars_panel(
    title: str,
    bars: Mapping[str, Parts],
    colours: Mapping[str, str],
    show: Callable[[float], str],
    unit: str,
) -> Panel:
    """Return stacked bars with their sums behind them; parts that are NaN are left out."""

    def draw(ax: Axes) -> None:
        places, ends = range(len(bars)), np.zeros(len(bars))
        for part, colour in colours.items():
            widths = np.nan_to_num([bar[part] for bar in bars.values()])
            if widths.any():
                ax.barh(places, widths, left=ends, height=0.5, color=LIGHT[colour], label=part)
            ends = ends + widths
        for i, (name, end) in enumerate(zip(bars, ends, strict=True)):
            points: Any = {"textcoords": "offset points", "size": 8}
            ax.annotate(one_line(name, LABEL), (0, i - 0.25), (0, 1), va="bottom", **points)
            ax.annotate(show(end), (end, i), (4, 0), va="center", **points)
        ax.set(yticks=[], ylim=(len(bars) - 0.6, -0.7), xlabel=unit)
        ax.margins(x=0.15)
        ax.xaxis.set_major_formatter(lambda value, _: tick(value, show) if value else "0")

    return Panel(title, draw, 1.7 + 0.42 * len(bars))


def _chart(
    setting: Setting, name: str, title: str, caption: str, panels: Sequence[Panel], says: str
) -> Chart:
    return Chart(f"{setting.name}-{name}", title, caption, setting.provenance, tuple(panels), says)
