"""A report of a run or a sweep: one HTML page, and its figures as files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fedsz import extras
from fedsz.errors import ConfigError
from fedsz.experiments.link_model import Link

BANDWIDTHS: Final = (10e6,)  # bits a second; the paper's Figure 7

__all__ = ["default_target", "write_report"]


def default_target(source: Path) -> Path:
    """Return where a report goes if nobody says: beside a sweep, or into a run's folder."""
    return source / "report.html" if source.is_dir() else source.with_suffix(".html")


def write_report(
    source: Path | Sequence[Path],  # a sweep's Parquet file, the folder of a run, or several
    target: Path,  # the HTML file, which is written over
    *,
    bandwidths: Sequence[float] = BANDWIDTHS,  # that times are calculated for; bits/s, finite
    latency: float = 0.0,  # of each of these links, in seconds
    figures: Path | None = None,  # a folder for the figures as SVG and PNG
    reach: float | None = None,  # accuracy, above 0 to 1, that bytes are counted to
) -> Path:
    """Write the report of runs or sweeps, and return where it is.

    Without ``reach``, bytes are counted to 95 and to 99 % of the uncompressed run's best accuracy.

    Raises:
        MissingPackage: a package is not installed.
        ConfigError: the source is none or holds nothing, a number is out of range, or a file
            cannot be written.
    """
    extras.require(*extras.EXTRAS["report"], what="a report")
    if not bandwidths or not all(map(math.isfinite, bandwidths)):
        raise ConfigError(f"a report takes finite bandwidths, got {list(bandwidths)}")
    links = [Link(bandwidth, latency) for bandwidth in dict.fromkeys(bandwidths)]
    if reach is not None and not 0 < reach <= 1:
        raise ConfigError(f"an accuracy to reach must lie above 0 and up to 1, got {reach:g}")
    if target.is_dir():
        raise ConfigError(f"{target} is a folder; a report is a file")

    from fedsz.report.figures import drawn
    from fedsz.report.page import contents, render, title_of
    from fedsz.report.source import read_source
    from fedsz.whole_files import write_whole

    sources = [source] if isinstance(source, Path) else list(source)
    facts, sections = contents(read_source(*sources), links, reach)
    write_whole(target, render(title_of(sources), facts, sections).encode())
    for chart in (chart for section in sections for chart in section.charts if figures):
        for suffix, data in drawn(chart).items():
            write_whole(figures / f"{chart.name}.{suffix}", data)  # type: ignore[operator]
    return target
