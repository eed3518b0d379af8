"""What laws weights and errors follow: the paper's Figures 3 and 10."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedsz.experiments.error_distribution import Distribution, density
from fedsz.formatting import digits
from fedsz.report.chart import Chart, Omitted, Panel, Table
from fedsz.report.runs import Run, Setting, named
from fedsz.report.series import log_axis, others_note, thinned
from fedsz.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOUNDS: Final = 3  # of each codec, on the page; the table has all
POINTS: Final = 401  # of a law: its peak is narrow
LAW_STYLES: Final = {
    "laplace": ("red", "-"),
    "uniform": ("green", (0, (1, 1.4))),
    "normal": ("purple", (0, (5, 2))),
}
FITS: Final = (
    "Laws are fitted by maximum likelihood; KS is Kolmogorov and Smirnov's statistic, the largest"
    " difference between the law's distribution function and that of the numbers: 0 fits perfectly,"
    " 1 not at all."
)
ONCE_MORE: Final = "The weights are those that a client would send after the last round."

Found = tuple[Run, Distribution]


def weights_chart(setting: Setting) -> Chart | Omitted:
    """Draw the trained weights of the largest tensor that may be lossy."""
    title = "Weights"
    # Of the run that was compressed least, if at all.
    found = _found((run for group in setting.groups for run in group.runs), "weights")
    if not found:
        return Omitted(title, _why(setting, "the runs hold no distribution of weights"))
    run, weights = found[0]
    if not weights.laws:
        return Omitted(title, f"all {weights.numbers:,} weights of {weights.tensor} are equal")
    caption = (
        f"The {weights.numbers:,} numbers of {weights.tensor}, the largest tensor that may be"
        f" lossy, after training ({_label(setting, run)}, seed {run.seed}). {FITS}"
    )
    return Chart.of(setting, "weights", title, caption, histogram_panel("", weights, "weight"))


def errors_chart(setting: Setting) -> Chart | Omitted:
    """Draw the error of the same tensor, a panel for each scheme and bound."""
    title = "Errors"
    found = [(run, error) for run, error in _errors(setting) if error.laws]
    if not found:
        return Omitted(title, _why(setting, "no run made an error"))
    shown = []
    for _, group in groupby(found, key=lambda pair: setting.label(pair[0])):
        mine = list(group)
        bounds = thinned([run.bound for run, _ in mine if run.bound], BOUNDS)
        shown += [(run, error) for run, error in mine if run.bound is None or run.bound in bounds]
    seed = min(run.seed for run, _ in shown)
    error = shown[0][1]
    caption = (
        f"Decoded less original, of the {error.numbers:,} numbers of {error.tensor}"
        f" after training, seed {seed}. {ONCE_MORE} {FITS}"
        f"{others_note(len(found) - len(shown))}"
    )
    panels = (histogram_panel(_label(setting, run), of, "error", height=2.7) for run, of in shown)
    return Chart.of(setting, "errors", title, caption, *panels)


def fits(setting: Setting) -> Table | Omitted:
    """Return how well each law fits each error."""
    title = "Which law errors follow"
    found = _errors(setting)
    if not found:
        return Omitted(title, _why(setting, "no run made an error"))
    tensor = found[0][1].tensor
    caption = f"Errors of {tensor} after training, of the first seed of each. {ONCE_MORE} {FITS}"
    rows = []
    for run, error in found:
        known = {law.name: law.ks for law in error.laws}
        best = error.best or "all are equal"
        ks = (digits(known.get(law, math.nan)) for law in LAW_STYLES)
        limits = (f"{error.low:.3g}", f"{error.high:.3g}")
        rows.append((setting.label(run), named(run.bound), best, *ks, *limits))
    laws = (f"KS {law}" for law in LAW_STYLES)
    head = ("scheme", "bound", "best fit", *laws, "least", "greatest")
    return Table(f"{setting.name}-fits", title, caption, head, rows, words=3)


def _found(runs: Iterable[Run], what: str) -> list[Found]:
    return [(run, item) for run in runs for item in run.distributions if item.what == what]


def _errors(setting: Setting) -> list[Found]:
    """Return the error of each scheme and bound, of its first seed."""
    found = []
    for group in setting.groups:
        known = _found(group.runs, "error")
        found += [(run, error) for run, error in known if error.numbers][:1]
    return found


def _why(setting: Setting, otherwise: str) -> str:
    return next((run.missing for run in setting.runs if run.missing), otherwise)


def _label(setting: Setting, run: Run) -> str:
    return f"{setting.label(run)}, {named(run.bound)}" if run.bound else setting.label(run)


def histogram_panel(
    title: str, of: Distribution, unit: str, height: float = 3.0, *, log: bool = False
) -> Panel:
    """Return a histogram with the fitted laws over it; ``log`` is of the vertical axis."""
    laws = ", ".join(f"{law.name} {law.ks:.3f}" for law in of.laws)
    numbers = f"{of.numbers:,} numbers from {of.low:.3g} to {of.high:.3g}"

    def draw(ax: Axes) -> None:
        counts = np.array(of.counts, np.float64)
        apart = 0.5 if of.low == of.high else 0.0
        edges = np.linspace(of.low - apart, of.high + apart, counts.size + 1)
        heights = counts / (of.numbers * (edges[1] - edges[0]))
        ax.stairs(heights, edges, fill=True, color=LIGHT["blue"], alpha=0.35)
        margin = 0.03 * (of.high - of.low)
        x = np.linspace(of.low - margin, of.high + margin, POINTS)
        for law in of.laws:
            colour, dashes = LAW_STYLES.get(law.name, ("gold", "-"))
            style: Any = {"color": LIGHT[colour], "linestyle": dashes, "linewidth": 1.4}
            if law.scale > 0:
                ax.plot(x, density(law, x), label=f"{law.name}, KS {law.ks:.3f}", **style)
        # A law's peak may be far above all that was found.
        ax.set_ylim(0, 1.25 * (float(heights.max()) or 1.0))
        if log:
            ax.set_yscale("log")
            log_axis(ax.yaxis, "{:g}".format)
            # Nor is a law's tail a reason to make room for it.
            ax.set_ylim(heights[heights > 0].min() / 2, 4 * heights.max())
        else:
            ax.ticklabel_format(style="sci", scilimits=(-2, 4))
        ax.set(xlabel=unit, ylabel="density")
        ax.locator_params(axis="x", nbins=5)

    return Panel(title, draw, f"{numbers}; KS of fitted laws: {laws}", height)
