"""How the time of a round grows with clients and shrinks with workers: the paper's Figure 9."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fedsz.errors import ConfigError
from fedsz.formatting import bandwidth
from fedsz.report.chart import Chart, Omitted, Panel
from fedsz.report.series import TIME, Axis, lines_panel, series_of
from fedsz.report.style import DASHES, LIGHT, MARKERS, SERIES, LineStyle

# Kind -> its axis, and what the panel is called.
KINDS: Final = {
    "weak": ("clients", "Weak scaling: more clients"),
    "strong": ("workers", "Strong scaling: more workers"),
}
TOLD: Final = ("model", "dataset", "codec", "error_bound", "samples_per_client")
LINKS: Final = {"own": "a link each", "shared": "one link for all"}

MEASURED: Final = "measured"  # how; else "calculated"

Point = Mapping[str, Any]


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
        _panel(name, mine, axis)
        for kind, (axis, name) in KINDS.items()
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


def _panel(title: str, points: Sequence[Point], axis: str) -> Panel:
    names = [*TOLD, "clients"] if axis == "workers" else TOLD
    differing = [name for name in names if len({point.get(name) for point in points}) > 1]
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        what = [str(point["how"])]
        what += [LINKS[point["link"]]] if point.get("link") in LINKS else []
        told = {name: str(point.get(name)) for name in differing}
        what += [f"{value} {name}" if name == "clients" else value for name, value in told.items()]
        values[", ".join(what)].append((point[axis], point["seconds"]))
    styles = {}
    for i, label in enumerate(values):
        measured = label.startswith(MEASURED)
        dashes = "none" if measured else DASHES[i % len(DASHES)]
        marker = MARKERS[i % len(MARKERS)] if measured else ""
        styles[label] = LineStyle(LIGHT[SERIES[i % len(SERIES)]], dashes, marker)
    lines = {label: series_of(found) for label, found in values.items()}
    x = Axis(axis, "{:,.0f}".format, log=True)
    return lines_panel(title, lines, styles, x, TIME, height=3.4)
