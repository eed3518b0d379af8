"""Payloads of `uniform` for the tests of its limits: good ones, edges and what is beyond them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tests.codecs.uniform_oracle import code_sparse, pieces, write
from tests.codecs.uniform_oracle_codes import (
    Binary,
    Group,
    Ints,
    Number,
    Table,
    prefixed,
    varint,
    write_run,
)
from tests.codecs.uniform_oracle_models import (
    BLOCKS,
    CONSTANT,
    NEIGHBOURS,
    PREDICTION,
    QUADS,
    SPARSE,
    STORED,
    Payload,
    QuadGroup,
)


def some(*shape: int, most: int = 8) -> Ints:
    return np.random.default_rng(sum(shape)).integers(0, most, shape, endpoint=True)


def near(n: int) -> Ints:
    """Tokens near the usual one."""
    return np.random.default_rng(n).choice([1, 2, 3, 4, 9], n, p=[0.1, 0.2, 0.5, 0.15, 0.05])


N, USUAL = 120, 3
GOOD = {
    "stored": Payload(mode=STORED, tokens=some(N).astype(np.float32)),
    "constant": Payload(mode=CONSTANT, tokens=some(N), base=-3, exceptions={7: math.nan, 8: 1e9}),
    "blocks": Payload(mode=BLOCKS, tokens=some(N, most=90), shift=3, low=some(N, most=7)),
    "coded": Payload(tokens=some(N), shift=1, low=some(N, most=1), exceptions={0: 3.0}),
    "zeros": Payload(tokens=np.zeros(N, np.int64)),
    "narrow": Payload(tokens=some(N), bits=8, states=32),
    "neighbours": Payload(tokens=some(N), rows=3, planes=8, side=NEIGHBOURS, width=4, centre=4),
    "sparse": Payload(mode=SPARSE, tokens=some(N) // 7 + 2, usual=2, shift=1, low=some(N, most=1)),
    "classes": Payload(
        tokens=some(N),
        rows=10,
        planes=2,
        classes=5,
        offset=3,
        row_classes=some(10),
        channel_classes=some(6),
    ),
    "prediction": Payload(
        tokens=some(N),
        rows=10,
        side=PREDICTION,
        left=some(10, 3) - 4,
        right=some(3, 12) - 4,
        scale=3,
    ),
}
GOOD["quads"] = Payload(
    mode=QUADS, tokens=near(N), usual=USUAL, rows=6, spelled=0.1, exceptions={9: math.inf}
)
GOOD["quads with classes"] = replace(
    GOOD["quads"],
    rows=5,
    planes=4,
    classes=5,
    offset=3,
    row_classes=np.array([7, 2, 5, 2, 0]),
    channel_classes=np.arange(6),
    states=32,
)


def f32(value: float) -> bytes:
    return np.float32(value).tobytes()


def bad(name: str, **instead: bytes) -> tuple[bytes, int]:
    return write(GOOD[name], **instead), GOOD[name].n


def bad_chunk(name: str, chunk: bytes, **instead: bytes) -> tuple[bytes, int]:
    return bad(name, lengths=len(chunk).to_bytes(4, "little"), chunks=chunk, **instead)


def bad_payload(name: str, **changes: Any) -> tuple[bytes, int]:
    payload = replace(GOOD[name], **changes)
    return write(payload), payload.n


def written(tokens: Ints, beyond: int = 0) -> bytes:
    """A sparse chunk whose usual token is 2."""
    binary = Binary()
    code_sparse(binary, tokens, 2, beyond)
    return binary.exactly()


def bad_bounds(*numbers: int) -> tuple[bytes, int]:
    """A table that says so of its bounds."""
    binary, bound = Binary(), Number()
    for v in numbers:
        binary.number(bound, v)
    return bad("narrow", tables=prefixed(binary.finish()))


def bad_table(*indices: int, bits: int = 8) -> tuple[bytes, int]:
    """A table of symbols 0 and above with these indices; symbol 0 has the rest."""
    group = Group(Binary(), bits)
    group.table(0, len(indices), 0, [0, *indices, *bytes(255 - len(indices))])
    return bad("narrow", bits=bytes([bits]), tables=prefixed(group.binary.finish()))


def zeros(last: int, ends: int = 1 << 15) -> tuple[bytes, int]:
    """A run of symbol 0, with a table of 0 to ``last`` where it has all slots that others leave."""
    group = Group(Binary(), 12)
    table = group.table(0, last, 0, [0] + [1] * last + [0] * (255 - last))
    run = write_run([0] * N, [table] * N, 4, 12, ends)
    return bad_chunk("zeros", run, tables=prefixed(group.binary.finish()))


def with_factor(value: int) -> tuple[bytes, int]:
    left = GOOD["prediction"].left.copy()
    left[3, 1] = value
    return bad_payload("prediction", left=left)


def matrix(rows: int, channels: int, planes: int = 1, **more: Any) -> tuple[bytes, int]:
    """A payload with classes of so many rows and channels."""
    return bad_payload(
        "classes",
        tokens=some(rows * channels * planes),
        rows=rows,
        planes=planes,
        row_classes=some(rows),
        channel_classes=some(channels),
        **more,
    )


def factors(rows: int, columns: int, rank: int) -> tuple[bytes, int]:
    left, right = some(rows, rank) - 4, some(rank, columns) - 4
    return bad_payload(
        "prediction", tokens=some(rows * columns), rows=rows, left=left, right=right, scale=6
    )


CHUNK = pieces(GOOD["coded"])["chunks"]
TOKENS_OF_BLOCKS = pieces(GOOD["blocks"])["chunks"]
CHUNK_OF_SPARSE = pieces(GOOD["sparse"])["chunks"]
CLASS_RUN = pieces(GOOD["classes"])["class_run"][1:]  # without its length
LONGEST = bytes([0x80] * 9)

# Payloads at the edge of what is allowed, and what lies just beyond it, by what the oracle says.
EDGE = {
    "a step of 0": bad("coded", step=f32(0.0)),
    "a subnormal step": bad("coded", step=f32(1e-45)),
    "the least base": bad_payload("coded", base=-(2**31)),
    "the largest base": bad_payload("coded", base=2**31 - 1),
    "a base with a byte to spare": bad("coded", base=b"\x80\0"),
    "a base of ten bytes": bad("coded", base=LONGEST + b"\0"),
    "chunks of 2^24": bad("coded", chunk_size=b"\x18"),
    "14 low bits": bad_payload("coded", shift=14),
    "255 planes": matrix(8, 12, planes=255, classes=21, side=NEIGHBOURS, width=255),
    "as many classes as elements can have": matrix(8, 8),
    "as many classes as sides can have": matrix(10, 12, classes=21, side=NEIGHBOURS),
    "the least offset": matrix(10, 12, offset=-1024),
    "the largest offset": matrix(10, 12, offset=1024),
    "65536 columns": matrix(1, 4096, planes=16),
    "as many factors as elements": factors(20, 20, 10),
    "a rank of 64": factors(128, 128, 64),
    "a scale of 20": bad_payload("prediction", scale=20),
    "a scale of 0": bad_payload("prediction", scale=0),
    "a factor of -127": with_factor(-127),
    "a frequency of 4095": zeros(1),
    "no token that is not usual": bad_payload("sparse", usual=1),
    "sparse tokens up to 0 and 255": bad_payload("sparse", tokens=some(N, most=1) * 255),
    "every element an exception": bad_payload("coded", exceptions=dict.fromkeys(range(N), 1.0)),
}
BAD = {
    "mode": (*bad("coded", head=b"\x06"), "mode 6"),
    "no elements": (write(GOOD["coded"]), 0, "no elements"),
    "a constant of no elements": (write(GOOD["constant"]), 0, "no elements"),
    "dtype": (*bad("coded", head=b"\x43"), "dtype 4"),
    "a negative step": (*bad("coded", step=f32(-0.5)), "step -0.5"),
    "an infinite step": (*bad("coded", step=f32(math.inf)), "step inf"),
    "a step of NaN": (*bad("constant", step=f32(math.nan)), "step nan"),
    "base, too large": (*bad_payload("coded", base=2**31), "base 2147483648"),
    "base, too small": (*bad_payload("coded", base=-(2**31) - 1), "base -2147483649"),
    "base, 65 bits": (*bad("coded", base=LONGEST + b"\2"), "more than 64 bits"),
    "base, 11 bytes": (*bad("coded", base=LONGEST + b"\x80\0"), "more than 10 bytes"),
    "shift": (*bad_payload("blocks", shift=15), "shift 15"),
    "small chunks": (*bad("coded", chunk_size=b"\x0b"), r"chunks of 2\^11"),
    "large chunks": (*bad("blocks", chunk_size=b"\x19"), r"chunks of 2\^25"),
    "a block's width": (*bad("blocks", chunks=b"\0\x09" + TOKENS_OF_BLOCKS[2:]), "8 bits"),
    "a chunk of blocks, longer": (*bad_chunk("blocks", TOKENS_OF_BLOCKS + b"\0"), "too many"),
    "a chunk of blocks, shorter": (*bad_chunk("blocks", TOKENS_OF_BLOCKS[:-1]), "bytes at"),
    "a chunk beyond the end": (*bad("coded", lengths=b"\xff\xff\xff\xff"), "4294967295 bytes"),
    "a state too small": (*bad("coded", chunks=b"\xff\x7f\0\0" + CHUNK[4:]), "state out of"),
    "a state too large": (*bad("coded", chunks=b"\0\0\0\x80" + CHUNK[4:]), "state out of"),
    "no states": (*bad_chunk("coded", CHUNK[:7]), "4 bytes at"),
    "other states": (*bad("coded", flags=b"\0"), "."),
    "a word too many": (*bad_chunk("coded", CHUNK + b"\0\0"), "2 bytes too many"),
    "half a word": (*bad_chunk("coded", CHUNK + b"\0"), "1 bytes too many"),
    "a word too few": (*bad_chunk("coded", CHUNK[:-2]), "2 bytes at"),
    "states that end otherwise": (*zeros(1, ends=(1 << 15) + 1), "does not end as it began"),
    "side 3": (*bad("neighbours", flags=b"\x0d"), "flags 13"),
    "flag 16": (*bad("coded", flags=b"\x11"), "flags 17"),
    "flag 128": (*bad("coded", flags=b"\x81"), "flags 129"),
    "few slots": (*bad("narrow", bits=b"\x07"), r"tables of 2\^7"),
    "many slots": (*bad("coded", bits=b"\x0d"), r"tables of 2\^13"),
    "no rows": (*bad("neighbours", rows=b"\0"), "0 rows"),
    "rows that do not divide": (*bad("neighbours", rows=b"\x07"), "7 rows"),
    "more rows than elements": (*bad("neighbours", rows=varint(2 * N)), "240 rows"),
    "2^64 - 1 rows": (*bad("neighbours", rows=varint(2**64 - 1)), "rows"),
    "no planes": (*bad("neighbours", planes=b"\0"), "0 planes"),
    "planes that do not divide": (*bad("classes", planes=b"\x05"), "5 planes"),
    "kernels of no width": (*bad("neighbours", kernel=b"\0\4"), "no width"),
    "no classes": (*bad("classes", classes=b"\0"), "0 classes"),
    "one class": (*bad("classes", classes=b"\1"), "1 classes"),
    "too many classes of neighbours": (
        *matrix(10, 12, classes=22, side=NEIGHBOURS),
        "22 classes of side 1",
    ),
    "offset, too large": (*matrix(10, 12, offset=1025), "offset 1025"),
    "offset, too small": (*matrix(10, 12, offset=-1025), "offset -1025"),
    "more than n / 4 classes": (*matrix(8, 7), "classes of 8 rows and 7 channels"),
    "more than 65536 columns": (*matrix(1, 3277, planes=20), "65540 columns"),
    "class run, a word too many": (
        *bad("classes", class_run=prefixed(CLASS_RUN + b"\0\0")),
        "2 bytes too many",
    ),
    "class run, a state too large": (
        *bad("classes", class_run=prefixed(b"\xff" * 4 + CLASS_RUN[4:])),
        "state out of",
    ),
    "class run of 2^64 - 1 bytes": (*bad("classes", class_run=varint(2**64 - 1)), "bytes at"),
    "rank 0": (*bad("prediction", rank=b"\0"), "rank 0"),
    "rank 65": (*factors(132, 132, 65), "rank 65"),
    "scale": (*bad_payload("prediction", scale=21), "scale 21"),
    "more factors than elements": (*factors(20, 20, 11), "more factors"),
    "a factor of -128": (*with_factor(-128), "factor of -128"),
    "too many classes of fractions": (
        *bad_payload(
            "prediction",
            planes=1,
            classes=52,
            row_classes=some(10),
            channel_classes=some(12),
        ),
        "52 classes of side 2",
    ),
    "a table beyond 255": (*bad_bounds(200, 56, 0), "200..256"),
    "a rest beyond the last": (*bad_bounds(0, 5, 6), "0..5 with 6"),
    "an index above 79": (*bad_table(80), "index 80"),
    "an index below 0": (*bad_table(-1), "index -1"),
    "frequencies of all slots": (*bad_table(40, 40), "frequency 0 of the rest"),
    "frequencies of too many slots": (*bad_table(40, 41), "frequency -16 of the rest"),
    "a rest of 4096": (*zeros(0), "frequency 4096 of the rest"),
    "a sparse chunk, longer": (*bad_chunk("sparse", CHUNK_OF_SPARSE + b"\0"), "of binary code"),
    "a sparse chunk, shorter": (*bad_chunk("sparse", CHUNK_OF_SPARSE[:-1]), "."),
    "a sparse chunk of nothing": (*bad_chunk("sparse", b""), "."),
    "a sparse chunk that ends otherwise": (
        *bad_chunk("sparse", CHUNK_OF_SPARSE[:-1] + bytes([CHUNK_OF_SPARSE[-1] + 1])),
        "code that ends in",
    ),
    "a gap beyond the chunk": (
        *bad_chunk("sparse", written(GOOD["sparse"].tokens, beyond=1)),
        "of 120 tokens",
    ),
    "a sparse token above 255": (*bad("sparse", usual=b"\xff"), "token 256"),
    "a sparse token below 0": (
        *bad("sparse", usual=b"\0", chunks=written(3 - GOOD["sparse"].tokens)),
        ".",
    ),
    "too many exceptions": (
        *bad("coded", exceptions=varint(N + 1) + bytes(5 * N + 5)),
        "121 exceptions",
    ),
    "an exception behind the end": (
        *bad("coded", exceptions=b"\1" + varint(N) + bytes(4)),
        "behind the end",
    ),
    "exceptions that wrap around": (
        *bad("coded", exceptions=b"\2\5" + varint(2**64 - 3) + bytes(8)),
        "behind the end",
    ),
}


def quad_table(*indices: int, bits: int = 12) -> tuple[Table, bytes]:
    """Tables in which kinds 1 and above have these indices."""
    group = QuadGroup(Binary(), bits)
    table = group.quads([0, *indices, *[0] * (14 - len(indices))])
    group.table(0, 1, 0, [0, 1, *bytes(254)])
    return table, prefixed(group.binary.finish())


def bad_quads(*indices: int, bits: int = 12) -> tuple[bytes, int]:
    return bad("quads", bits=bytes([bits]), tables=quad_table(*indices, bits=bits)[1])


def usual_alone(*indices: int, bits: int = 12) -> tuple[bytes, int]:
    """Usual tokens alone, with such a table."""
    table, tables = quad_table(*indices, bits=bits)
    run = write_run([0] * 40, [table] * 40, 4, bits)
    length = len(run).to_bytes(4, "little")
    payload = replace(GOOD["quads"], tokens=np.full(N, USUAL), spelled=0.0, bits=bits)
    return write(payload, tables=tables, lengths=length, chunks=run), N


CHUNK_OF_QUADS = pieces(GOOD["quads"])["chunks"]
HALF = np.repeat([7, USUAL], N // 2)
EDGE |= {
    "quads: the least usual token": bad_payload("quads", usual=1, tokens=near(N) % 3),
    "quads: the largest usual token": bad_payload("quads", usual=254, tokens=255 - near(N) % 3),
    "quads: half of all tokens behind quads": bad_payload("quads", tokens=HALF, spelled=0.0),
    "quads: 16 columns": bad_payload("quads", tokens=near(5 * 16), rows=5),
    "quads: one group": bad_payload("quads", rows=4),
    "quads: a quad 0 of 4088 slots": usual_alone(1),
    "quads: a quad 0 of one slot": usual_alone(*[1] * 14, bits=8),
}
BAD |= {
    "quads: a usual token of 0": (*bad("quads", usual=b"\0"), "usual token of 0"),
    "quads: a usual token of 255": (*bad("quads", usual=b"\xff"), "usual token of 255"),
    "quads: a side": (*bad("quads", flags=b"\5"), "flags 5"),
    "quads: a flag that is none": (*bad("quads", flags=b"\x11"), "flags 17"),
    "quads: few slots": (*bad("quads", bits=b"\7"), r"tables of 2\^7"),
    "quads: small chunks": (*bad("quads", chunk_size=b"\x0b"), r"chunks of 2\^11"),
    "quads: 15 columns": (*bad_payload("quads", tokens=near(15 * 8), rows=8), "15 columns"),
    "quads: 3 rows": (*bad_payload("quads", rows=3), "quads of 3 rows"),
    "quads: rows that do not divide": (*bad("quads", rows=b"\7"), "7 rows"),
    "quads: more rows than elements": (*bad("quads", rows=varint(2**63)), "rows"),
    "quads: planes that do not divide": (*bad("quads", planes=b"\3"), "3 planes"),
    "quads: too many tokens behind quads": (
        *bad_payload("quads", tokens=np.append(7, HALF[:-1]), spelled=0.0),
        "61 tokens behind quads",
    ),
    "quads: a word too many": (*bad_chunk("quads", CHUNK_OF_QUADS + b"\0\0"), "too many"),
    "quads: a word too few": (*bad_chunk("quads", CHUNK_OF_QUADS[:-2]), "2 bytes at"),
    "quads: states alone": (*bad_chunk("quads", CHUNK_OF_QUADS[:16]), "2 bytes at"),
    "quads: an index below 0": (*bad_quads(-1), "index -1 of kind 1"),
    "quads: an index above 79": (*bad_quads(80), "index 80 of kind 1"),
    "quads: frequencies of all slots": (
        *bad_quads(*[0] * 13, 72, bits=11),
        "frequency 0 of quad 0",
    ),
    "quads: a quad 0 of 4096 slots": (*bad_quads(0), "frequency 4096 of quad 0"),
}
