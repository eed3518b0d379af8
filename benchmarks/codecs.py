"""Every lossy codec in one process: ratio, speed each way, error; on weights, updates and draws.

    python -m benchmarks.codecs [FILE ...] [--models cnn alexnet] [--arrays runs/arrays]
        [--quick] [--plot docs/codecs.svg] > docs/results/codecs.txt

Coded is what fedsz would code with loss: the tensors of a model with "weight" in their name and
more than 1024 elements (benchmarks/arrays.py trains the models), arrays drawn at random, and FILEs:
safetensors and state_dicts of torch (.pt, .pth). A time is that of one pass over all tensors of a
set, from float32 arrays to payloads or back. Passes of all codecs alternate, on one core, after a
pass in which every error has been measured in float64.

Foreign codecs are timed alone, without the envelope that makes them keep their bound and without
the process in which fedsz decodes their payloads. szx and uniform check their bound as they encode.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime
import math
import os
import statistics
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks import arrays
from benchmarks.measuring import machine, table
from fedsz.arrays import as_arrays
from fedsz.bounds import ErrorBound
from fedsz.cli.files import read_state_dict
from fedsz.codecs import _uniform, sz2
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.codecs.sz2 import Sz2
from fedsz.codecs.sz3 import Sz3
from fedsz.codecs.szx import Szx
from fedsz.codecs.uniform import Uniform, matrix_shape
from fedsz.codecs.zfp import Zfp
from fedsz.core.partition import is_lossy
from fedsz.errors import FedszError
from fedsz.experiments.codec_measurement import (
    Coder,
    Item,
    coder_of,
    first_pass,
    loops_for,
    timed_pass,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = npt.NDArray[np.float32]
Row = dict[str, Any]

MODELS: Final = ("cnn", "alexnet", "mobilenetv2", "resnet50")
BOUNDS: Final = ("1e-1", "1e-2", "1e-3", "1e-4")
EFFORTS: Final = (0, 1, 5, 9)
SIMD: Final = {"baseline": "uniform (no SIMD)", "avx2": "uniform (AVX2)"}
THRESHOLD: Final = 1024
SIDE: Final = 2048  # of the matrices drawn at random
FLOAT32: Final = 0  # what `_uniform` calls it
BASE, OURS = "sz2", "uniform"  # the codec that others are compared with, and fedsz's own
REFERENCE: Final = ("resnet50 weights", "rel 1e-2")  # where codecs in fedsz and SIMD are measured
WAYS: Final = {"encode": "compress", "decode": "decompress"}  # as tables call what was timed
COLOURS: Final = {"sz2": "red", "sz3": "gold", "zfp": "purple", "szx": "soft", OURS: "blue"}


# What is coded


@dataclass
class DataSet:
    """Tensors, and for each named rule the bound of each tensor in its own unit."""

    name: str
    tensors: dict[str, Array]
    bounds: dict[str, dict[str, float]]

    @property
    def raw(self) -> int:
        """Bytes of all tensors."""
        return sum(x.nbytes for x in self.tensors.values())

    def items(self, rule: str, coder: Coder) -> list[Item]:
        """Return all tensors as a coder gets them."""
        bounds = self.bounds[rule]
        return [Item(name, x, bounds[name], coder) for name, x in self.tensors.items()]


def relative(tensors: dict[str, Array], rules: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return bounds by rules as the CLI takes them."""
    return {
        f"rel {rule}" if ":" not in rule else rule.replace(":", " "): {
            name: ErrorBound.of(rule).absolute(x) for name, x in tensors.items()
        }
        for rule in rules
    }


def lossy(tensors: dict[str, npt.NDArray[Any]], what: str) -> dict[str, Array]:
    """Return what fedsz codes with loss, as float32, without constant and not finite tensors."""
    kept = {}
    for name, x in tensors.items():
        if is_lossy(name, x, rule="paper", threshold=THRESHOLD):
            y = np.ascontiguousarray(x, np.float32)
            if np.isfinite(y).all() and np.ptp(y) > 0:
                kept[name] = y
    return kept or sys.exit(f"{what} holds nothing that every codec can code with loss")


def sets(asked: argparse.Namespace) -> Iterator[DataSet]:
    """Yield everything that was asked for, one set at a time in memory."""
    for model in asked.models:
        weights = lossy(arrays.load(model, "weights", asked.arrays), model)
        yield DataSet(f"{model} weights", weights, relative(weights, asked.bounds))
        of_weights = {name: ErrorBound.rel(1e-2).absolute(x) for name, x in weights.items()}
        del weights
        found = lossy(arrays.load(model, "update", asked.arrays), model)
        update = {name: x for name, x in found.items() if name in of_weights}
        bounds = {"1e-2 of weights": {name: of_weights[name] for name in update}}
        yield DataSet(f"{model} update", update, relative(update, ["std:1"]) | bounds)
    rng, shape = np.random.default_rng(0), 2 * (SIDE // (4 if asked.quick else 1),)
    draws: dict[str, Callable[[], npt.NDArray[Any]]] = {
        "Gaussian": lambda: rng.standard_normal(shape),
        "Laplace": lambda: rng.laplace(size=shape),
        "Student t, 3 degrees": lambda: rng.standard_t(3, shape),
    }
    for name, draw in draws.items() if asked.draws else ():
        drawn = {name: draw().astype(np.float32)}
        yield DataSet(name, drawn, relative(drawn, asked.bounds))
    for path in asked.files:
        try:
            tensors = lossy(as_arrays(read_state_dict(path)), path.name)
        except FedszError as err:
            sys.exit(str(err))
        yield DataSet(path.name, tensors, relative(tensors, asked.bounds))


# Which codecs code it


class BareSz2(Sz2):
    """SZ 2 without the two copies that fedsz makes of what it decodes."""

    def decompress(self, native: bytes, n: int) -> Array:  # noqa: D102
        pointer = sz2.library().SZ_decompress(sz2.FLOAT, native, len(native), 0, 0, 0, 0, n)
        buffer = (ctypes.c_float * n).from_address(pointer)
        weakref.finalize(buffer, sz2.libc().free, pointer)
        return np.asarray(buffer)


def foreign(codec: EnvelopeCodec) -> Coder:
    """Return a foreign codec alone, without what makes it keep its bound."""
    return Coder(
        str(codec),
        lambda x, bound: codec.compress(x.reshape(-1), bound),
        lambda payload, x: codec.decompress(payload, math.prod(x.shape)).reshape(x.shape),
        keeps_bound=False,
    )


def uniform(effort: int, level: str = "") -> Coder:
    """Return uniform with the instructions of ``level``; "" for the best."""
    codec = Uniform(effort=effort)

    def octets(y: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        return y.reshape(-1).view(np.uint8)

    def encode(x: npt.NDArray[Any], bound: float) -> bytes:
        of = matrix_shape(x.shape)
        return _uniform.encode(octets(x), FLOAT32, *of, bound, effort, 1, level)[0]

    def decode(payload: bytes, x: npt.NDArray[Any]) -> Array:
        y = np.empty(x.shape, np.float32)
        _uniform.decode(payload, FLOAT32, octets(y), 1, level)
        return y

    return Coder(SIMD.get(level) or str(codec), encode, decode)


def contestants(*, everything: bool = False) -> list[Coder]:
    """Return the lossy codecs that are here, SZ 2 first; or also those in fedsz and less SIMD."""
    here = [codec for codec in (BareSz2(), Sz3(), Zfp()) if not codec.missing()]
    found = [*map(foreign, here), coder_of(Szx()), *map(uniform, EFFORTS)]
    if everything:
        inside = [codec for codec in (Sz2(), Sz3(), Zfp()) if not codec.missing()]
        found += [dataclasses.replace(coder_of(c), name=f"{c} (in fedsz)") for c in inside]
        found += [uniform(Uniform().effort, level) for level in _uniform.levels()[:-1]]
    return found


# Measuring


def race(entrants: Sequence[tuple[Row, list[Item]]], passes: int) -> list[Row]:
    """Time entrants in turn; return their rows with the speeds of each way in MB/s."""
    loops = [loops_for(sum(timed_pass(items).values())) for _, items in entrants]
    times: list[list[dict[str, float]]] = [[] for _ in entrants]
    for _ in range(passes):
        for (_, items), taken, loop in zip(entrants, times, loops, strict=True):
            taken.append(timed_pass(items, loop))
    for (row, items), taken in zip(entrants, times, strict=True):
        megabytes = sum(item.x.nbytes for item in items) / 1e6
        for way, name in WAYS.items():
            row[name] = [megabytes / seconds[way] for seconds in taken]
    return [row for row, _ in entrants]


def compare(data: DataSet, rule: str, players: Sequence[Coder], repeats: int) -> Row:
    """Return the ratio, the error and the speed of each codec on a set at one bound."""
    entrants = []
    for player in players:
        items = data.items(rule, player)
        try:
            first = first_pass(items)
        except FedszError as err:
            sys.exit(f"{player.name} on {data.name}: {err}")
        ratio = data.raw / sum(first.nbytes)
        entrants.append(({"codec": player.name, "ratio": ratio, "error": first.worst}, items))
    # The shorter passes are, the more make a median.
    passes = max(round(repeats * min(max(32e6 / data.raw, 0.6), 6)), 1)
    print(f"{data.name}, {rule}", file=sys.stderr, flush=True)
    about = {"data": data.name, "bound": rule, "raw_bytes": data.raw, "tensors": len(data.tensors)}
    return {**about, "passes": passes, "rows": race(entrants, passes)}


def tables(asked: argparse.Namespace) -> Iterator[Row]:
    """Yield the comparison of all codecs, set by set and bound by bound."""
    for data in sets(asked):
        for rule in data.bounds:
            players = contestants(everything=(data.name, rule) == REFERENCE)
            yield compare(data, rule, players, asked.repeats)


# Showing


def number(value: float) -> str:
    """Return three digits of a number that is not large, and all of one that is."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(digits, 0)}f}"


def speed(speeds: list[float]) -> str:
    """Return a median in MB/s, and the least and the greatest."""
    return f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f})"


def over(row: Row, base: Row | None, way: str) -> str:
    """Return how many times as fast as the base."""
    return number(statistics.median(row[way]) / statistics.median(base[way])) if base else ""


def find(rows: Iterable[Row], codec: str) -> Row | None:
    """Return the row of a codec, if there is one."""
    return next((row for row in rows if row["codec"] == codec), None)


def ahead(results: Sequence[Row]) -> str:
    """Compare uniform with SZ 2, and with the best ratio of all others."""
    lines = []
    for result in results:
        rows = result["rows"]
        base, ours = find(rows, BASE), find(rows, OURS)
        others = [row for row in rows if not row["codec"].startswith(OURS)]
        best = max(others, key=lambda row: float(row["ratio"]))
        assert ours
        ratio = [number(base["ratio"]), number(ours["ratio"] / base["ratio"])] if base else ["", ""]
        cells = [ratio[0], f"{number(best['ratio'])} ({best['codec']})", number(ours["ratio"])]
        speeds = [over(ours, base, way) for way in WAYS.values()]
        lines.append([result["data"], result["bound"], *cells, ratio[1], *speeds])
    heads = ("data", "bound", BASE, "best of the others", OURS, "/ sz2", *WAYS.values())
    return table(heads, lines, left=2)


def comparison(results: Sequence[Row]) -> str:
    """Show all codecs on one set, bound by bound."""
    lines = []
    for result in results:
        base = find(result["rows"], BASE)
        for i, row in enumerate(result["rows"]):
            label, ratio = "" if i else result["bound"], row["ratio"]
            relative_ratio = number(ratio / base["ratio"]) if base else ""
            cells = [label, row["codec"], number(ratio), relative_ratio]
            for way in WAYS.values():
                cells += [speed(row[way]), over(row, base, way)]
            lines.append([*cells, f"{row['error']:.4f}"])
    ways = [head for way in WAYS.values() for head in (f"{way} MB/s", "/ sz2")]
    first = results[0]
    nbytes = f"{first['raw_bytes'] / 1e6:,.1f} MB in {first['tensors']} tensors"
    about = f"{nbytes}, {first['passes']} passes."
    shown = table(("bound", "codec", "ratio", "/ sz2", *ways, "error / bound"), lines, left=2)
    return f"### {first['data']}\n\n{about}\n\n{shown}"


def markdown(results: Sequence[Row], about: str) -> str:
    """Return everything that was measured."""
    sets = dict.fromkeys(result["data"] for result in results)
    parts = [comparison([one for one in results if one["data"] == name]) for name in sets]
    return "\n\n".join((about, "### uniform beside the others", ahead(results), *parts))


def plot(results: Sequence[Row], about: str) -> bytes:
    """Return an SVG of ratio against speed of one set, at up to three bounds, each way."""
    from fedsz.report.figures import LIGHT, Chart, Panel, drawn, log_axis

    names = [result["data"] for result in results]
    data = REFERENCE[0] if REFERENCE[0] in names else names[0]
    chosen = [result for result in results if result["data"] == data][:3]

    def panel(way: str, result: Row) -> Panel:
        def draw(ax: Axes) -> None:
            for name, colour in COLOURS.items():
                rows = [r for r in result["rows"] if r["codec"].partition(":")[0] == name]
                at = [(statistics.median(row[way]), row["ratio"]) for row in rows]
                ax.plot(*zip(*at, strict=True), "o-", color=LIGHT[colour], label=name)
            ax.set(xscale="log", yscale="log", xlabel="MB/s", ylabel="ratio")
            for axis in (ax.xaxis, ax.yaxis):
                log_axis(axis, "{:g}".format)

        return Panel(f"{way}, {result['bound']}", draw)

    panels = tuple(panel(way, result) for way in WAYS.values() for result in chosen)
    title = f"{data}: ratio (upwards) against speed in MB/s (to the right)"
    note = f"{about} A line joins the efforts of uniform: {', '.join(map(str, EFFORTS))}."
    return drawn(Chart("codecs", title, "", note, panels))["svg"]


def described() -> str:
    """Say what was measured, and where."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    packages = [c.library for c in (Sz2(), Sz3(), Zfp()) if c.library and not c.missing()]
    today, level = datetime.datetime.now(datetime.UTC).date().isoformat(), _uniform.levels()[-1]
    return f"{today}, commit {commit}: {machine('numpy', *packages)}. uniform ran with {level}."


def main() -> None:
    """Measure, and write what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="tensors to code, too")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=MODELS)
    parser.add_argument("--no-draws", dest="draws", action="store_false", help="no random arrays")
    parser.add_argument("--arrays", type=Path, default=arrays.CACHE, metavar="DIR")
    parser.add_argument("--bounds", nargs="+", default=BOUNDS, help="1e-2, abs:1e-3, std:0.1 ...")
    parser.add_argument("--repeats", type=int, default=5, help="passes over 32 MB; less for more")
    parser.add_argument("--core", type=int, help="the core to stay on; the last one by default")
    parser.add_argument("--quick", action="store_true", help="to see that it works")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw ratio against speed")
    asked = parser.parse_args()
    if asked.quick:
        asked.bounds, asked.repeats = asked.bounds[1:2] or asked.bounds, 1
    last = max(os.sched_getaffinity(0)) if asked.core is None else asked.core
    os.sched_setaffinity(0, {last})
    about, results = described(), list(tables(asked))
    print(markdown(results, about))
    if asked.plot:
        asked.plot.write_bytes(plot(results, about))


if __name__ == "__main__":
    main()
