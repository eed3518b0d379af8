"""Accuracy: over rounds (the paper's Figure 4) and over bounds (its Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from fedsz.bounds import ErrorBound
from fedsz.report.chart import Absent, Chart, Panel
from fedsz.report.numbers import named, percent, spread
from fedsz.report.runs import UNCOMPRESSED, Run, Setup, Spread
from fedsz.report.style import Look, bands, time_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS: Final = 6  # as many bounds as a page shows
SPREAD: Final = "Lines are medians over seeds, shades reach from the least to the greatest."
ONE_SEED: Final = "There is one seed, so no spread is shown."
KIND_NAMES: Final = {
    "rel": "error bound, of each tensor's range",
    "abs": "error bound, absolute",
    "std": "error bound, in standard deviations",
}

Looks = Mapping[str, Look]


def over_rounds(setup: Setup, looks: Looks) -> Chart | Absent:
    """Draw accuracy over rounds, a panel for each bound."""
    title = "Accuracy over rounds"
    if all(len(run.rounds) < 2 for run in setup.runs):
        return Absent(title, "no round of training is recorded")
    bounds: Sequence[ErrorBound | None] = some(setup.bounds, PANELS) or [None]
    panels = []
    for bound in bounds:
        lines = {name: _rounds(runs) for name, runs in setup.at(bound)}
        lines = {name: line for name, line in lines.items() if line}
        panels.append(
            Panel(
                named(bound, ""), _over_rounds(lines, looks), _ends(lines, "after the last round")
            )
        )
    left = len(setup.bounds) - len(panels)
    more = f" {left} other bounds are in the table." if left > 0 else ""
    return Chart(
        f"{setup.name}-accuracy-rounds",
        title,
        "Accuracy of the averaged model on the server's held-out images; round 0 is before"
        f" training. {spread_note(setup.runs)}{more}",
        setup.provenance,
        tuple(panels),
    )


def over_bounds(setup: Setup, looks: Looks) -> Chart | Absent:
    """Draw the accuracy after the last round over the bound, a panel for each kind of bound."""
    title = "Accuracy over error bound"
    if few := too_few_bounds(setup):
        return Absent(title, few)
    panels = []
    for kind, bounds in by_kind(setup.bounds):
        lines = {
            name: {
                bound.value: found
                for bound in bounds
                if (found := Spread.of(run.accuracy for run in setup.of(name, bound)))
            }
            for name in setup.bounded
        }
        levels = {
            name: Spread.of(run.accuracy for run in setup.of(name))
            for name in setup.labels
            if name not in setup.bounded
        }
        known = {name: level for name, level in levels.items() if level}
        says = _ends(lines, "at the largest bound")
        if UNCOMPRESSED in known:
            says += f"; uncompressed {spread(known[UNCOMPRESSED], percent)}"
        panels.append(
            Panel("", _over_bounds(lines, known, looks, KIND_NAMES[kind], "accuracy, %", 100), says)
        )
    return Chart(
        f"{setup.name}-accuracy-bound",
        title,
        "Accuracy of the averaged model after the last round. What no bound steers is a level."
        f" {spread_note(setup.runs)}",
        setup.provenance,
        tuple(panels),
    )


def times_over_bounds(
    lines: Mapping[str, Mapping[float, Spread]],
    levels: Mapping[str, Spread],
    looks: Looks,
    kind: str,
) -> Any:
    """Return what draws seconds over bounds of one kind."""
    draw = _over_bounds(lines, levels, looks, KIND_NAMES[kind], "", 1)

    def logarithmic(ax: Axes) -> None:
        draw(ax)
        time_axis(ax)

    return logarithmic


def some(bounds: Sequence[ErrorBound], number: int) -> Sequence[ErrorBound]:
    """Return at most ``number`` bounds, the first and the last among them."""
    if len(bounds) <= number:
        return bounds
    step = (len(bounds) - 1) / (number - 1)
    return [bounds[round(i * step)] for i in range(number)]


def by_kind(bounds: Sequence[ErrorBound]) -> list[tuple[str, list[ErrorBound]]]:
    """Return the kinds of which there are two bounds or more, with their bounds."""
    kinds = [(kind, list(group)) for kind, group in groupby(bounds, key=lambda b: b.kind)]
    return [(kind, group) for kind, group in kinds if len(group) > 1]


def too_few_bounds(setup: Setup) -> str:
    """Say why nothing can be drawn over bounds; "" if it can."""
    if by_kind(setup.bounds):
        return ""
    if not setup.bounds:
        return "no run has an error bound"
    listed = " and ".join(map(named, setup.bounds))
    return f"it takes two bounds of a kind; there is {listed}"


def spread_note(runs: Sequence[Run]) -> str:
    """Say what lines and shades mean."""
    return SPREAD if len({run.seed for run in runs}) > 1 else ONE_SEED


def _rounds(runs: Sequence[Run]) -> dict[float, Spread]:
    values: dict[int, list[float]] = {}
    for run in runs:
        for done in run.rounds:
            values.setdefault(done.number, []).append(done.accuracy)
    spreads = {number: Spread.of(found) for number, found in sorted(values.items())}
    return {number: found for number, found in spreads.items() if found}


def _ends(lines: Mapping[str, Mapping[float, Spread]], where: str) -> str:
    ends = (
        f"{name} {spread(list(line.values())[-1], percent)}" for name, line in lines.items() if line
    )
    return f"Accuracy in percent {where}: " + "; ".join(ends)


def _over_rounds(lines: Mapping[str, Mapping[float, Spread]], looks: Looks) -> Any:
    def draw(ax: Axes) -> None:
        for name, line in lines.items():
            _line(ax, name, line, looks[name], 100, markers=len(line) <= 20)
        ax.set_xlabel("round")
        ax.set_ylabel("accuracy, %")
        ax.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]

    return draw


def _over_bounds(
    lines: Mapping[str, Mapping[float, Spread]],
    levels: Mapping[str, Spread],
    looks: Looks,
    below: str,
    beside: str,
    factor: float,
) -> Any:
    def draw(ax: Axes) -> None:
        for name, level in levels.items():
            look = looks[name]
            ax.axhline(factor * level.middle, label=name, **look.line(markers=False))
            if level.count > 1:
                ax.axhspan(
                    factor * level.least, factor * level.greatest,
                    color=look.colour, alpha=0.1, linewidth=0,
                )  # fmt: skip
        for name, line in lines.items():
            if line:
                _line(ax, name, line, looks[name], factor)
        bound_axis(ax, sorted({x for line in lines.values() for x in line}))
        ax.set_xlabel(below)
        ax.set_ylabel(beside)

    return draw


def bound_axis(ax: Axes, values: Sequence[float]) -> None:
    """Make the axis logarithmic, and name the bounds themselves where there are few."""
    ax.set_xscale("log")
    if len(values) <= 6:
        ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.set_xticks([], minor=True)


def _line(
    ax: Axes,
    name: str,
    line: Mapping[float, Spread],
    look: Look,
    factor: float,
    *,
    markers: bool = True,
) -> None:
    x, found = list(line), list(line.values())
    if any(value.count > 1 for value in found):
        least, greatest = (
            [factor * getattr(v, end) for v in found] for end in ("least", "greatest")
        )
        bands(ax, x, least, greatest, look)
    ax.plot(x, [factor * value.middle for value in found], label=name, **look.line(markers=markers))
