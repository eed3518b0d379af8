"""How figures look: colours, lines, and SVG that follows the page it stands in.

Figures are drawn without a window and without anybody's matplotlibrc; the font is one that
matplotlib brings. Equal charts give equal bytes.
"""

from __future__ import annotations

import io
import math
import os
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from fedsz.palette import COLOURS
from fedsz.report.chart import Chart, Panel
from fedsz.report.runs import UNCOMPRESSED, rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

LIGHT: Final = {name: pair[0] for name, pair in COLOURS.items()}
SERIES: Final = ("blue", "red", "green", "purple", "gold", "indigo", "brown")
DASHES: Final = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1.5)))
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")

WIDTH: Final = 4.6  # inches of a panel; a phone shows it without making letters smaller
DPI: Final = 160
ROOM: Final = 56  # letters that a row of a legend has room for, a line and a gap being 7 of them
COLUMNS: Final = 3  # panels beside each other in a file

_DRAWN: Final[tuple[tuple[Any, dict[str, Any]], ...]] = (  # what matplotlib.rc takes
    ("axes", {"edgecolor": LIGHT["soft"], "labelcolor": LIGHT["ink"], "linewidth": 0.8}),
    ("axes", {"grid": True, "axisbelow": True, "titlesize": 10, "titlelocation": "left"}),
    ("axes.spines", {"right": False, "top": False}),
    ("font", {"family": ["DejaVu Sans"], "size": 10}),
    ("grid", {"color": LIGHT["rule"], "linewidth": 0.7}),
    ("legend", {"frameon": False, "fontsize": 9, "handlelength": 2.6}),
    ("lines", {"linewidth": 1.8, "markersize": 5}),
    ("path", {"simplify_threshold": 0.1}),
    ("text", {"color": LIGHT["ink"], "parse_math": False}),  # names may hold a dollar
    (("xtick", "ytick"), {"color": LIGHT["soft"], "labelcolor": LIGHT["ink"]}),
)


@dataclass(frozen=True)
class LineStyle:
    """How one of several lines is told from the others."""

    colour: str  # on white; `inline` makes it follow the page
    dashes: Any  # matplotlib's line style
    marker: str  # matplotlib's

    def line(self, *, markers: bool = True) -> dict[str, Any]:
        """Return what ``Axes.plot`` takes."""
        style = {"color": self.colour, "linestyle": self.dashes}
        return {**style, "marker": self.marker} if markers else style


def line_styles(labels: Iterable[str]) -> dict[str, LineStyle]:
    """Return a style for each label: the same whatever order they come in."""
    found = {UNCOMPRESSED: LineStyle(LIGHT["ink"], (0, (2, 1.5)), "")}
    others = sorted(set(labels) - {UNCOMPRESSED}, key=rank)
    looks = zip(others, cycle(SERIES), cycle(DASHES), cycle(MARKERS), strict=False)
    for label, colour, dashes, marker in looks:
        found[label] = LineStyle(LIGHT[colour], dashes, marker)
    return found


@contextmanager
def drawing(**svg: Any) -> Iterator[None]:
    """Have matplotlib draw as this module says."""
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
        for group, settings in (*_DRAWN, ("svg", svg)):
            matplotlib.rc(group, **settings)
        yield


def inline(chart: Chart) -> list[str]:
    """Return an ``<svg>`` for each panel, with the page's colours and letters."""
    found = []
    for i, panel in enumerate(chart.panels):
        with drawing(fonttype="none", hashsalt=f"{chart.name}-{i}"):
            figure = _figure(WIDTH, panel.height)
            _draw(figure, panel)
            lay_out(figure)
            found.append(_adopted(_file(figure, "svg").decode(), panel.says))
    return found


def files(chart: Chart) -> dict[str, bytes]:
    """Return a chart as files, by their suffix: all panels, and where the numbers come from."""
    across = min(COLUMNS, len(chart.panels))
    down = math.ceil(len(chart.panels) / across)
    note = textwrap.wrap(chart.provenance, 80 * across)
    top = 0.32 + 0.14 * len(note)
    height = down * max(panel.height for panel in chart.panels) + top
    with drawing(fonttype="path", hashsalt=chart.name):
        figure = _figure(WIDTH * across, height)
        figure.set_facecolor("white")
        left, soft = 0.1 / (WIDTH * across), LIGHT["soft"]
        figure.text(left, 1 - 0.08 / height, chart.title, va="top", size=11)
        figure.text(left, 1 - 0.29 / height, "\n".join(note), va="top", size=7, color=soft)
        edges = {"left": 0, "right": 1, "top": 1, "bottom": 0, "hspace": 0}
        grid = figure.add_gridspec(2, 1, height_ratios=(top / height, 1 - top / height), **edges)
        parts: Any = figure.add_subfigure(grid[1]).subfigures(down, across, squeeze=False)
        for part, panel in zip(parts.flat, chart.panels, strict=False):
            _draw(part, panel)
        lay_out(figure)
        return {suffix: _file(figure, suffix) for suffix in ("png", "svg")}


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=DPI, facecolor="none", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw(figure: Figure | SubFigure, panel: Panel) -> None:
    ax: Any = figure.subplots()
    ax.set_facecolor("none")
    panel.draw(ax)
    if panel.title:
        ax.set_title(panel.title)
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        fitting = max(1, ROOM // (max(map(len, labels)) + 7))
        rows = math.ceil(len(labels) / fitting)
        columns = math.ceil(len(labels) / rows)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def lay_out(figure: Figure) -> None:
    """Put axes and legends where they fit.

    Drawing would do this as well, but once for each file, after a drawing that nobody sees.
    """
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)


def _file(figure: Figure, suffix: str) -> bytes:
    """Return a figure that is laid out as a file; it is in the units of an SVG after one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    figure.set_layout_engine("none")
    canvas: Any = FigureCanvasSVG(figure) if suffix == "svg" else FigureCanvasAgg(figure)
    names = ("Date", "Creator", "Format", "Type") if suffix == "svg" else ("Software",)
    buffer = io.BytesIO()
    getattr(canvas, f"print_{suffix}")(buffer, metadata=dict.fromkeys(names))
    return buffer.getvalue()


def _adopted(svg: str, says: str) -> str:
    """Return the ``<svg>`` element of a file, as a part of the page."""
    from markupsafe import escape

    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    svg = svg[svg.index(">", svg.index("<svg")) + 1 :]
    svg = re.sub(r' id="[^"]*_\d+"', "", svg)  # other figures of the page have the same
    for name, colour in LIGHT.items():
        svg = svg.replace(colour, f"var(--{name})")
    # A hundredth of a point is less than any screen shows.
    places = re.compile(r' (?:d|x|y|transform|points)="[^"]*"')
    svg = places.sub(lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
    space = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {space} {box[0]} role="img" aria-label="{escape(says)}">{svg}'
