"""Codecs timed on one core, or on several: the parts of benchmarks/codecs.py."""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from codecs_data import (
    EFFORTS,
    Array,
    DataSet,
    contestants,
    extra_contestants,
    matrix,
    memcpy,
    uniform,
)

from fedsz.bounds import ErrorBound
from fedsz.codecs import sz2
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CodecError
from fedsz.experiments.codec_measurement import (
    Coder,
    Growth,
    Item,
    first_pass,
    loops_for,
    timed_pass,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Result = dict[str, Any]

REFERENCE = ("resnet50 weights", "rel 1e-2")  # where all that is of interest once is measured
WAYS = {"encode": "compress", "decode": "decompress"}  # how tables call what was timed
WORTH_TABLES = 1 << 20  # bytes, from which a payload is compared with the entropy
HEAD = 1, np.dtype("<f4")  # where a payload of uniform has its step (docs/format.md), and its type
CODED = 3  # the mode in which it is coded by frequency
NO_ROOM = np.empty(0, np.float32)


# Time


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


def race(
    entrants: Sequence[tuple[Result, list[Item]]],
    count: int,
    *,
    room: Array = NO_ROOM,
    short: bool = False,
) -> list[Result]:
    """Time entrants in turn; return their rows with the speed of each way.

    Args:
        entrants: the row of each coder, and what it codes.
        count: passes of each.
        room: what coders decode into and add to.
        short: whether a pass may be too short for a clock; it is then repeated.
    """
    loops = [loops_for(sum(timed_pass(items).values())) if short else 1 for _, items in entrants]
    times: list[list[dict[str, float]]] = [[] for _ in entrants]
    for _ in range(count):
        for (_, items), taken, loop in zip(entrants, times, loops, strict=True):
            taken.append(timed_pass(items, loop))
            room.fill(0)  # sums must not grow for ever
    for (row, items), taken in zip(entrants, times, strict=True):
        nbytes = sum(item.x.nbytes for item in items)
        for way in taken[0]:
            row[WAYS.get(way, way)] = summary([seconds[way] for seconds in taken], nbytes)
    return [row for row, _ in entrants]


# Ratio and speed


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


def check(coder: Coder, items: Sequence[Item], what: str) -> Result:
    """Code every tensor once; return sizes and errors."""
    entropies: list[float | None] = []

    def look(payload: bytes, y: Array) -> None:
        worth = coder.name == "uniform:effort=1" and y.nbytes > WORTH_TABLES
        entropies.append(entropy_bytes(payload, y) if worth else None)

    try:
        first = first_pass(items, look)
    except CodecError as err:
        sys.exit(f"{coder.name} on {what}: {err}")
    tensors = [
        {
            "name": item.name,
            "shape": item.x.shape,
            "bound": item.bound,
            "bytes": nbytes,
            "error_over_bound": deviation.worst,
            "entropy_bytes": entropy,
        }
        for item, nbytes, deviation, entropy in zip(
            items, first.nbytes, first.deviations, entropies, strict=True
        )
    ]
    return {
        "codec": coder.name,
        "bytes": sum(first.nbytes),
        "ratio": sum(item.x.nbytes for item in items) / sum(first.nbytes),
        "error_over_bound": first.worst,
        "keeps_bound": coder.keeps_bound,
        "tensors": tensors,
    }


def compare(data: DataSet, rule: str, level: str, repeats: int) -> list[Result]:
    """Return what each codec makes of a set at one bound, and a copy of it for comparison."""
    room = np.zeros(max(x.size for x in data.tensors.values()), np.float32)
    players = contestants(level, room)
    if (data.name, rule) == REFERENCE:
        players += extra_contestants(room)
    rows = [check(player, data.items(rule, player), data.name) for player in players]
    players.append(memcpy(room))
    rows.append({"codec": "memcpy"})
    entrants = [(row, data.items(rule, p)) for row, p in zip(rows, players, strict=True)]
    return race(entrants, passes(data.raw, repeats), room=room)


def tables(sets: Iterable[DataSet], level: str, repeats: int) -> list[Result]:
    """Return the comparison of all codecs, set by set and bound by bound."""
    results = []
    for data in sets:
        for rule in data.bounds:
            start = time.monotonic()
            rows = compare(data, rule, level, repeats)
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


def gaussian(nbytes: int) -> Callable[[Coder], list[Item]]:
    """Return what gives a coder one Gaussian matrix of about so many bytes, at ``rel 1e-2``."""
    x = matrix(nbytes)
    bound = ErrorBound.rel(1e-2).absolute(x)
    return lambda coder: [Item("matrix", x, bound, coder)]


def size_sweep(largest: int, level: str, repeats: int) -> list[Result]:
    """Return seconds a call and ratio from 1 KB to ``largest`` bytes, in steps of four."""
    sizes = itertools.takewhile(lambda s: s <= largest, (1 << 10 + 2 * i for i in range(16)))
    results = []
    for nbytes in sizes:
        items_of = gaussian(nbytes)
        players = [p for p in contestants(level, NO_ROOM) if p.name in ("sz2", "uniform")]
        entrants: list[tuple[Result, list[Item]]] = []
        for player in players:
            found = check(player, items_of(player), "a matrix")
            row = {name: found[name] for name in ("codec", "ratio", "error_over_bound")}
            entrants.append((row, items_of(player)))
        (item,) = entrants[0][1]
        copies = items_of(memcpy(np.zeros(item.x.size, np.float32)))
        entrants.append(({"codec": "memcpy"}, copies))
        rows = race(entrants, min(passes(nbytes, repeats), repeats), short=True)
        print(f"{item.x.nbytes} bytes done", file=sys.stderr, flush=True)
        results.append({"raw_bytes": item.x.nbytes, "shape": item.x.shape, "rows": rows})
    return results


def threads(nbytes: int, cores: int, level: str, repeats: int) -> list[Result]:
    """Return the speed of uniform with 1 to ``cores`` threads."""
    items_of = gaussian(nbytes)
    results: list[Result] = []
    for effort in EFFORTS:
        entrants: list[tuple[Result, list[Item]]] = []
        payloads = set()
        for count in range(1, cores + 1):
            items = items_of(uniform(Uniform(effort=effort, threads=count), NO_ROOM, level))
            first_pass(items, lambda payload, _: payloads.add(payload))  # noqa: B023 - called here
            row = {"effort": effort, "threads": count, "raw_bytes": items[0].x.nbytes}
            entrants.append((row, items))
        assert len(payloads) == 1
        results += race(entrants, repeats)
    return results


def weigh(name: str, level: str, nbytes: int, pipe: Connection) -> None:
    """Be a process of its own; tell what it takes beyond input and output, each way."""
    (player,) = (player for player in contestants(level, NO_ROOM) if player.name == name)
    (item,) = gaussian(nbytes)(player)
    first_pass([Item("small", np.ascontiguousarray(item.x[:64]), item.bound, player)])

    def beyond(call: Callable[[], Any], size: Callable[[Any], int]) -> float:
        sz2.libc().malloc_trim(0)  # what is free would pass for memory that nobody needs
        memory = Growth()
        with memory.watched():
            result = call()
        assert memory.most is not None
        return (memory.most - size(result)) / item.x.size

    compress = beyond(item.encode, len)
    payload = item.encode()
    decompress = beyond(lambda: item.decode(payload), lambda y: y.nbytes)
    pipe.send((compress, decompress))


def memory(nbytes: int, level: str) -> list[Result]:
    """Return the bytes an element that each codec takes beyond input and output."""
    spawn = multiprocessing.get_context("spawn")
    results = []
    for player in contestants(level, NO_ROOM):
        pipe, end = spawn.Pipe()
        process = spawn.Process(target=weigh, args=(player.name, level, nbytes, end), daemon=True)
        process.start()
        compress, decompress = pipe.recv()
        process.join()
        results.append({"codec": player.name, "compress": compress, "decompress": decompress})
    return results
