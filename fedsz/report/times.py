"""Where the time goes: in a round (the paper's Figure 6), over bounds (7) and bandwidths (8).

The time of an update on a link, one client's encoding and the server's decoding counted (the
paper's Eqn 1 without its right side; its Figure 8 leaves t_D out):

    t_C + latency + 8 S' / B + t_D

and uncompressed latency + 8 S / B, for S bytes of tensors and S' of stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fedsz.experiments.link_model import Link, shown
from fedsz.report.chart import Absent, Chart, Panel
from fedsz.report.curves import by_kind, spread_note, times_over_bounds, too_few_bounds
from fedsz.report.numbers import named, seconds, spread
from fedsz.report.runs import UNCOMPRESSED, Run, Setup, Spread, Update
from fedsz.report.style import LIGHT, Look, bands, time_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PHASES: Final = ("training", "encode", "transfer", "decode")
PHASE_COLOURS: Final = ("soft", "blue", "gold", "red")
NARROWEST: Final = 1e6  # bits a second that Figure 8's axis begins with, an order below the paper's
WIDEST: Final = 1e10  # a data centre's
STEPS: Final = 81
NO_UPDATE: Final = "no client sent an update"

Looks = Mapping[str, Look]


def compressed(update: Update, link: Link) -> float:
    """Return the seconds that an update takes on a link."""
    return update.encode + link.seconds(update.sent) + update.decode


def updates(runs: Sequence[Run]) -> list[Update]:
    """Return the mean update of each run that has one."""
    return [update for run in runs if (update := run.update)]


def split(setup: Setup, link: Link) -> Chart | Absent:
    """Draw what a client's round is made of, a bar for each way at the usual bound."""
    title = "Where the time of a round goes"
    bound = setup.usual
    everyone = updates(setup.runs)
    if not everyone:
        return Absent(title, NO_UPDATE)
    bars = {}
    for name, runs in setup.at(bound):
        if found := updates(runs):
            bars[name] = _phases(found, link, name)
    if UNCOMPRESSED not in bars:
        bars = {UNCOMPRESSED: _phases(everyone, link, UNCOMPRESSED), **bars}
    trained = any(math.isfinite(phases["training"].middle) for phases in bars.values())
    says = "; ".join(
        f"{name}: " + ", ".join(f"{what} {seconds(v.middle)}" for what, v in phases.items())
        for name, phases in bars.items()
    )
    return Chart(
        f"{setup.name}-time-split",
        title,
        f"One client's round at {named(bound, 'no bound')}: training and encoding as clients"
        f" measured them, the way up calculated for {_link(link)}, decoding as the server measured"
        " it; medians over seeds, and a whisker from the least to the greatest sum."
        + ("" if trained else " The run did not record how long training took."),
        setup.provenance,
        (Panel("", _bars(bars), says, height=1.5 + 0.34 * len(bars)),),
    )


def over_bounds(setup: Setup, looks: Looks, links: Sequence[Link]) -> Chart | Absent:
    """Draw the time of an update over the bound, a panel for each link."""
    title = "Time of an update over error bound"
    if not updates(setup.runs):
        return Absent(title, NO_UPDATE)
    if few := too_few_bounds(setup):
        return Absent(title, few)
    panels = []
    for link in links:
        for kind, bounds in by_kind(setup.bounds):
            lines = {
                name: {
                    bound.value: found
                    for bound in bounds
                    if (found := _times(setup.of(name, bound), link))
                }
                for name in setup.bounded
            }
            levels = {
                name: found
                for name in setup.labels
                if name not in (*setup.bounded, UNCOMPRESSED)
                if (found := _times(setup.of(name), link))
            }
            known = {UNCOMPRESSED: _uncompressed(setup, link), **levels}
            says = "Time of an update: " + "; ".join(
                f"{name} {spread(line[x], seconds)} at {x:g}"
                for name, line in lines.items()
                if line
                for x in (min(line), max(line))
            )
            draw = times_over_bounds(lines, known, looks, kind)
            panels.append(Panel(_link(link), draw, says))
    return Chart(
        f"{setup.name}-transfer-bound",
        title,
        "Encoding by the client, the way up calculated from bytes, bandwidth and latency, decoding"
        f" by the server. {spread_note(setup.runs)}",
        setup.provenance,
        tuple(panels),
    )


def over_bandwidths(
    setup: Setup, looks: Looks, links: Sequence[Link], latency: float
) -> Chart | Absent:
    """Draw the time of an update over the bandwidth, and from where on compressing costs time."""
    title = "Time of an update over bandwidth"
    found = {
        name: known
        for name, runs in setup.at(setup.usual)
        if name != UNCOMPRESSED and (known := updates(runs))
    }
    if not found:
        return Absent(title, "no run compresses" if updates(setup.runs) else NO_UPDATE)
    asked = [link.bandwidth for link in links]
    low, high = min(NARROWEST, *asked), max(WIDEST, *asked)
    x = [low * (high / low) ** (i / (STEPS - 1)) for i in range(STEPS)]
    raw = Spread.of(update.raw for update in updates(setup.runs))
    assert raw is not None
    ends = {name: _crossing(known) for name, known in found.items()}
    said = "; ".join(f"{name} {end}" for name, end in ends.items())
    delay = f"{seconds(latency)} of" if latency else "no"
    return Chart(
        f"{setup.name}-transfer-bandwidth",
        title,
        f"At {named(setup.usual, 'no bound')}: encoding, the way up with {delay} latency,"
        f" decoding. Dots are where compressing takes as long as not compressing: {said}."
        f" {spread_note(setup.runs)}",
        setup.provenance,
        (
            Panel(
                "",
                _over_bandwidths(x, raw.middle, found, looks, latency),
                f"Compressing pays: {said}",
                height=3.3,
            ),
        ),
    )


def crossing(runs: Sequence[Run]) -> str:
    """Say at which bandwidths compressing pays."""
    return _crossing(updates(runs))


def _crossing(found: Sequence[Update]) -> str:
    where = [update.worth_below for update in found]
    if not where:
        return "–"
    if not any(where):
        return "never"
    if all(map(math.isinf, where)):
        return "always"
    known = Spread.of(where)
    assert known is not None
    return "below " + spread(known, shown)


def _phases(found: Sequence[Update], link: Link, name: str) -> dict[str, Spread]:
    """Return the seconds of each phase; those of "sum" last."""
    plain = name == UNCOMPRESSED
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


def _times(runs: Sequence[Run], link: Link) -> Spread | None:
    return Spread.of(compressed(update, link) for update in updates(runs))


def _uncompressed(setup: Setup, link: Link) -> Spread:
    found = Spread.of(link.seconds(update.raw) for update in updates(setup.runs))
    assert found is not None
    return found


def _link(link: Link) -> str:
    delay = f" and {seconds(link.latency)}" if link.latency else ""
    return f"{shown(link.bandwidth)}{delay}"


def _bars(bars: Mapping[str, Mapping[str, Spread]]) -> Any:
    def draw(ax: Axes) -> None:
        names = list(bars)
        at = [0.0] * len(names)
        for phase, colour in zip(PHASES, PHASE_COLOURS, strict=True):
            widths = [bars[name][phase].middle for name in names]
            widths = [width if math.isfinite(width) else 0.0 for width in widths]
            ax.barh(names, widths, left=at, height=0.62, color=LIGHT[colour], label=phase)
            at = [start + width for start, width in zip(at, widths, strict=True)]
        for i, name in enumerate(names):
            whole = bars[name]["sum"]
            if whole.count > 1:
                ax.hlines(i, whole.least, whole.greatest, color=LIGHT["ink"], linewidth=1)
            ax.annotate(
                seconds(whole.middle), (max(at[i], whole.greatest), i), (4, 0),
                textcoords="offset points", va="center", fontsize=9,
            )  # fmt: skip
        ax.invert_yaxis()
        ax.margins(x=0.2)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("seconds")

    return draw


def _over_bandwidths(
    x: Sequence[float],
    raw: float,
    found: Mapping[str, Sequence[Update]],
    looks: Looks,
    latency: float,
) -> Any:
    def draw(ax: Axes) -> None:
        links = [Link(bandwidth, latency) for bandwidth in x]
        plain = [link.seconds(raw) for link in links]
        ax.plot(x, plain, label=UNCOMPRESSED, **looks[UNCOMPRESSED].line(markers=False))
        for name, known in found.items():
            look = looks[name]
            spreads = [Spread.of(compressed(update, link) for update in known) for link in links]
            ends = [
                (value.least, value.middle, value.greatest)
                for value in spreads
                if value is not None
            ]
            least, middle, greatest = (list(column) for column in zip(*ends, strict=True))
            if len(known) > 1:
                bands(ax, x, least, greatest, look)
            ax.plot(x, middle, label=name, **look.line(markers=False))
            point = Spread.of(update.worth_below for update in known)
            if point and x[0] <= point.middle <= x[-1]:
                ax.plot(
                    [point.middle], [Link(point.middle, latency).seconds(raw)],
                    color=look.colour, marker=look.marker, linestyle="none", markersize=7,
                )  # fmt: skip
        ax.set_xscale("log")
        time_axis(ax)
        ticks = [10.0**power for power in range(16) if x[0] <= 10.0**power <= x[-1]]
        ax.set_xticks(ticks, [shown(tick).replace(" ", "\n") for tick in ticks])
        ax.set_xticks([], minor=True)

    return draw
