"""A report of a run or a sweep: one HTML page, and its figures as files."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fedsz.errors import ConfigError
from fedsz.experiments.link_model import Link

BANDWIDTHS: Final = (10e6,)  # bits a second; the paper's Figure 7
PACKAGES: Final = ("pyarrow", "matplotlib", "jinja2", "scipy")

__all__ = ["default_target", "write_report"]


def default_target(source: Path) -> Path:
    """Return where a report goes if nobody says: beside a sweep, or into a run's folder."""
    return source / "report.html" if source.is_dir() else source.with_suffix(".html")


def write_report(
    source: Path | Sequence[Path],
    target: Path,
    *,
    bandwidths: Sequence[float] = BANDWIDTHS,
    latency: float = 0.0,
    figures: Path | None = None,
    scaling: Path | None = None,
    reach: float | None = None,
) -> Path:
    """Write the report of runs or sweeps, and return where it is.

    Args:
        source: a sweep's Parquet file, the folder of a run, or several of either.
        target: the HTML file, which is written over.
        bandwidths: of the links that times are calculated for, in bits a second, finite.
        latency: of each of them, in seconds.
        figures: a folder for the figures as SVG and PNG.
        scaling: a Parquet file with scaling, to be part of it.
        reach: accuracy, above 0 to 1, that bytes are counted to; None for 95 % of the uncompressed
            run's best.

    Raises:
        ConfigError: the source is none or holds nothing, a number is out of range, or a file
            cannot be written.
    """
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"a report needs the package {package!r}: pip install 'fedsz[report]'"
            )
    if not bandwidths or not all(map(math.isfinite, bandwidths)):
        raise ConfigError(f"a report takes finite bandwidths, got {list(bandwidths)}")
    links = [Link(bandwidth, latency) for bandwidth in dict.fromkeys(bandwidths)]
    if reach is not None and not 0 < reach <= 1:
        raise ConfigError(f"an accuracy to reach must lie above 0 and up to 1, got {reach:g}")
    if target.is_dir():
        raise ConfigError(f"{target} is a folder; a report is a file")

    from fedsz.experiments.results import SCALING, read
    from fedsz.report.page import contents, render, write_figures
    from fedsz.report.source import read_source
    from fedsz.whole_files import write_whole

    points = read(scaling, SCALING).to_pylist() if scaling else None
    sources = [source] if isinstance(source, Path) else list(source)
    title, facts, sections = contents(sources, read_source(*sources), links, points, reach)
    write_whole(target, render(title, facts, sections).encode())
    if figures:
        write_figures(figures, sections)
    return target
