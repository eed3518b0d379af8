"""How the time of a round grows with clients and shrinks with workers: the paper's Figure 9."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fedsz.errors import ConfigError
from fedsz.formatting import bandwidth, seconds
from fedsz.report.chart import Chart, Omitted, Panel
from fedsz.report.series import time_axis
from fedsz.report.style import DASHES, LIGHT, MARKERS, SERIES, LineStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Kind -> its axis, and what the panel is called.
KINDS: Final = {
    "weak": ("clients", "Weak scaling: more clients"),
    "strong": ("workers", "Strong scaling: more workers"),
}
TOLD: Final = ("model", "dataset", "codec", "error_bound", "samples_per_client")
LINKS: Final = {"own": "a link each", "shared": "one link for all"}

Point = Mapping[str, Any]
Key = tuple[str, str]  # "measured" or "calculated", and of what


def scaling_figure(points: Iterable[Point]) -> Chart | Omitted:
    """Draw the seconds of a round: measured ones as dots, calculated ones as lines.

    Each point is a row of the table of scaling, `fedsz.experiments.results.SCALING`.

    Raises:
        ConfigError: a kind that does not exist.
    """
    title = "Scaling"
    known = [point for point in points if 0 < (point["seconds"] or math.nan) < math.inf]
    for point in known:
        if point["kind"] not in KINDS:
            raise ConfigError(f"no scaling {point['kind']!r}; have {', '.join(KINDS)}")
    if not known:
        return Omitted(title, "there is no point with a time")
    panels = [
        _panel(name, _lines(mine, axis), axis)
        for kind, (axis, name) in KINDS.items()
        if (mine := [point for point in known if point["kind"] == kind])
    ]
    rates = sorted({p["bandwidth"] for p in known if math.isfinite(p.get("bandwidth") or math.inf)})
    links = f" Links carry {', '.join(map(bandwidth, rates))}." if rates else ""
    most = max((p["workers"] for p in known if p["how"] == "measured"), default=0)
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


def _lines(points: Sequence[Point], axis: str) -> dict[Key, dict[int, float]]:
    names = [*TOLD, "clients"] if axis == "workers" else TOLD
    differing = [name for name in names if len({point.get(name) for point in points}) > 1]
    lines: dict[Key, dict[int, float]] = {}
    for point in sorted(points, key=lambda p: int(p[axis])):
        what = [LINKS[point["link"]]] if point.get("link") in LINKS else []
        told = {name: str(point.get(name)) for name in differing}
        what += [f"{value} {name}" if name == "clients" else value for name, value in told.items()]
        key = str(point["how"]), ", ".join(what)
        lines.setdefault(key, {})[int(point[axis])] = point["seconds"]
    return lines


def _panel(title: str, lines: Mapping[Key, Mapping[int, float]], axis: str) -> Panel:
    def draw(ax: Axes) -> None:
        for i, ((how, what), line) in enumerate(lines.items()):
            measured = how == "measured"
            dashes = "none" if measured else DASHES[i % len(DASHES)]
            marker = MARKERS[i % len(MARKERS)] if measured else ""
            style = LineStyle(LIGHT[SERIES[i % len(SERIES)]], dashes, marker)
            label = f"{how}, {what}" if what else how
            ax.plot(list(line), list(line.values()), label=label, **style.line())
        ax.set_xscale("log", base=2 if axis == "workers" else 10)
        time_axis(ax)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        ax.set_xlabel(axis)

    says = []
    for (how, what), line in lines.items():
        ends = [f"{seconds(line[x])} at {x:,} {axis}" for x in (min(line), max(line))]
        says.append(f"{f'{how} {what}'.rstrip()}: {', '.join(ends)}")
    return Panel(title, draw, "; ".join(says), height=3.4)
