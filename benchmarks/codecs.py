"""Every lossy codec in one process: ratio, speed each way, error; on weights, updates and draws.

    python benchmarks/codecs.py [FILE ...] [--models cnn alexnet] [--arrays runs/arrays]
        [--size-sweep] [--threads] [--memory] [--instructions] [--all] [--quick]
        [--json FILE] [--docs docs/codecs.md] [--plot docs/codecs.svg]

Coded is what fedsz would code with loss: the tensors of a model with "weight" in their name and
more than 1024 elements (benchmarks/arrays.py trains the models), arrays drawn at random, and FILEs:
safetensors, state_dicts of torch (.pt, .pth), .npy and .npz. A time is that of one pass over all
tensors of a set, from float32 arrays to payloads or back. Passes of all codecs alternate, on one
core, after a pass in which every error has been measured in float64.

Foreign codecs are timed alone, without the envelope that makes them keep their bound and without
the process in which fedsz decodes their payloads. Our own, szx and uniform, check their bound as
they encode.

docs/codecs.md says what each column means. ``--from FILE.json`` prints, or writes the documents,
from an earlier run.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime
import importlib.metadata
import itertools
import json
import math
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import codecs_report
import numpy as np
import numpy.typing as npt

from fedsz.arrays import as_arrays
from fedsz.bounds import ErrorBound
from fedsz.codecs import _uniform, sz2
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.codecs.sz2 import Sz2
from fedsz.codecs.sz3 import Sz3
from fedsz.codecs.szx import Szx
from fedsz.codecs.uniform import Uniform, matrix_shape
from fedsz.codecs.zfp import Zfp
from fedsz.update.partition import is_lossy

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Array = npt.NDArray[np.float32]
Result = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("cnn", "alexnet", "mobilenetv2", "resnet50")
REFERENCE = ("resnet50 weights", "rel 1e-2")  # where all that is of interest once is measured
THRESHOLD = 1024
BOUNDS = ("1e-1", "1e-2", "1e-3", "1e-4")
WAYS = ("compress", "decompress")
SEED = 0
SIDE = 2048  # of the matrices drawn at random
CHUNK = 1 << 20  # elements compared at a time
LONG = 0.02  # seconds that a clock can be trusted with
WORTH_TABLES = 1 << 20  # bytes, from which a payload is compared with the entropy
FLOAT32 = 0  # what `_uniform` calls it
HEAD = 1, np.dtype("<f4")  # where a payload of uniform has its step (docs/format.md), and its type
CODED = 3  # the mode in which it is coded by frequency


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


def relative(tensors: dict[str, Array], rules: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return bounds by rules as the CLI takes them."""
    return {
        f"rel {rule}" if ":" not in rule else rule.replace(":", " "): {
            name: ErrorBound.of(rule).absolute(x) for name, x in tensors.items()
        }
        for rule in rules
    }


def tame(tensors: dict[str, npt.NDArray[Any]], what: str) -> dict[str, Array]:
    """Return finite, not constant tensors as float32: what every codec can be asked to code."""
    kept = {}
    for name, x in tensors.items():
        y = np.ascontiguousarray(x, np.float32)
        if np.isfinite(y).all() and np.ptp(y) > 0:
            kept[name] = y
        else:
            print(f"{what}: {name} is constant or not finite, and left out", file=sys.stderr)
    return kept


def model_sets(model: str, folder: Path, rules: tuple[str, ...]) -> Iterator[DataSet]:
    """Yield a model's weights and one client's update of them."""
    import arrays

    def lossy(kind: str) -> dict[str, Array]:
        loaded = arrays.load(model, kind, folder)
        chosen = {
            name: x
            for name, x in loaded.items()
            if is_lossy(name, x, rule="paper", threshold=THRESHOLD)
        }
        return tame(chosen, f"{model} {kind}")

    weights = lossy("weights")
    yield DataSet(f"{model} weights", weights, relative(weights, rules))
    of_weights = {name: ErrorBound.rel(1e-2).absolute(x) for name, x in weights.items()}
    del weights
    update = {name: x for name, x in lossy("update").items() if name in of_weights}
    bounds = relative(update, ["std:1"])
    bounds["1e-2 of weights"] = {name: of_weights[name] for name in update}
    yield DataSet(f"{model} update", update, bounds)


def drawn_sets(side: int, rules: tuple[str, ...]) -> Iterator[DataSet]:
    """Yield square matrices of independent numbers."""
    rng = np.random.default_rng(SEED)
    draws: dict[str, Callable[[], npt.NDArray[Any]]] = {
        "Gaussian": lambda: rng.standard_normal((side, side), np.float32),
        "Laplace": lambda: rng.laplace(size=(side, side)),
        "Student t, 3 degrees": lambda: rng.standard_t(3, (side, side)),
    }
    for name, draw in draws.items():
        tensors = tame({name: draw()}, name)
        yield DataSet(name, tensors, relative(tensors, rules))


def file_set(path: Path, rules: tuple[str, ...]) -> DataSet:
    """Return what fedsz would code with loss of a file."""
    if path.suffix in (".npy", ".npz"):
        loaded = np.load(path)
        named = {path.stem: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        chosen = {
            name: x
            for name, x in named.items()
            if np.issubdtype(x.dtype, np.floating) and x.size > THRESHOLD
        }
    else:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            named = load_file(path)
        else:
            import torch

            state = torch.load(path, map_location="cpu", weights_only=True)
            named = as_arrays(state.get("state_dict", state))
        chosen = {
            name: x
            for name, x in named.items()
            if is_lossy(name, x, rule="paper", threshold=THRESHOLD)
        }
    tensors = tame(chosen, path.name)
    if not tensors:
        sys.exit(f"{path} holds nothing that fedsz would code with loss")
    return DataSet(path.name, tensors, relative(tensors, rules))


# Who codes it


@dataclass(frozen=True)
class Contestant:
    """A codec as it is timed.

    Attributes:
        name: what users write, and what is in parentheses beside it.
        encode: from an array and its bound to a payload.
        decode: from a payload and a shape to a new array.
        keeps_bound: whether it promises to; if not, its error is only reported.
        decode_into: the same into an array that exists, if it can.
        accumulate: adds what it decodes to sums of float32, if it can.
    """

    name: str
    encode: Callable[[Array, float], bytes]
    decode: Callable[[bytes, tuple[int, ...]], Array]
    keeps_bound: bool = True
    decode_into: Callable[[bytes, Array], None] | None = None
    accumulate: Callable[[bytes, Array], None] | None = None


class BareSz2(Sz2):
    """SZ 2 without the two copies that fedsz makes of what it decodes."""

    def decompress(self, native: bytes, n: int) -> Array:  # noqa: D102
        pointer = sz2.library().SZ_decompress(sz2.FLOAT, native, len(native), 0, 0, 0, 0, n)
        buffer = (ctypes.c_float * n).from_address(pointer)
        weakref.finalize(buffer, sz2.libc().free, pointer)
        return np.asarray(buffer)


def foreign(codec: EnvelopeCodec, name: str = "") -> Contestant:
    """Return a foreign codec alone."""
    return Contestant(
        name or str(codec),
        lambda x, bound: codec.compress(x.reshape(-1), bound),
        lambda payload, shape: codec.decompress(payload, math.prod(shape)).reshape(shape),
        keeps_bound=False,
    )


def in_fedsz(codec: EnvelopeCodec) -> Contestant:
    """Return a foreign codec as fedsz uses it."""
    return Contestant(f"{codec} (in fedsz)", codec.encode, codec.decode)


def uniform(codec: Uniform, level: str = "", name: str = "") -> Contestant:
    """Return uniform, with the instructions of ``level``; as `Uniform` calls it."""

    def encode(x: Array, bound: float) -> bytes:
        octets = x.reshape(-1).view(np.uint8)
        shape = matrix_shape(x.shape)
        return _uniform.encode(
            octets, FLOAT32, *shape, bound, codec.effort, codec.threads, level
        )[0]  # fmt: skip

    def decode_into(payload: bytes, y: Array) -> None:
        _uniform.decode(payload, FLOAT32, y.reshape(-1).view(np.uint8), codec.threads, level)

    def decode(payload: bytes, shape: tuple[int, ...]) -> Array:
        y = np.empty(shape, np.float32)
        decode_into(payload, y)
        return y

    def accumulate(payload: bytes, sums: Array) -> None:
        octets = sums.reshape(-1).view(np.uint8)
        _uniform.accumulate(payload, FLOAT32, 0.25, octets, codec.threads, level)

    label = str(dataclasses.replace(codec, threads=0))
    return Contestant(name or label, encode, decode, True, decode_into, accumulate)


def contestants(level: str) -> list[Contestant]:
    """Return every lossy codec that this machine has, SZ 2 first."""
    outside = [BareSz2(), Sz3(), Zfp()]
    szx = Szx()
    return [
        *(foreign(codec) for codec in outside if not codec.missing()),
        Contestant("szx", szx.encode, szx.decode),
        *(uniform(Uniform(effort=effort, threads=1), level) for effort in (0, 1, 5, 9)),
    ]


def extra_contestants() -> list[Contestant]:
    """Return what is measured on one set only."""
    names = {
        "baseline": "uniform (no SIMD)",
        "avx2": "uniform (AVX2)",
        "avx512": "uniform (AVX-512)",
    }
    defaults = Uniform(threads=1)
    return [
        *(in_fedsz(codec) for codec in (Sz2(), Sz3(), Zfp()) if not codec.missing()),
        *(uniform(defaults, level, names.get(level, level)) for level in _uniform.levels()[:-1]),
    ]


# Time


def seconds_of(call: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    kept = call(*arguments)
    end = time.perf_counter()
    del kept  # not before the clock has been read
    return end - start


def summary(seconds: list[float], nbytes: int) -> Result:
    """Return the median, least and greatest speed in MB/s (10^6 bytes), and all seconds."""
    speeds = [nbytes / 1e6 / s for s in seconds]
    return {
        "median": statistics.median(speeds),
        "least": min(speeds),
        "greatest": max(speeds),
        "seconds": seconds,
    }


def passes(nbytes: int, repeats: int) -> int:
    """Return how many passes make a median: the shorter they are, the more."""
    return max(round(repeats * min(max(32e6 / max(nbytes, 1), 0.6), 6)), 1)


def largest_error(x: Array, y: Array) -> float:
    """Return the largest distance of two arrays, in float64."""
    a, b = x.reshape(-1), y.reshape(-1)
    worst = 0.0
    for start in range(0, a.size, CHUNK):
        part = slice(start, start + CHUNK)
        worst = max(worst, float(np.abs(a[part].astype(np.float64) - b[part]).max()))
    return worst


def entropy_bytes(payload: bytes, y: Array) -> float | None:
    """Return what the numbers of grid points in ``y`` weigh at their order-0 entropy."""
    if payload[0] & 15 != CODED:
        return None
    (step,) = np.frombuffer(payload, HEAD[1], 1, HEAD[0])
    k = np.rint(y.reshape(-1) / np.float64(step)).astype(np.int64)
    low, high = int(k.min()), int(k.max())
    if high - low >= 1 << 24:  # an element that is stored exactly, and no number of a grid point
        return None
    counts = np.bincount(k - low)
    counts = counts[counts > 0]
    return float((counts * np.log2(k.size / counts)).sum() / 8)


def check(contestant: Contestant, data: DataSet, rule: str) -> Result:
    """Code every tensor once; return sizes and errors."""
    tensors, worst = [], 0.0
    for name, x in data.tensors.items():
        bound = data.bounds[rule][name]
        payload = contestant.encode(x, bound)
        y = contestant.decode(payload, x.shape)
        assert y.shape == x.shape
        assert y.dtype == x.dtype
        error = largest_error(x, y) / bound
        if contestant.keeps_bound and not error <= 1:
            sys.exit(f"{contestant.name} moves {name} of {data.name} by {error} times its bound")
        worst = max(worst, error)
        facts = {"name": name, "shape": x.shape, "bound": bound, "bytes": len(payload)}
        facts["error_over_bound"] = error
        if contestant.name == "uniform:effort=1" and x.nbytes > WORTH_TABLES:
            facts["entropy_bytes"] = entropy_bytes(payload, y)
        tensors.append(facts)
    size = sum(tensor["bytes"] for tensor in tensors)
    return {
        "codec": contestant.name,
        "bytes": size,
        "ratio": data.raw / size,
        "error_over_bound": worst,
        "keeps_bound": contestant.keeps_bound,
        "tensors": tensors,
    }


def one_pass(
    contestant: Contestant, data: DataSet, bounds: dict[str, float], room: Array
) -> dict[str, float]:
    """Return the seconds each way for all tensors; ``room`` is memory that has been written to."""
    seconds = dict.fromkeys((*WAYS, "decompress_into", "accumulate"), 0.0)
    for name, x in data.tensors.items():
        bound, there = bounds[name], room[: x.size]
        start = time.perf_counter()
        payload = contestant.encode(x, bound)
        seconds["compress"] += time.perf_counter() - start
        seconds["decompress"] += seconds_of(contestant.decode, payload, x.shape)
        if contestant.decode_into:
            seconds["decompress_into"] += seconds_of(contestant.decode_into, payload, there)
        if contestant.accumulate:
            seconds["accumulate"] += seconds_of(contestant.accumulate, payload, there)
    return {way: spent for way, spent in seconds.items() if spent}


def copies(data: DataSet, room: Array) -> dict[str, float]:
    """Return the seconds to copy all tensors, into memory in use and into new arrays."""
    seconds = dict.fromkeys(WAYS, 0.0)
    for x in data.tensors.values():
        flat, there = x.reshape(-1), room[: x.size]
        seconds["compress"] += seconds_of(np.copyto, there, flat)
        seconds["decompress"] += seconds_of(flat.copy)
    return seconds


def compare(data: DataSet, rule: str, players: list[Contestant], repeats: int) -> list[Result]:
    """Return what each codec makes of a set at one bound, and a copy of it for comparison."""
    rows = [check(player, data, rule) for player in players]
    room = np.zeros(max(x.size for x in data.tensors.values()), np.float32)
    times: list[list[dict[str, float]]] = [[] for _ in range(len(players) + 1)]
    for _ in range(passes(data.raw, repeats)):
        for player, taken in zip(players, times, strict=False):
            taken.append(one_pass(player, data, data.bounds[rule], room))
            room.fill(0)  # sums must not grow for ever
        times[-1].append(copies(data, room))
    rows.append({"codec": "memcpy"})
    for row, taken in zip(rows, times, strict=True):
        for way in taken[0]:
            row[way] = summary([seconds[way] for seconds in taken], data.raw)
    return rows


def tables(sets: Iterable[DataSet], level: str, repeats: int) -> list[Result]:
    """Return the comparison of all codecs, set by set and bound by bound."""
    results = []
    for data in sets:
        for rule in data.bounds:
            players = contestants(level)
            if (data.name, rule) == REFERENCE:
                players += extra_contestants()
            start = time.monotonic()
            rows = compare(data, rule, players, repeats)
            took = time.monotonic() - start
            print(f"{data.name}, {rule}: {took:.0f} s", file=sys.stderr, flush=True)
            results.append(
                {
                    "data": data.name,
                    "bound": rule,
                    "raw_bytes": data.raw,
                    "tensors": len(data.tensors),
                    "passes": passes(data.raw, repeats),
                    "rows": rows,
                }
            )
    return results


# Size, threads, memory


def matrix(nbytes: int) -> Array:
    """Return a Gaussian matrix of about so many bytes, and about square."""
    rows = 1 << (max(nbytes // 4, 1).bit_length() // 2)
    shape = rows, max(nbytes // 4 // rows, 1)
    return np.random.default_rng(SEED).standard_normal(shape, np.float32)


def repeated(call: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds of one call, timed over as many as fill `LONG` seconds."""
    first = seconds_of(call, *arguments)
    if first > LONG:
        return first
    count = math.ceil(LONG / first)
    start = time.perf_counter()
    for _ in range(count):
        call(*arguments)
    return (time.perf_counter() - start) / count


def size_sweep(largest: int, level: str, repeats: int) -> list[Result]:
    """Return seconds a call and ratio from 1 KB to ``largest`` bytes, in steps of four."""
    players = [p for p in contestants(level) if p.name in ("sz2", "uniform")]
    sizes = itertools.takewhile(lambda s: s <= largest, (1 << 10 + 2 * i for i in range(16)))
    results = []
    for nbytes in sizes:
        x = matrix(nbytes)
        bound = ErrorBound.rel(1e-2).absolute(x)
        payloads = [player.encode(x, bound) for player in players]
        rows: list[Result] = []
        for player, payload in zip(players, payloads, strict=True):
            error = largest_error(x, player.decode(payload, x.shape)) / bound
            assert error <= 1 or not player.keeps_bound
            ratio = x.nbytes / len(payload)
            rows.append({"codec": player.name, "ratio": ratio, "error_over_bound": error})
        rows.append({"codec": "memcpy"})
        room = np.zeros_like(x)
        times: list[list[tuple[float, float]]] = [[] for _ in rows]
        for _ in range(min(passes(nbytes, repeats), repeats)):
            for player, payload, taken in zip(players, payloads, times, strict=False):
                encoding = repeated(player.encode, x, bound)
                taken.append((encoding, repeated(player.decode, payload, x.shape)))
            times[-1].append((repeated(np.copyto, room, x), repeated(x.copy)))
        for row, taken in zip(rows, times, strict=True):
            for way, seconds in zip(WAYS, zip(*taken, strict=True), strict=True):
                row[way] = summary(list(seconds), x.nbytes)
        print(f"{x.nbytes} bytes done", file=sys.stderr, flush=True)
        results.append({"raw_bytes": x.nbytes, "shape": x.shape, "rows": rows})
    return results


def threads(nbytes: int, cores: int, level: str, repeats: int) -> list[Result]:
    """Return the speed of uniform with 1 to ``cores`` threads."""
    x = matrix(nbytes)
    bound = ErrorBound.rel(1e-2).absolute(x)
    results: list[Result] = []
    for effort in (0, 1, 5, 9):
        players = [
            uniform(Uniform(effort=effort, threads=count), level) for count in range(1, cores + 1)
        ]
        payloads = [player.encode(x, bound) for player in players]
        assert all(payload == payloads[0] for payload in payloads)
        assert largest_error(x, players[-1].decode(payloads[0], x.shape)) <= bound
        times: list[list[tuple[float, float]]] = [[] for _ in players]
        for _ in range(repeats):
            for player, taken in zip(players, times, strict=True):
                encoding = seconds_of(player.encode, x, bound)
                taken.append((encoding, seconds_of(player.decode, payloads[0], x.shape)))
        for count, taken in enumerate(times, 1):
            row: Result = {"effort": effort, "threads": count, "raw_bytes": x.nbytes}
            for way, seconds in zip(WAYS, zip(*taken, strict=True), strict=True):
                row[way] = summary(list(seconds), x.nbytes)
            results.append(row)
    return results


def resident(field: str) -> int:
    """Return VmRSS or VmHWM, the resident size now or at its greatest, in bytes."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def weigh(name: str, level: str, nbytes: int, pipe: Connection) -> None:
    """Be a process of its own; tell what it takes beyond input and output, each way."""
    (player,) = (player for player in contestants(level) if player.name == name)
    x = matrix(nbytes)
    bound = ErrorBound.rel(1e-2).absolute(x)
    small = np.ascontiguousarray(x[:64])
    player.decode(player.encode(small, bound), small.shape)  # libraries are loaded now

    def beyond(call: Callable[[], Any], size: Callable[[Any], int]) -> float:
        sz2.libc().malloc_trim(0)  # what is free would pass for memory that nobody needs
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew (proc(5))
        before = resident("VmRSS")
        result = call()
        return (resident("VmHWM") - before - size(result)) / x.size

    compress = beyond(lambda: player.encode(x, bound), len)
    payload = player.encode(x, bound)
    decompress = beyond(lambda: player.decode(payload, x.shape), lambda y: y.nbytes)
    pipe.send((compress, decompress))


def memory(nbytes: int, level: str) -> list[Result]:
    """Return the bytes an element that each codec takes beyond input and output."""
    spawn = multiprocessing.get_context("spawn")
    results = []
    for player in contestants(level):
        pipe, end = spawn.Pipe()
        process = spawn.Process(target=weigh, args=(player.name, level, nbytes, end), daemon=True)
        process.start()
        compress, decompress = pipe.recv()
        process.join()
        results.append({"codec": player.name, "compress": compress, "decompress": decompress})
    return results


# The whole


def cpu() -> str:
    """Name the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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
        "cpu": cpu(),
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
    out.add_argument(
        "--docs", type=Path, metavar="FILE", help="replace the figures in this document"
    )
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
    if options.docs:
        codecs_report.update(options.docs, report)
    if options.plot:
        options.plot.write_text(codecs_report.plot(report))


if __name__ == "__main__":
    main()
