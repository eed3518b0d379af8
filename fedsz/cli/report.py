"""``fedsz report``: a page about a run or a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="A sweep's Parquet file, the folder of a run, or several.", metavar="SOURCE..."
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="HTML file. Default: beside the first sweep; report.html in a run's folder.",
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures, each as SVG and as PNG.")
    ] = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            help="Bandwidth that times are calculated for, such as 10mbps; may be repeated:"
            " tables take the first. [dim]Default: 10mbps.[/]"
        ),
    ] = None,
    latency: Annotated[
        str, typer.Option(help="One-way latency of these links, such as 50ms.")
    ] = "0s",
    reach: Annotated[
        float | None,
        typer.Option(
            help="Accuracy, 0 to 1, up to which bytes are counted. [dim]Default: 95 and"
            " 99 % of the best of the uncompressed run of the same seed.[/]"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing files.")] = False,
) -> None:
    """Write one HTML page with the figures and tables of runs or sweeps.

    It needs no network and no other file.
    """
    from rich.console import Console

    from fedsz import quantities
    from fedsz.cli.files import check_free
    from fedsz.errors import ConfigError
    from fedsz.report import BANDWIDTHS, default_target, write_report

    target = output or default_target(sources[0])
    check_free(target, force=force)
    if figures and figures.is_dir() and any(figures.iterdir()) and not force:
        raise ConfigError(f"{figures} is not empty; --force writes over what has the same names")
    bandwidths = [quantities.bandwidth(text) for text in bandwidth] if bandwidth else BANDWIDTHS
    with Console(stderr=True).status("drawing"):
        write_report(
            sources,
            target,
            bandwidths=bandwidths,
            latency=quantities.latency(latency),
            figures=figures,
            reach=reach,
        )
    print(target)
    if figures:
        print(figures)
