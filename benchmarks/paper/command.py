"""``fedsz paper``: the FedSZ paper's tables and figures, ours beside the printed numbers."""

from __future__ import annotations

import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.paper.catalogue import CATALOGUE, make, numbers, select
from benchmarks.paper.options import MeasurementOptions, PaperConfig
from fedsz.cli.options import PATH, Command, configured
from fedsz.cli.output import print_table, say
from fedsz.quantities import bandwidth as read_bandwidth
from fedsz.training.options import PAPER

if TYPE_CHECKING:
    from benchmarks.paper.comparison import Comparison, Line

TABLES = ", ".join(map(str, numbers("table")))
FIGURES = f"{min(numbers('figure'))} to {max(numbers('figure'))}"


@click.command("paper", cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
@configured(PAPER, of=PaperConfig)
@click.option("--table", type=int, multiple=True, help=f"A table: {TABLES}. Repeatable.")
@click.option("--figure", type=int, multiple=True, help=f"A figure: {FIGURES}. Repeatable.")
@click.option("--all", "everything", is_flag=True, help="All tables and figures.")
@click.option(
    "--weights",
    type=PATH,
    help="Folder with MODEL[-DATASET].safetensors, instead of training here.",
)
@click.option(
    "--sweep",
    type=PATH,
    help="File of `fedsz sweep` for Figures 4 to 6, instead of running them.",
)
@click.option(
    "--folder",
    type=PATH,
    default=MeasurementOptions.folder,
    help="Folder for figures, trained weights and runs.",
)
@click.option(
    "--bandwidth", default="10mbps", help="Bandwidth that Figures 7 and 9 are calculated for."
)
@click.option("--repeats", default=MeasurementOptions.repeats, help="Timed passes of a codec.")
@click.option(
    "--seconds",
    default=MeasurementOptions.seconds,
    help="Seconds for all passes of a codec at a bound.",
)
def command(
    config: PaperConfig,
    *,
    table: tuple[int, ...],
    figure: tuple[int, ...],
    everything: bool,
    weights: Path | None,
    sweep: Path | None,
    folder: Path,
    bandwidth: str,
    repeats: int,
    seconds: float,
) -> None:
    """Make the FedSZ paper's tables and figures, and print our numbers beside its own.

    It trains weights, or takes those of --weights. It makes runs, or takes those of --sweep.
    Figures are written to --folder.
    """
    from benchmarks.paper.measurements import Measurements

    names = list(CATALOGUE) if everything else select(table, figure)
    options = MeasurementOptions(
        folder, weights, sweep, read_bandwidth(bandwidth), repeats, seconds
    )
    on_step = partial(say, err=True)
    measurements = Measurements(config, options, on_step)
    for name in names:
        _show(make(name, measurements))


def _show(comparison: Comparison) -> None:
    say(f"\n{comparison.name.capitalize()}: {comparison.title}")
    rows: list[tuple[str, ...]] = []
    before: tuple[str, ...] = ()
    of_runs = any(line.seeds for line in comparison.lines)
    for line in comparison.lines:
        # What stands above is not said again.
        of = ["" if line.of[: i + 1] == before[: i + 1] else word for i, word in enumerate(line.of)]
        before = line.of
        quantity = f"{line.quantity}, {line.unit}" if line.unit else line.quantity
        runs = (str(len(line.seeds) or ""),) if of_runs else ()
        numbers = _number(line.printed), _number(line.ours), *runs, _difference(line)
        rows.append((*of, quantity, *numbers))
    runs = (">runs",) if of_runs else ()
    heads = (*comparison.headings, "", ">paper", ">ours", *runs, ">difference")
    print_table(heads, rows)
    for heading, texts in (("ours", comparison.made_from), ("notes", comparison.notes)):
        if texts:
            say(f"{heading}:")
        for text in texts:
            say(textwrap.indent(text, "  "))
    for path in comparison.files:
        say(f"written: {path}")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def _difference(line: Line) -> str:
    gap = line.difference
    if gap is None:
        return ""
    if line.unit == "%":
        return f"{gap:+.2f} points"
    return f"{100 * gap:+.1f} %" if abs(gap) < 10 else f"x {gap + 1:.1f}"
