"""How many instructions uniform takes for an element, stage by stage, counted by callgrind.

    python benchmarks/kernels.py [--level avx2] [--effort 5] [--json]

Counts, unlike times, are the same on a busy machine. kernels.cpp and the codec are compiled in a
temporary folder, with the flags of CMakeLists.txt, and run under valgrind on a matrix whose rows
and columns have scales of their own. Valgrind knows no AVX-512, so the best is AVX2. An instruction
is an instruction, be it of one element or of eight, and filling memory counts one a byte: these
counts compare versions of one kernel, and say little about its speed beside another's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import codecs_report
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "compressors" / "uniform"
FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-ffp-contract=off", "-fno-trapping-math", "-pthread")
INCLUDES = ("-I", str(SOURCES), "-I", str(ROOT / "compressors" / "common"))
LEVELS = ("baseline", "avx2")
EFFORTS = (0, 1, 5)
SIDE = 1024
BOUND = 1e-2  # of the range
SCALES = 0.5  # the standard deviation of the logarithms of the rows' scales, and of the columns'

# Each stage by what callgrind_annotate calls its functions. None of them calls another of these, so
# that what they count, callees included, may be added up.
STAGES: Final = {
    "encode": {
        "limits and scales": r"::(extent|magnitudes)<",
        "quantise and check": r"::quantise<",
        "histograms": r"uniform::count_tokens\(",
        "choice of contexts and tables": r"uniform::(classify|choose|fit)\(",
        "rANS": r"\(anonymous namespace\)::encode\(unsigned int\*",
        "bit planes": r"\(anonymous namespace\)::pack\(",
    },
    "decode": {
        "rANS": r"\(anonymous namespace\)::decode\(fedsz::uniform::RunState\*",
        "bit planes": r"\(anonymous namespace\)::unpack\(",
        "dequantise": r"::dequantise<",
    },
    "accumulate": {"add to sums": r"\(anonymous namespace\)::accumulate(_tokens)?<"},
}


def variants() -> dict[str, list[str]]:
    """Return the flags of sources that are compiled for an instruction set."""
    found = {}
    text = (ROOT / "CMakeLists.txt").read_text()
    for name, source, flags in re.findall(r"fedsz_variant\(uniform (\w+) (\S+)([^)]*)\)", text):
        machine = [flag for flag in flags.split() if flag.startswith("-m")]
        found[source] = [*machine, f"-DFEDSZ_VARIANT={name}"]
    return found


def build(folder: Path) -> Path:
    """Compile kernels.cpp and the codec; return the program."""
    compiler = os.environ.get("CXX", "g++")
    flags = variants()
    objects: list[str] = []
    left_out = {"module.cpp", "fuzz.cpp"}
    if os.uname().machine != "x86_64":
        left_out |= set(flags)
    sources = [path for path in sorted(SOURCES.glob("*.cpp")) if path.name not in left_out]
    for source in [*sources, ROOT / "benchmarks" / "kernels.cpp"]:
        target = folder / f"{len(objects)}.o"
        own = flags.get(source.name, [])
        run([compiler, *FLAGS, *INCLUDES, *own, "-c", str(source), "-o", str(target)])
        objects.append(str(target))
    program = folder / "kernels"
    run([compiler, *FLAGS, *objects, "-o", str(program)])
    return program


def run(command: Sequence[str]) -> str:
    """Run a program and return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr}")
    return done.stdout


def matrix() -> np.ndarray:
    """Return Gaussian numbers, scaled by a number for the row and one for the column."""
    rng = np.random.default_rng(0)
    rows, columns = np.exp(SCALES * rng.standard_normal((2, SIDE)))
    return np.asarray(rng.standard_normal((SIDE, SIDE)) * rows[:, None] * columns, np.float32)


def stages(annotated: str, way: str) -> dict[str, float]:
    """Read callgrind_annotate's inclusive list; return instructions an element."""
    counted = re.findall(r"^\s*([\d,]+)\s+(\S.*)$", annotated, re.MULTILINE)
    functions = [(int(count.replace(",", "")), name) for count, name in counted]
    (whole,) = (count for count, name in functions if name.startswith("PROGRAM TOTALS"))
    found = {
        f"{way}: {stage}": sum(n for n, name in functions if re.search(pattern, name))
        for stage, pattern in STAGES[way].items()
    }
    if way != "accumulate":
        found[f"{way}: all else"] = whole - sum(found.values())
    found[f"{way}: whole"] = whole
    return {stage: count / SIDE**2 for stage, count in found.items()}


def count(
    levels: Sequence[str] = LEVELS, efforts: Sequence[int] = EFFORTS
) -> list[dict[str, Any]] | None:
    """Return the counts of each level and effort; None, with a message, if there are no tools."""
    missing = [tool for tool in ("valgrind", "callgrind_annotate") if not shutil.which(tool)]
    if missing or not shutil.which(os.environ.get("CXX", "g++")):
        print("instructions are not counted: valgrind or g++ is missing", file=sys.stderr)
        return None
    if os.uname().machine != "x86_64":
        levels = [level for level in levels if level == "baseline"]
    x = matrix()
    bound = repr(BOUND * float(np.ptp(x.astype(np.float64))))
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, data, counts = build(folder), folder / "x", folder / "counts"
        x.tofile(data)
        for effort in efforts:
            for level in levels:
                found: dict[str, float] = {}
                for way in STAGES:
                    run(
                        [
                            "valgrind",
                            "--tool=callgrind",
                            f"--callgrind-out-file={counts}",
                            f"--toggle-collect=fedsz::uniform::{way}(*",
                            *(str(program), way, level, str(effort), str(SIDE), str(SIDE)),
                            *(bound, str(data)),
                        ]
                    )
                    annotate = ["--inclusive=yes", "--threshold=100", "--show-percs=no"]
                    found |= stages(run(["callgrind_annotate", *annotate, str(counts)]), way)
                results.append({"level": level, "effort": effort, "stages": found})
    return results


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--level", nargs="+", choices=LEVELS, default=LEVELS)
    parser.add_argument("--effort", nargs="+", type=int, default=EFFORTS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    counts = count(options.level, options.effort)
    if counts:
        print(json.dumps(counts, indent=1) if options.json else codecs_report.instructions(counts))


if __name__ == "__main__":
    main()
