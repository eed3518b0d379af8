"""What several benchmarks say and count: the machine, memory and tables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any


def machine(*packages: str) -> str:
    """Name what this runs on, and the versions of these packages."""
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in cpus if line.startswith("model name")]
    versions = "".join(f", {name} {importlib.metadata.version(name)}" for name in packages)
    return (
        f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {platform.system()},"
        f" Python {platform.python_version()}{versions}"
    )


def memory(key: str, pid: int | str = "self", of: str = "status") -> float:
    """Return a line of a process's status or smaps_rollup, in MB."""
    lines = Path(f"/proc/{pid}/{of}").read_text().splitlines()
    return next(int(line.split()[1]) * 1.024e-3 for line in lines if line.startswith(f"{key}:"))


def forget_peak() -> None:
    """Have the peak of this process, VmHWM, begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table whose columns line up; all but the first ``left`` to the right."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines.insert(1, rule)
    aligned = [
        [cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(cells)]
        for cells in (zip(line, widths, strict=True) for line in lines)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in aligned)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file; none if it is not there."""
    import pyarrow.parquet as pq  # not for scripts that measure this process's memory

    return list(pq.read_table(file).to_pylist()) if file.exists() else []


def add_missing(
    file: Path,
    keys: Sequence[str],
    wanted: Iterable[tuple[Any, ...]],
    run: Callable[..., Iterable[dict[str, Any]]],
) -> None:
    """Make the runs that a file lacks, and write it after each.

    Args:
        file: Parquet, with a row or more for each run.
        keys: columns that tell runs from each other.
        wanted: their values, for each run.
        run: returns the rows of a run, by these values.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = rows_of(file)
    for values in wanted:
        if not any(tuple(row[key] for key in keys) == values for row in rows):
            rows += run(*values)
            pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd")
            print(*values, rows[-1], flush=True)
