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
from typing import TYPE_CHECKING, Final

from fedsz.experiments.link_model import Link
from fedsz.formatting import bandwidth, seconds
from fedsz.report import series
from fedsz.report.chart import Chart, Omitted, Panel
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, UpdateCost, named, updates
from fedsz.report.statistics import Spread, spread
from fedsz.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PHASE_COLOURS: Final = {"training": "soft", "encode": "blue", "transfer": "gold", "decode": "red"}
NARROWEST: Final = 1e6  # bits a second that Figure 8's axis begins with, an order below the paper's
WIDEST: Final = 1e10  # a data centre's
STEPS: Final = 81
NO_UPDATE: Final = "no client sent an update"


def compressed(update: UpdateCost, link: Link) -> float:
    """Return the seconds that an update takes on a link."""
    return update.encode + link.seconds(update.sent) + update.decode


def compressing_pays(found: Sequence[UpdateCost]) -> str:
    """Say at which bandwidths compressing pays."""
    where = Spread.of(update.worth_below for update in found)
    if where is None:
        return "always" if found else "–"
    return "below " + spread(where, bandwidth) if where.greatest else "never"


def split_chart(setting: Setting, link: Link) -> Chart | Omitted:
    """Draw what a client's round is made of, a bar for each way at the usual bound."""
    title = "Where the time of a round goes"
    everyone = updates(setting.runs)
    if not everyone:
        return Omitted(title, NO_UPDATE)
    bars = {}
    for label, runs in setting.at(setting.usual):
        if found := updates(runs):
            bars[label] = _phases(found, link, label)
    if UNCOMPRESSED not in bars:
        bars = {UNCOMPRESSED: _phases(everyone, link, UNCOMPRESSED), **bars}
    trained = any(math.isfinite(phases["training"].middle) for phases in bars.values())
    says = "; ".join(
        f"{label}: " + ", ".join(f"{what} {seconds(v.middle)}" for what, v in phases.items())
        for label, phases in bars.items()
    )
    return Chart(
        f"{setting.name}-time-split",
        title,
        f"One client's round at {named(setting.usual, 'no bound')}: training and encoding as"
        f" clients measured them, the way up calculated for {_named(link)}, decoding as the server"
        " measured it; medians over seeds, and a whisker from the least to the greatest sum."
        + ("" if trained else " The run did not record how long training took."),
        setting.provenance,
        (Panel("", partial(_draw_bars, bars=bars), says, height=1.5 + 0.34 * len(bars)),),
    )


def bounds_chart(setting: Setting, styles: series.Styles, links: Sequence[Link]) -> Chart | Omitted:
    """Draw the time of an update over the bound, a panel for each link."""
    title = "Time of an update over error bound"
    if not updates(setting.runs):
        return Omitted(title, NO_UPDATE)
    if few := series.too_few_bounds(setting):
        return Omitted(title, few)
    panels: list[Panel] = []
    for link in links:
        time = partial(_time, link=link)
        flat = {UNCOMPRESSED: uncompressed(setting, link)}
        flat |= {k: level for k, level in series.levels(setting, time).items() if k != UNCOMPRESSED}
        panels += series.bounds_panels(
            setting, time, flat, styles, _says, series.time_axis, _named(link)
        )
    return Chart(
        f"{setting.name}-transfer-bound",
        title,
        "Encoding by the client, the way up calculated from bytes, bandwidth and latency, decoding"
        f" by the server. {series.spread_note(setting.runs)}",
        setting.provenance,
        tuple(panels),
    )


def bandwidths_chart(
    setting: Setting, styles: series.Styles, links: Sequence[Link]
) -> Chart | Omitted:
    """Draw the time of an update over the bandwidth, and from where on compressing costs time.

    All bandwidths have the latency of the first link.
    """
    title = "Time of an update over bandwidth"
    found = {
        label: known
        for label, runs in setting.at(setting.usual)
        if label != UNCOMPRESSED and (known := updates(runs))
    }
    if not found:
        return Omitted(title, "no run compresses" if updates(setting.runs) else NO_UPDATE)
    latency = links[0].latency
    low = min(NARROWEST, *(link.bandwidth for link in links))
    high = max(WIDEST, *(link.bandwidth for link in links))
    across = [Link(low * (high / low) ** (i / (STEPS - 1)), latency) for i in range(STEPS)]
    raw = Spread.of(update.raw for update in updates(setting.runs))
    assert raw is not None
    says = "; ".join(f"{label} {compressing_pays(known)}" for label, known in found.items())
    delay = f"{seconds(latency)} of" if latency else "no"
    draw = partial(_draw_bandwidths, across=across, raw=raw.middle, found=found, styles=styles)
    return Chart(
        f"{setting.name}-transfer-bandwidth",
        title,
        f"At {named(setting.usual, 'no bound')}: encoding, the way up with {delay} latency,"
        f" decoding. Dots are where compressing takes as long as not compressing: {says}."
        f" {series.spread_note(setting.runs)}",
        setting.provenance,
        (Panel("", draw, f"Compressing pays: {says}", height=3.3),),
    )


def uncompressed(setting: Setting, link: Link) -> Spread:
    """Return the seconds of an update as it is; there must be a run with updates."""
    found = Spread.of(link.seconds(update.raw) for update in updates(setting.runs))
    assert found is not None
    return found


def _time(run: Run, link: Link) -> float:
    update = run.update
    return compressed(update, link) if update else math.nan


def _says(lines: Mapping[str, series.Series]) -> str:
    return "Time of an update: " + "; ".join(
        f"{label} {spread(line[x], seconds)} at {x:g}"
        for label, line in lines.items()
        if line
        for x in (min(line), max(line))
    )


def _phases(found: Sequence[UpdateCost], link: Link, label: str) -> dict[str, Spread]:
    """Return the seconds of each phase; those of "sum" last."""
    plain = label == UNCOMPRESSED
    columns = {
        "training": [update.train for update in found],
        "encode": [0.0 if plain else update.encode for update in found],
        "transfer": [link.seconds(update.raw if plain else update.sent) for update in found],
        "decode": [0.0 if plain else update.decode for update in found],
    }
    sums = [
        sum(part for part in parts if math.isfinite(part))
        for parts in zip(*columns.values(), strict=True)
    ]
    nothing = Spread(math.nan, math.nan, math.nan, math.nan, 0)
    return {what: Spread.of(of) or nothing for what, of in {**columns, "sum": sums}.items()}


def _named(link: Link) -> str:
    delay = f" and {seconds(link.latency)}" if link.latency else ""
    return f"{bandwidth(link.bandwidth)}{delay}"


def _draw_bars(ax: Axes, bars: Mapping[str, Mapping[str, Spread]]) -> None:
    labels = list(bars)
    ends = [0.0] * len(labels)
    for phase, colour in PHASE_COLOURS.items():
        widths = [bars[label][phase].middle for label in labels]
        widths = [width if math.isfinite(width) else 0.0 for width in widths]
        ax.barh(labels, widths, left=ends, height=0.62, color=LIGHT[colour], label=phase)
        ends = [start + width for start, width in zip(ends, widths, strict=True)]
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


def _draw_bandwidths(
    ax: Axes,
    across: Sequence[Link],
    raw: float,
    found: Mapping[str, Sequence[UpdateCost]],
    styles: series.Styles,
) -> None:
    x = [link.bandwidth for link in across]
    plain = [link.seconds(raw) for link in across]
    ax.plot(x, plain, label=UNCOMPRESSED, **styles[UNCOMPRESSED].line(markers=False))
    for label, known in found.items():
        style = styles[label]
        times = {
            link.bandwidth: Spread.of(compressed(update, link) for update in known)
            for link in across
        }
        line = {rate: time for rate, time in times.items() if time}
        series.draw_series(ax, label, line, style, markers=False)
        point = Spread.of(update.worth_below for update in known)
        if point and x[0] <= point.middle <= x[-1]:
            ax.plot(
                [point.middle], [Link(point.middle, across[0].latency).seconds(raw)],
                color=style.colour, marker=style.marker, linestyle="none", markersize=7,
            )  # fmt: skip
    ax.set_xscale("log")
    series.time_axis(ax)
    ticks = [10.0**power for power in range(16) if x[0] <= 10.0**power <= x[-1]]
    ax.set_xticks(ticks, [bandwidth(tick).replace(" ", "\n") for tick in ticks])
    ax.set_xticks([], minor=True)
