"""``fedsz report``: a page about a run or a sweep. ``fedsz paper``: the FedSZ paper's numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from fedsz.cli.options import PATH, force_option
from fedsz.errors import ConfigError

CHECKOUT: Final = Path(__file__).parents[2]

# All that is typed, --help too, is for the command in benchmarks/.
HANDED_OVER: Final = {
    "allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": [],
}  # fmt: skip


@click.command("report")
@click.argument("sources", nargs=-1, required=True, type=PATH, metavar="SOURCE...")
@click.option(
    "--output",
    "-o",
    type=PATH,
    help="HTML file. Default: beside the first sweep; report.html in a run's folder.",
)
@click.option("--figures", type=PATH, help="Folder for the figures, each as SVG and as PNG.")
@click.option(
    "--bandwidth",
    multiple=True,
    help="Bandwidth that times are calculated for, such as 10mbps. Repeatable. Default: 10mbps.",
)
@click.option(
    "--latency", default="0s", help="One-way latency of these links, such as 50ms. Default: 0s."
)
@click.option(
    "--reach",
    type=float,
    help="Accuracy, 0 to 1, up to which bytes are counted. Default: 95 and 99 % of the best of the "
    "uncompressed run of the same seed.",
)
@force_option
def report(
    sources: tuple[Path, ...],
    *,
    output: Path | None,
    figures: Path | None,
    bandwidth: tuple[str, ...],
    latency: str,
    reach: float | None,
    force: bool,
) -> None:
    """Write one HTML page with the figures and tables of runs or sweeps.

    SOURCE is a sweep's Parquet file, or the folder of a run. The page needs no network and no
    other file.
    """
    from fedsz import quantities
    from fedsz.cli.files import check_free
    from fedsz.report import BANDWIDTHS, default_target, write_report

    target = output or default_target(sources[0])
    check_free(target, force=force)
    if figures and figures.is_dir() and any(figures.iterdir()) and not force:
        raise ConfigError(f"{figures} is not empty; --force writes over what has the same names")
    bandwidths = [quantities.bandwidth(text) for text in bandwidth] if bandwidth else BANDWIDTHS
    write_report(
        sources,
        target,
        bandwidths=bandwidths,
        latency=quantities.latency(latency),
        figures=figures,
        reach=reach,
    )
    click.echo(target)
    if figures:
        click.echo(figures)


@click.command("paper", context_settings=HANDED_OVER)
@click.pass_context
def paper(context: click.Context) -> None:
    """Make the FedSZ paper's tables and figures, and print our numbers beside its own.

    It needs a checkout of fedsz.
    """
    paper_command().main(context.args, prog_name=context.command_path, standalone_mode=False)


def paper_command() -> click.Command:
    """Return the command with all of its options.

    Raises:
        ConfigError: this is no checkout.
    """
    if not (CHECKOUT / "benchmarks" / "paper").is_dir():
        raise ConfigError(
            "the paper's tables and figures are in benchmarks/paper of fedsz's source and not in"
            " the package: run python -m benchmarks.paper in a checkout"
        )
    sys.path.insert(0, str(CHECKOUT))
    from benchmarks.paper.command import command

    return command
