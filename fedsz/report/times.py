"""Where time goes: in a round (the paper's Figure 6), over bounds (7), links (8), and clients (9).

The time of an update on a link, one client's encoding and the server's decoding counted (the
paper's Eqn 1 without its right side; its Figure 8 leaves t_D out):

    t_C + latency + 8 S' / B + t_D

and uncompressed latency + 8 S / B, for S bytes of tensors and S' of stream.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedsz.errors import ConfigError
from fedsz.experiments.link_model import Link
from fedsz.formatting import bandwidth, seconds
from fedsz.report import series
from fedsz.report.chart import Chart, Omitted, Panel
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread, Update, named, spread
from fedsz.report.style import DASHES, LIGHT, MARKERS, SERIES, LineStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PHASE_COLOURS: Final = {"training": "soft", "encode": "blue", "transfer": "gold", "decode": "red"}
NARROWEST: Final = 1e6  # bits a second that Figure 8's axis begins with, an order below the paper's
WIDEST: Final = 1e10  # a data centre's
STEPS: Final = 81
BANDWIDTH: Final = series.Axis("bandwidth", bandwidth, log=True)
NO_UPDATE: Final = "no client sent an update"
# Kind -> its axis, and what the panel is called.
SCALINGS: Final = {
    "weak": ("clients", "Weak scaling: more clients"),
    "strong": ("workers", "Strong scaling: more workers"),
}
LINKS: Final = {"own": "a link each", "shared": "one link for all"}

MEASURED: Final = "measured"  # how; else "calculated"

Point = Mapping[str, Any]


def uncompressed(setting: Setting, link: Link) -> Spread:
    """Return the seconds of an update as it is; there must be a run with updates."""
    found = Spread.of(link.seconds(update.raw_bytes) for update in setting.updates)
    assert found is not None
    return found


def compressing_pays(found: Sequence[Update]) -> str:
    """Say at which bandwidths compressing pays."""
    where = Spread.of(update.worth_below for update in found)
    if where is None:
        return "always" if found else "–"
    return "below " + spread(where, bandwidth) if where.greatest else "never"


def named_link(link: Link, of: str = "") -> str:
    """Return a link's bandwidth, and its latency if it has one."""
    delay = f" and {seconds(link.latency)}{of}" if link.latency else ""
    return f"{bandwidth(link.bandwidth)}{delay}"


def split_chart(setting: Setting, link: Link) -> Chart | Omitted:
    """Draw what a client's round is made of, a bar for each scheme at the usual bound."""
    title = "Where the time of a round goes"
    if not setting.updates:
        return Omitted(title, NO_UPDATE)
    found = {group.label: group.updates for group in setting.at(setting.usual) if group.updates}
    found = {UNCOMPRESSED: [update.plain for update in setting.updates]} | found
    bars = {label: _phases(known, link) for label, known in found.items()}
    trained = any(math.isfinite(phases["training"].middle) for phases in bars.values())
    says = "; ".join(
        f"{label}: " + ", ".join(f"{what} {seconds(v.middle)}" for what, v in phases.items())
        for label, phases in bars.items()
    )
    caption = (
        f"One client's round at {named(setting.usual, 'no bound')}: training and encoding as"
        f" clients measured them, the uplink calculated for {named_link(link)}, decoding as the"
        " server measured it; medians over seeds, and a whisker from the least to the greatest sum."
        + ("" if trained else " The run did not record how long training took.")
    )
    panel = Panel("", partial(_draw_bars, bars=bars), says, height=1.5 + 0.34 * len(bars))
    return Chart.of(setting, "time-split", title, caption, panel)


def bounds_chart(setting: Setting, styles: series.Styles, links: Sequence[Link]) -> Chart | Omitted:
    """Draw the time of an update over the bound, a panel for each link."""
    title = "Time of an update over error bound"
    if not setting.updates:
        return Omitted(title, NO_UPDATE)
    if few := series.too_few_bounds(setting):
        return Omitted(title, few)
    panels: list[Panel] = []
    for link in links:

        def time(run: Run, link: Link = link) -> float:
            return run.update.seconds(link.bandwidth, link.latency) if run.update else math.nan

        name, plain = named_link(link), uncompressed(setting, link)
        panels += series.bounds_panels(setting, time, styles, series.TIME, name, plain)
    caption = (
        "Encoding by the client, the uplink calculated from bytes, bandwidth and latency, decoding"
        f" by the server. {series.spread_note(setting.runs)}"
    )
    return Chart.of(setting, "transfer-bound", title, caption, *panels)


def bandwidths_chart(
    setting: Setting, styles: series.Styles, links: Sequence[Link]
) -> Chart | Omitted:
    """Draw the time of an update over the bandwidth, and from where on compressing costs time.

    All bandwidths have the latency of the first link.
    """
    title = "Time of an update over bandwidth"
    at = [group for group in setting.at(setting.usual) if not group.uncompressed]
    found = {group.label: group.updates for group in at if group.updates}
    if not found:
        return Omitted(title, "no run compresses" if setting.updates else NO_UPDATE)
    latency = links[0].latency
    low = min(NARROWEST, *(link.bandwidth for link in links))
    high = max(WIDEST, *(link.bandwidth for link in links))
    across = [Link(low * (high / low) ** (i / (STEPS - 1)), latency) for i in range(STEPS)]
    raw = median(update.raw_bytes for update in setting.updates)
    lines = {UNCOMPRESSED: series.series_of((link.bandwidth, link.seconds(raw)) for link in across)}
    for label, known in found.items():
        lines[label] = series.series_of(
            (link.bandwidth, update.seconds(link.bandwidth, link.latency))
            for link in across
            for update in known
        )
    says = "; ".join(f"{label} {compressing_pays(known)}" for label, known in found.items())

    def crossings(ax: Axes) -> None:
        for label, known in found.items():
            point = Spread.of(update.worth_below for update in known)
            if point and low <= point.middle <= high:
                ax.plot(
                    [point.middle], [Link(point.middle, latency).seconds(raw)], linestyle="none",
                    color=styles[label].colour, marker=styles[label].marker, markersize=7,
                )  # fmt: skip

    delay = f"{seconds(latency)} of" if latency else "no"
    caption = (
        f"At {named(setting.usual, 'no bound')}: encoding, the uplink with {delay} latency,"
        f" decoding. Dots are where compressing takes as long as not compressing: {says}."
        f" {series.spread_note(setting.runs)}"
    )
    panel = series.lines_panel("", lines, styles, BANDWIDTH, series.TIME, more=crossings)
    return Chart.of(setting, "transfer-bandwidth", title, caption, panel)


def _phases(found: Sequence[Update], link: Link) -> dict[str, Spread]:
    columns = {
        "training": [update.train_seconds for update in found],
        "encode": [update.encode_seconds for update in found],
        "transfer": [link.seconds(update.sent_bytes) for update in found],
        "decode": [update.decode_seconds for update in found],
    }
    columns["sum"] = np.nansum(list(columns.values()), axis=0).tolist()
    nothing = Spread((), math.nan, math.nan, math.nan, math.nan)
    return {what: Spread.of(values) or nothing for what, values in columns.items()}


def _draw_bars(ax: Axes, bars: Mapping[str, Mapping[str, Spread]]) -> None:
    labels = list(bars)
    ends = np.zeros(len(labels))
    for phase, colour in PHASE_COLOURS.items():
        widths = np.nan_to_num([bars[label][phase].middle for label in labels])
        ax.barh(labels, widths, left=ends, height=0.62, color=LIGHT[colour], label=phase)
        ends = ends + widths
    for i, (label, end) in enumerate(zip(labels, ends, strict=True)):
        whole = bars[label]["sum"]
        if whole.count > 1:
            ax.hlines(i, whole.least, whole.greatest, color=LIGHT["ink"], linewidth=1)
        ax.annotate(
            seconds(whole.middle), (max(end, whole.greatest), i), (4, 0),
            textcoords="offset points", va="center", fontsize=9,
        )  # fmt: skip
    ax.invert_yaxis()
    ax.margins(x=0.2)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("seconds")


def scaling_figure(points: Iterable[Point]) -> Chart | Omitted:
    """Draw the seconds of a round: measured ones as dots, calculated ones as lines.

    Each point is a row of the table of scaling, `fedsz.experiments.results.SCALING`.

    Raises:
        ConfigError: a kind that does not exist.
    """
    title = "Scaling"
    known = [point for point in points if 0 < (point["seconds"] or math.nan) < math.inf]
    for point in known:
        if point["kind"] not in SCALINGS:
            raise ConfigError(f"no scaling {point['kind']!r}; have {', '.join(SCALINGS)}")
    if not known:
        return Omitted(title, "there is no point with a time")
    panels = [
        _scaling_panel(name, mine, axis)
        for kind, (axis, name) in SCALINGS.items()
        if (mine := [point for point in known if point["kind"] == kind])
    ]
    rates = sorted({p["bandwidth"] for p in known if math.isfinite(p.get("bandwidth") or math.inf)})
    links = f" Links carry {', '.join(map(bandwidth, rates))}." if rates else ""
    most = max((p["workers"] for p in known if p["how"] == MEASURED), default=0)
    caption = (
        "Seconds of a round. Marks were measured in Flower's simulation, without links and on at"
        f" most {most} workers, for which clients wait in turn. Lines are calculated from what one"
        f" client costs, for weak scaling with a worker for each.{links}"
    )

    def of(name: str, otherwise: str = "not recorded") -> str:
        found = sorted({str(point[name]) for point in known if point.get(name)})
        return ", ".join(found) or otherwise

    provenance = (
        f"Model {of('model')}; data {of('dataset')}; seeds {of('seed')}; machine: {of('machine')}"
        f" ({of('cores', 'unknown')} cores)."
    )
    return Chart("scaling", title, caption, provenance, tuple(panels))


def _scaling_panel(title: str, points: Sequence[Point], axis: str) -> Panel:
    several = axis == "workers" and len({point["clients"] for point in points}) > 1
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        what = [str(point["how"])]
        what += [LINKS[point["link"]]] if point.get("link") in LINKS else []
        what += [f"{point['clients']} clients"] if several else []
        values[", ".join(what)].append((point[axis], point["seconds"]))
    styles = {}
    for i, label in enumerate(values):
        measured = label.startswith(MEASURED)
        dashes = "none" if measured else DASHES[i % len(DASHES)]
        marker = MARKERS[i % len(MARKERS)] if measured else ""
        styles[label] = LineStyle(LIGHT[SERIES[i % len(SERIES)]], dashes, marker)
    lines = {label: series.series_of(found) for label, found in values.items()}
    x = series.Axis(axis, "{:,.0f}".format, log=True)
    return series.lines_panel(title, lines, styles, x, series.TIME, height=3.4)
