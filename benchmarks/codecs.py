"""Every lossy codec in one process: ratio, speed each way, error; on weights, updates and draws.

    python benchmarks/codecs.py [FILE ...] [--models cnn alexnet] [--arrays runs/arrays]
        [--size-sweep] [--threads] [--memory] [--instructions] [--all] [--quick]
        [--json FILE] [--plot docs/codecs.svg] > docs/results/codecs.txt

Coded is what fedsz would code with loss: the tensors of a model with "weight" in their name and
more than 1024 elements (benchmarks/arrays.py trains the models), arrays drawn at random, and FILEs:
safetensors, state_dicts of torch (.pt, .pth), .npy and .npz. A time is that of one pass over all
tensors of a set, from float32 arrays to payloads or back. Passes of all codecs alternate, on one
core, after a pass in which every error has been measured in float64.

Foreign codecs are timed alone, without the envelope that makes them keep their bound and without
the process in which fedsz decodes their payloads. Our own, szx and uniform, check their bound as
they encode.

docs/codecs.md quotes what this prints. ``--from FILE.json`` prints an earlier run.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import codecs_plot
import codecs_report
from codecs_data import DataSet, drawn_sets, file_set, model_sets
from codecs_timing import Result, memory, size_sweep, tables, threads

from fedsz.codecs import _uniform
from fedsz.system import processor

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("cnn", "alexnet", "mobilenetv2", "resnet50")
BOUNDS = ("1e-1", "1e-2", "1e-3", "1e-4")
SIDE = 2048  # of the matrices drawn at random


def machine(level: str) -> Result:
    """Return what this runs on, and what it runs."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    packages = ("fedsz", "numpy", "hdf5plugin", "pysz", "zfpy")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
        "levels": _uniform.levels(),
        "level": level or _uniform.levels()[-1],
        "commit": git("rev-parse", "--short", "HEAD"),
        "changed": bool(git("status", "--porcelain", "--", "fedsz", "compressors")),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": os.getloadavg(),
    }


def pin(cores: Iterable[int]) -> None:
    """Keep this process on these cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def sets(options: argparse.Namespace) -> Iterator[DataSet]:
    """Yield everything that was asked for, one set at a time in memory."""
    for model in options.models:
        yield from model_sets(model, options.arrays, options.bounds)
    if options.draws:
        yield from drawn_sets(SIDE // 4 if options.quick else SIDE, options.bounds)
    for path in options.files:
        yield file_set(path, options.bounds)


def parse() -> argparse.Namespace:
    """Read the command line."""
    doc = __doc__ or ""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="tensors to code as well"
    )
    data = parser.add_argument_group("data")
    data.add_argument("--models", nargs="*", choices=MODELS, help="all four by default")
    data.add_argument("--no-draws", dest="draws", action="store_false", help="no random arrays")
    data.add_argument("--arrays", type=Path, default=ROOT / "runs" / "arrays", metavar="DIR")
    data.add_argument("--bounds", nargs="+", metavar="BOUND", help="1e-2, abs:1e-3, std:0.1 ...")
    parts = parser.add_argument_group("parts, of which --tables is the default")
    parts.add_argument("--tables", action="store_true", help="ratio and speed")
    parts.add_argument("--size-sweep", action="store_true", help="1 KB to 1 GB")
    parts.add_argument("--threads", action="store_true", help="1 to all cores")
    parts.add_argument("--memory", action="store_true", help="beyond input and output")
    parts.add_argument("--instructions", action="store_true", help="counts by callgrind")
    parts.add_argument("--all", action="store_true", help="all of these")
    how = parser.add_argument_group("how")
    how.add_argument("--repeats", type=int, default=5, help="passes over 32 MB; less for more")
    how.add_argument(
        "--level", choices=_uniform.levels(), default="", help="uniform's instructions"
    )
    how.add_argument("--core", type=int, help="the core to stay on; the last one by default")
    how.add_argument("--quick", action="store_true", help="a minute, to see that it works")
    out = parser.add_argument_group("output, besides Markdown on stdout")
    out.add_argument("--json", type=Path, metavar="FILE", help="everything that was measured")
    out.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw ratio against speed")
    out.add_argument("--from", type=Path, metavar="FILE", dest="given", help="measure nothing")
    options = parser.parse_args()
    chosen = (options.size_sweep, options.threads, options.memory, options.instructions)
    options.tables = options.tables or options.all or not any(chosen)
    if options.all:
        options.size_sweep = options.threads = options.memory = options.instructions = True
    if options.models is None:
        options.models = MODELS[:1] if options.quick else MODELS
    options.bounds = tuple(options.bounds or (("1e-2",) if options.quick else BOUNDS))
    if options.quick:
        options.repeats = 1
    return options


def measure(options: argparse.Namespace) -> Result:
    """Measure all that was asked for."""
    level, repeats = options.level, options.repeats
    report: Result = {"machine": machine(level), "quick": options.quick}
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    pin([max(cores, default=0) if options.core is None else options.core])
    scale = 16 if options.quick else 1
    if options.tables:
        report["tables"] = tables(sets(options), level, repeats)
    if options.size_sweep:
        report["size_sweep"] = size_sweep((1 << 30) // scale, level, repeats)
    if options.memory:
        if Path("/proc/self/clear_refs").exists():
            report["memory"] = memory((64 << 20) // scale, level)
        else:
            print("--memory needs Linux's /proc; left out", file=sys.stderr)
    if options.threads:
        pin(cores)
        report["threads"] = threads((256 << 20) // scale, len(cores) or 1, level, repeats)
    if options.instructions:
        import kernels

        report["instructions"] = kernels.count()
    return report


def main() -> None:
    """Measure, and write what was measured."""
    options = parse()
    report = json.loads(options.given.read_text()) if options.given else measure(options)
    if options.json and not options.given:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(codecs_report.markdown(report))
    if options.plot:
        options.plot.write_text(codecs_plot.plot(report))


if __name__ == "__main__":
    main()
