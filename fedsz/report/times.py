"""Where the time goes: in a round (the paper's Figure 6), over bounds (7) and bandwidths (8).

The time of an update on a link, one client's encoding and the server's decoding counted (the
paper's Eqn 1 without its right side; its Figure 8 leaves t_D out):

    t_C + latency + 8 S' / B + t_D

and uncompressed latency + 8 S / B, for S bytes of tensors and S' of stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from fedsz.experiments.link_model import Link
from fedsz.formatting import bandwidth, seconds
from fedsz.report import series
from fedsz.report.chart import Chart, Omitted, Panel
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread, Update, named, spread
from fedsz.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PHASE_COLOURS: Final = {"training": "soft", "encode": "blue", "transfer": "gold", "decode": "red"}
NARROWEST: Final = 1e6  # bits a second that Figure 8's axis begins with, an order below the paper's
WIDEST: Final = 1e10  # a data centre's
STEPS: Final = 81
BANDWIDTH: Final = series.Axis("bandwidth", bandwidth, log=True)
NO_UPDATE: Final = "no client sent an update"


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
    found = {UNCOMPRESSED: setting.updates} | found
    bars = {label: _phases(known, link, label == UNCOMPRESSED) for label, known in found.items()}
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


def _phases(found: Sequence[Update], link: Link, plain: bool) -> dict[str, Spread]:
    columns = {
        "training": [update.train_seconds for update in found],
        "encode": [0.0 if plain else update.encode_seconds for update in found],
        "transfer": [
            link.seconds(update.raw_bytes if plain else update.sent_bytes) for update in found
        ],
        "decode": [0.0 if plain else update.decode_seconds for update in found],
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
