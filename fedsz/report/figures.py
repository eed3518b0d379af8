"""Figures by matplotlib, as SVG and PNG.

They are drawn without a window and without the user's matplotlibrc, in a font that matplotlib
brings, so equal charts give equal bytes on any machine.
"""

from __future__ import annotations

import io
import os
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from fedsz.formatting import one_line
from fedsz.palette import COLOURS
from fedsz.report.runs import UNCOMPRESSED, rank

if TYPE_CHECKING:
    import matplotlib.axis
    from matplotlib.axes import Axes

LIGHT: Final = {name: pair[0] for name, pair in COLOURS.items()}
SERIES: Final = ("blue", "red", "green", "purple", "gold", "indigo", "brown")
DASHES: Final = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1.5)))
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
COLUMNS: Final = 3  # panels beside each other
WIDTH, HEIGHT = 5.2, 3.4  # inches of a panel
LABEL: Final = 44  # letters of a name in a legend
ROOM: Final = 70  # letters of a row of a legend, of which a line and a gap take 7
NOTE: Final = 108  # letters of a line of small print, for each panel

_SETTINGS: Final[dict[str, Any]] = {
    "axes.axisbelow": True, "axes.edgecolor": LIGHT["soft"], "axes.grid": True,
    "axes.spines.right": False, "axes.spines.top": False, "axes.titlelocation": "left",
    "axes.titlesize": 10, "figure.dpi": 160, "font.family": ["DejaVu Sans"],
    "grid.color": LIGHT["rule"], "legend.fontsize": 8, "legend.frameon": False,
    "lines.markersize": 5, "lines.linewidth": 1.8, "svg.fonttype": "path",
    "text.parse_math": False,  # names may hold a dollar
    "xtick.color": LIGHT["soft"], "ytick.color": LIGHT["soft"],
    "xtick.labelcolor": LIGHT["ink"], "ytick.labelcolor": LIGHT["ink"],
}  # fmt: skip

Draw = Callable[["Axes"], None]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str  # above it; "" if the chart's title is enough
    draw: Draw
    height: float = HEIGHT  # inches


@dataclass(frozen=True)
class Chart:
    """A figure of one or more panels."""

    name: str  # unique in a report; letters, digits and dashes
    title: str
    caption: str  # what is drawn and how it was computed
    provenance: str  # model, data, seeds, machine
    panels: tuple[Panel, ...]
    says: str = ""  # the same in words, for readers who do not see it


def looks(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what ``Axes.plot`` takes for each label: the same in whatever order they come."""
    found: dict[str, dict[str, Any]] = {}
    found[UNCOMPRESSED] = {"color": LIGHT["ink"], "linestyle": (0, (2, 1.5)), "marker": ""}
    others = sorted(set(labels) - {UNCOMPRESSED}, key=rank)
    for label, colour, dashes, marker in zip(
        others, cycle(SERIES), cycle(DASHES), cycle(MARKERS), strict=False
    ):
        found[label] = {"color": LIGHT[colour], "linestyle": dashes, "marker": marker}
    return {label: {**look, "label": one_line(label, LABEL)} for label, look in found.items()}


def log_axis(axis: matplotlib.axis.Axis, show: Callable[[float], str]) -> None:
    """Name the decades of a logarithmic axis, and round numbers between if there are few."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: show(value))
    low, high = sorted(axis.get_view_interval())
    for locator in (LogLocator(numticks=8), LogLocator(subs=(1, 2, 5)), MaxNLocator(5)):
        axis.set_major_locator(locator)
        if sum(low <= value <= high for value in locator.tick_values(low, high)) >= 2:
            return


def drawn(chart: Chart) -> dict[str, bytes]:
    """Return a chart as files, by their suffix: "svg" and "png"."""
    across = min(COLUMNS, len(chart.panels))
    down = ceil(len(chart.panels) / across)
    height = down * max(panel.height for panel in chart.panels) + 0.6
    with _matplotlib(chart.name):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure((WIDTH * across, height), layout="constrained")
        figure.suptitle(chart.title, x=0.01, ha="left", size=11)
        note = "\n".join(textwrap.wrap(chart.provenance, NOTE * across))
        figure.supxlabel(note, x=0.01, ha="left", size=6.5, color=LIGHT["soft"])
        axes = list(figure.subplots(down, across, squeeze=False).flat)
        for panel, ax in zip(chart.panels, axes, strict=False):
            panel.draw(ax)
            ax.set_title(panel.title)
            if labels := ax.get_legend_handles_labels()[1]:
                columns = max(1, ROOM // (max(map(len, labels)) + 7))
                below = (0, -0.6 / (panel.height - 0.9))  # under the name of the axis
                ax.legend(loc="upper left", bbox_to_anchor=below, ncols=columns)
        for ax in axes[len(chart.panels) :]:
            ax.set_axis_off()
        svg, png = io.BytesIO(), io.BytesIO()
        plain: Any = FigureCanvasAgg(figure)
        plain.print_png(png, metadata={"Software": None})
        # Without what differs from day to day.
        unnamed = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawing: Any = FigureCanvasSVG(figure)
        drawing.print_svg(svg, metadata=unnamed)
        return {"png": png.getvalue(), "svg": svg.getvalue()}


@contextmanager
def _matplotlib(salt: str) -> Iterator[None]:
    """Have matplotlib draw by its defaults and `_SETTINGS`."""
    # A name there that matplotlib does not know would end its import.
    asked = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if asked is not None:
            os.environ["MPLBACKEND"] = asked
    with matplotlib.rc_context(), warnings.catch_warnings():
        # Of letters that its font lacks, and of legends that leave little room.
        warnings.filterwarnings("ignore", module="matplotlib")
        warnings.filterwarnings("ignore", message=".*(Glyph|layout).*")
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams
        parameters.update({**_SETTINGS, "svg.hashsalt": salt})
        yield
