"""What laws weights and errors follow: the paper's Figures 3 and 10."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedsz.experiments.error_distribution import Distribution, density
from fedsz.report.chart import Absent, Chart, Panel, Sheet
from fedsz.report.curves import some
from fedsz.report.numbers import digits, named
from fedsz.report.runs import Run, Setup
from fedsz.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOUNDS: Final = 3  # of each codec, on the page; the table has all
POINTS: Final = 121
COLOURS: Final = {
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

# All that a run folder has. Measured on the cnn and digits: errors of uniform at rel:0.01 differ
# from a uniform law by a KS of 0.002 on a client's weights, and of 0.43 on the average.
AVERAGED: Final = (
    "The model is the average of updates that were decoded, so its numbers lie near few points of"
    " the codec's grid, and their errors are unlike those of a client's own."
)


def weights(setup: Setup) -> Chart | Absent:
    """Draw the trained weights of the largest tensor that may be lossy."""
    title = "Weights"
    # Of the run that was compressed least, if at all.
    ordered = [*setup.baseline, *(run for name in setup.labels for run in setup.of(name))]
    found = [(run, law) for run in ordered for law in run.distributions if law.what == "weights"]
    if not found:
        return Absent(title, _why(setup, "the runs hold no distribution of weights"))
    run, what = found[0]
    if not what.laws:
        return Absent(title, f"all {what.numbers:,} weights of {what.tensor} are equal")
    return Chart(
        f"{setup.name}-weights",
        title,
        f"The {what.numbers:,} numbers of {what.tensor}, the largest tensor that may be lossy,"
        f" after training ({_told(setup, run)}). {FITS}",
        setup.provenance,
        (Panel("", _histogram(what, "weight"), _says(what)),),
    )


def errors(setup: Setup) -> Chart | Absent:
    """Draw the error of the same tensor, a panel for each way and bound."""
    title = "Errors"
    found = [(run, law) for run, law in _errors(setup) if law.laws]
    if not found:
        return Absent(title, _why(setup, "no run made an error"))
    shown = []
    for name in dict.fromkeys(setup.label(run) for run, _ in found):
        mine = [(run, law) for run, law in found if setup.label(run) == name]
        bounds = some([run.bound for run, _ in mine if run.bound], BOUNDS)
        shown += [(run, law) for run, law in mine if run.bound is None or run.bound in bounds]
    left = len(found) - len(shown)
    seed = min(run.seed for run, _ in shown)
    return Chart(
        f"{setup.name}-errors",
        title,
        f"Decoded less original, of the {shown[0][1].numbers:,} numbers of {shown[0][1].tensor}"
        f" after training, seed {seed}. {_whose(shown[0][0])} {FITS}"
        + (f" {left} other bounds are in the table." if left else ""),
        setup.provenance,
        tuple(
            Panel(_name(setup, run), _histogram(law, "error"), _says(law), height=2.7)
            for run, law in shown
        ),
    )


def _whose(run: Run) -> str:
    """Say which weights a run's distributions are of; a run folder tells no version."""
    return ONCE_MORE if run.version else AVERAGED


def fits(setup: Setup) -> Sheet | Absent:
    """Return how well each law fits each error."""
    title = "Which law errors follow"
    found = _errors(setup)
    if not found:
        return Absent(title, _why(setup, "no run made an error"))
    rows = []
    for run, what in found:
        ks = {law.name: law.ks for law in what.laws}
        rows.append(
            (
                setup.label(run),
                named(run.bound),
                what.best or "all are equal",
                *(digits(ks.get(name, math.nan)) for name in COLOURS),
                f"{what.low:.3g}",
                f"{what.high:.3g}",
            )
        )
    head = ("way", "bound", "best fit", *(f"KS {name}" for name in COLOURS), "least", "greatest")
    return Sheet(
        f"{setup.name}-fits",
        title,
        f"Errors of {found[0][1].tensor} after training, of the first seed of each."
        f" {_whose(found[0][0])} {FITS}",
        head,
        tuple(rows),
        words=3,
    )


def _errors(setup: Setup) -> list[tuple[Run, Distribution]]:
    """Return the error of each way and bound, of its first seed."""
    found = []
    for name in setup.labels:
        bounds = setup.bounds if name in setup.bounded else [None]
        for bound in bounds:
            laws = [
                (run, law)
                for run in setup.of(name, bound)
                for law in run.distributions
                if law.what == "error" and law.numbers
            ]
            found += laws[:1]
    return found


def _why(setup: Setup, otherwise: str) -> str:
    return next((run.missing for run in setup.runs if run.missing), otherwise)


def _name(setup: Setup, run: Run) -> str:
    return f"{setup.label(run)}, {named(run.bound)}" if run.bound else setup.label(run)


def _told(setup: Setup, run: Run) -> str:
    return f"{_name(setup, run)}, seed {run.seed}"


def _says(what: Distribution) -> str:
    laws = ", ".join(f"{law.name} {law.ks:.3f}" for law in what.laws)
    numbers = f"{what.numbers:,} numbers from {what.low:.3g} to {what.high:.3g}"
    return f"{numbers}; KS of fitted laws: {laws}"


def _histogram(what: Distribution, unit: str) -> Any:
    def draw(ax: Axes) -> None:
        counts = np.array(what.counts, np.float64)
        edges = np.linspace(what.low, what.high, counts.size + 1)
        heights = counts / (what.numbers * (edges[1] - edges[0]))
        ax.stairs(heights, edges, fill=True, color=LIGHT["blue"], alpha=0.35)
        x = _grid(what)
        for law in what.laws:
            colour, dashes = COLOURS.get(law.name, ("gold", "-"))
            if law.scale > 0:
                ax.plot(
                    x, density(law, x), color=LIGHT[colour], linestyle=dashes, linewidth=1.4,
                    label=f"{law.name}, KS {law.ks:.3f}",
                )  # fmt: skip
        # A law's peak may be far above all that was found.
        ax.set_ylim(0, 1.25 * _top(heights))
        ax.set_xlabel(unit)
        ax.set_ylabel("density")
        ax.ticklabel_format(style="sci", scilimits=(-2, 4))
        ax.locator_params(axis="x", nbins=5)

    return draw


def _grid(what: Distribution) -> Any:
    """Return points with more of them about the middle, where a Laplace law has its peak."""
    width = what.high - what.low
    even = np.linspace(what.low - 0.03 * width, what.high + 0.03 * width, POINTS)
    peaks: Sequence[float] = [law.location for law in what.laws]
    near = [np.linspace(p - 0.05 * width, p + 0.05 * width, POINTS // 4) for p in peaks[:1]]
    return np.unique(np.concatenate([even, *near]))


def _top(heights: Any) -> float:
    return float(heights.max()) or 1.0
