"""Quads for the tests of their limits: good ones, edges and what is beyond them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tests.uniform_oracle import QUADS
from tests.uniform_oracle_codes import Ints, Table
from tests.uniform_writer import Recipe, pieces, write
from tests.uniform_writer_codes import QuadGroupWriter, prefixed, varint, write_run

N, USUAL = 120, 3


def near(n: int) -> Ints:
    """Tokens near the usual one."""
    return np.random.default_rng(n).choice([1, 2, 3, 4, 9], n, p=[0.1, 0.2, 0.5, 0.15, 0.05])


PLAIN = Recipe(
    mode=QUADS, tokens=near(N), usual=USUAL, rows=6, spelled=0.1, exceptions={9: math.inf}
)
WITH_CLASSES = replace(
    PLAIN,
    rows=5,
    planes=4,
    classes=5,
    offset=3,
    row_classes=np.array([7, 2, 5, 2, 0]),
    channel_classes=np.arange(6),
    states=32,
)
GOOD = {"plain": PLAIN, "with classes": WITH_CLASSES}


def quads(**changes: Any) -> tuple[bytes, int]:
    recipe = replace(PLAIN, **changes)
    return write(recipe), recipe.n


def bad(**instead: bytes) -> tuple[bytes, int]:
    return write(PLAIN, **instead), N


def bad_chunk(chunk: bytes) -> tuple[bytes, int]:
    return bad(lengths=len(chunk).to_bytes(4, "little"), chunks=chunk)


def quad_table(*indices: int, bits: int = 12) -> tuple[Table, bytes]:
    """Tables in which kinds 1 and above have these indices."""
    group = QuadGroupWriter(bits)
    table = group.quads([0, *indices, *[0] * (14 - len(indices))])
    group.table(0, 1, 0, [0, 1, *bytes(254)])
    return table, prefixed(group.binary.finish())


def bad_table(*indices: int, bits: int = 12) -> tuple[bytes, int]:
    return bad(bits=bytes([bits]), tables=quad_table(*indices, bits=bits)[1])


def usual_alone(*indices: int, bits: int = 12) -> tuple[bytes, int]:
    """Usual tokens alone, with such a table."""
    table, tables = quad_table(*indices, bits=bits)
    run = write_run([0] * 40, [table] * 40, 4, bits)
    recipe = replace(PLAIN, tokens=np.full(N, USUAL), spelled=0.0, bits=bits)
    length = len(run).to_bytes(4, "little")
    return write(recipe, tables=tables, lengths=length, chunks=run), N


CHUNK = pieces(PLAIN)["chunks"]
HALF = np.repeat([7, USUAL], N // 2)
EDGE = {
    "the least usual token": quads(usual=1, tokens=near(N) % 3),
    "the largest usual token": quads(usual=254, tokens=255 - near(N) % 3),
    "half of all tokens behind quads": quads(tokens=HALF, spelled=0.0),
    "16 columns": quads(tokens=near(5 * 16), rows=5),
    "one group": quads(rows=4),
    "a quad 0 of 4088 slots": usual_alone(1),
    "a quad 0 of one slot": usual_alone(*[1] * 14, bits=8),
}
BAD = {
    "a usual token of 0": (*bad(usual=b"\0"), "usual token of 0"),
    "a usual token of 255": (*bad(usual=b"\xff"), "usual token of 255"),
    "a side": (*bad(flags=b"\5"), "flags 5"),
    "a flag that is none": (*bad(flags=b"\x11"), "flags 17"),
    "few slots": (*bad(bits=b"\7"), r"tables of 2\^7"),
    "small chunks": (*bad(chunk_size=b"\x0b"), r"chunks of 2\^11"),
    "15 columns": (*quads(tokens=near(15 * 8), rows=8), "15 columns"),
    "3 rows": (*quads(rows=3), "quads of 3 rows"),
    "rows that do not divide": (*bad(rows=b"\7"), "7 rows"),
    "more rows than elements": (*bad(rows=varint(2**63)), "rows"),
    "planes that do not divide": (*bad(planes=b"\3"), "3 planes"),
    "too many tokens behind quads": (
        *quads(tokens=np.append(7, HALF[:-1]), spelled=0.0),
        "61 tokens behind quads",
    ),
    "a word too many": (*bad_chunk(CHUNK + b"\0\0"), "too many"),
    "a word too few": (*bad_chunk(CHUNK[:-2]), "2 bytes at"),
    "states alone": (*bad_chunk(CHUNK[:16]), "2 bytes at"),
    "an index below 0": (*bad_table(-1), "index -1 of kind 1"),
    "an index above 79": (*bad_table(80), "index 80 of kind 1"),
    "frequencies of all slots": (*bad_table(*[0] * 13, 72, bits=11), "frequency 0 of quad 0"),
    "a quad 0 of 4096 slots": (*bad_table(0), "frequency 4096 of quad 0"),
}
