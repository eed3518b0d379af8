"""Payloads of `uniform` with any choices that docs/format.md leaves open, not only fedsz's own.

A `Recipe` says what a payload holds. `pieces` writes it field by field, so that a test can put
something else in the place of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.uniform_oracle import (
    BLOCKS,
    CODED,
    CONSTANT,
    IDS,
    NEIGHBOURS,
    NONE,
    PREDICTION,
    QUADS,
    SIDE_BITS,
    SPARSE,
    STORED,
    VALUES,
    SparseModels,
    classes_of,
    groups_of,
    neighbours_of,
    pieces_of,
    predictions_of,
)
from tests.uniform_oracle_codes import (
    BLOCK,
    KINDS,
    Bit,
    Ints,
    Table,
)
from tests.uniform_writer_codes import (
    BinaryWriter,
    GroupWriter,
    QuadGroupWriter,
    blocks,
    cut,
    planes_of,
    prefixed,
    varint,
    write_blocks,
    write_run,
    zigzag,
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a payload holds. Arrays lie in the order of the tensor."""

    mode: int = CODED
    dtype: Any = np.float32
    step: float = 0.5
    base: int = 0
    tokens: Any  # 0 to 255; of mode 0, the elements
    shift: int = 0
    low: Any = 0  # one for each element, or for all
    chunk_bits: int = 12
    states: int = 4
    bits: int = 12
    rows: int = 1
    planes: int = 1
    side: int = NONE
    width: int = 1
    centre: int = 0
    classes: int = 1
    offset: int = 0
    row_classes: Any = None
    channel_classes: Any = None
    left: Any = None  # rows x rank
    right: Any = None  # rank x columns
    scale: int = 0
    usual: int = 0  # of modes 4 and 5
    spelled: float = 0.0  # of mode 5: the share of digits that are 3 and need not be
    exceptions: Mapping[int, Any] = field(default_factory=dict)
    seed: int = 0  # of the tables

    @property
    def n(self) -> int:
        return len(self.tokens)


def write(recipe: Recipe, **instead: bytes) -> bytes:
    """The payload, with other bytes in the place of pieces."""
    written = pieces(recipe)
    assert instead.keys() <= written.keys()
    return b"".join({**written, **instead}.values())


def pieces(recipe: Recipe) -> dict[str, bytes]:
    """The payload's fields by name, in order."""
    dtype = np.dtype(recipe.dtype)
    out = {"head": bytes([recipe.mode | IDS[dtype.name] << 4])}
    if recipe.mode == STORED:
        return out | {"elements": recipe.tokens.tobytes()}
    wide = np.float64 if dtype == np.float64 else np.float32
    out |= {"step": wide(recipe.step).tobytes(), "base": varint(zigzag(recipe.base))}
    if recipe.mode == QUADS:
        model, chunks = write_quads(recipe)
        out |= {"usual": bytes([recipe.usual]), "chunk_size": bytes([recipe.chunk_bits]), **model}
    elif recipe.mode != CONSTANT:
        size = 1 << recipe.chunk_bits
        low = np.broadcast_to(recipe.low, recipe.n)
        out["shift"] = bytes([recipe.shift])
        out["low"] = b"".join(planes_of(block, recipe.shift) for block in blocks(low))
        if recipe.mode == SPARSE:
            out["usual"] = bytes([recipe.usual])
        out["chunk_size"] = bytes([recipe.chunk_bits])
        if recipe.mode == BLOCKS:
            chunks = [write_blocks(chunk) for chunk in cut(recipe.tokens, size)]
        elif recipe.mode == SPARSE:
            chunks = [write_sparse(chunk, recipe.usual) for chunk in cut(recipe.tokens, size)]
        else:
            model, symbols, tables = write_model(recipe)
            out |= model
            if recipe.side == NEIGHBOURS:
                size = max(1, size // (BLOCK * recipe.planes)) * BLOCK * recipe.planes
            chunks = []
            for chunk in cut(np.arange(recipe.n), size):
                if recipe.side == NEIGHBOURS:
                    chunk = chunk.reshape(-1, recipe.planes).T.reshape(-1)
                of_chunk = [tables[i] for i in chunk]
                chunks.append(write_run(symbols[chunk], of_chunk, recipe.states, recipe.bits))
    if recipe.mode != CONSTANT:
        out["lengths"] = b"".join(len(chunk).to_bytes(4, "little") for chunk in chunks)
        out["chunks"] = b"".join(chunks)
    positions = sorted(recipe.exceptions)
    gaps = np.diff(positions, prepend=-1) - 1
    values = np.array([recipe.exceptions[position] for position in positions], dtype)
    out["exceptions"] = b"".join(map(varint, [len(positions), *gaps.tolist()])) + values.tobytes()
    return out


# Mode 4


def write_sparse(tokens: Ints, usual: int, beyond: int = 0) -> bytes:
    """What `read_sparse` reads, if the last gap does not go ``beyond`` the end."""
    binary, models = BinaryWriter(), SparseModels()
    others = np.flatnonzero(tokens != usual)
    for gap, at in zip(np.diff(others, prepend=-1) - 1, others, strict=True):
        binary.number(models.gap, int(gap), 3)
        models.after(int(gap))
        above = int(tokens[at]) - usual
        binary.bit(models.negative[models.last], int(above < 0))
        binary.number(models.magnitude[models.last], abs(above) - 1)
        models.last = int(above < 0)
    end = int(others[-1]) + 1 if others.size else 0
    if end < len(tokens) or beyond:
        binary.number(models.gap, len(tokens) - end + beyond, 3)
    return binary.exactly()


# Mode 3


def write_model(recipe: Recipe) -> tuple[dict[str, bytes], Ints, list[Table]]:
    """The model's pieces, and the tokens with the table of each."""
    rng = np.random.default_rng(recipe.seed)
    with_classes = recipe.classes > 1
    out = write_flags(recipe)
    classes, sides = np.zeros((2, recipe.n), np.int64)
    if with_classes or recipe.side:
        out |= write_geometry(recipe)
    if recipe.side == NEIGHBOURS:
        out["kernel"] = bytes([recipe.width, recipe.centre])
        kernels = recipe.tokens.reshape(-1, recipe.planes)
        by_position = [
            neighbours_of(kernels, position, recipe.width, recipe.centre)
            for position in range(recipe.planes)
        ]
        sides = np.stack(by_position, axis=1).reshape(-1)
    if with_classes:
        of_both = recipe.row_classes, recipe.channel_classes
        classes = classes_of(*of_both, recipe.offset, recipe.planes, recipe.classes).reshape(-1)
        out |= write_classes(recipe, rng)
    if recipe.side == PREDICTION:
        rank = len(recipe.right)
        out |= {"rank": bytes([rank]), "scale": bytes([recipe.scale])}
        out |= write_side_run("left", recipe.left.reshape(-1) + 128, rank, rng)
        out |= write_side_run("right", recipe.right.reshape(-1) + 128, -rank, rng)
        sides = predictions_of(recipe.left, recipe.right, recipe.scale)[1]

    contexts = sides * recipe.classes + classes
    count = VALUES[recipe.side] * recipe.classes
    spans = shared(count, rng)
    group, follows, tables = GroupWriter(recipe.bits), Bit(), []
    for span in spans:
        if tables:
            group.binary.bit(follows, 1)
        in_span = np.isin(contexts, span)
        table = group.table_for({*recipe.tokens[in_span].tolist()} or {0}, rng)
        tables += [table] * len(span)
        for _ in span[1:]:
            group.binary.bit(follows, 0)
    out["tables"] = prefixed(group.binary.finish())
    return out, recipe.tokens, [tables[context] for context in contexts]


def write_flags(recipe: Recipe) -> dict[str, bytes]:
    flags = int(recipe.states == 4) | (recipe.classes > 1) << 1 | recipe.side << 2
    return {"flags": bytes([flags]), "bits": bytes([recipe.bits])}


def write_geometry(recipe: Recipe) -> dict[str, bytes]:
    return {"rows": varint(recipe.rows), "planes": bytes([recipe.planes])}


def write_classes(recipe: Recipe, rng: np.random.Generator) -> dict[str, bytes]:
    out = {"classes": bytes([recipe.classes]), "offset": varint(zigzag(recipe.offset))}
    steps = np.diff(np.concatenate([recipe.row_classes, recipe.channel_classes]), prepend=0)
    return out | write_side_run("class", steps % 256, 1, rng)


def shared(count: int, rng: np.random.Generator) -> list[Ints]:
    """Contexts that share a table."""
    begins = np.sort(rng.choice(np.arange(1, count), int(rng.integers(count)), replace=False))
    return np.split(np.arange(count), begins)


def write_side_run(
    name: str, symbols: Ints, tables: int, rng: np.random.Generator
) -> dict[str, bytes]:
    """A side run: symbol i has table i mod ``tables``, or by parts where that is negative."""
    group, count = GroupWriter(SIDE_BITS), len(symbols)
    i = np.arange(count)
    which = i % tables if tables > 0 else i // (count // -tables)
    have = [
        group.table_for({*symbols[which == table].tolist()}, rng) for table in range(abs(tables))
    ]
    run = write_run(symbols, [have[table] for table in which], 4 if count < 8192 else 32, SIDE_BITS)
    return {f"{name}_tables": prefixed(group.binary.finish()), f"{name}_run": prefixed(run)}


# Mode 5


def write_quads(recipe: Recipe) -> tuple[dict[str, bytes], list[bytes]]:
    """The model's pieces, and the chunks."""
    rng = np.random.default_rng(recipe.seed)
    columns = recipe.n // recipe.rows
    out = write_flags(recipe) | write_geometry(recipe)
    classes = np.zeros(recipe.rows, np.int64), np.zeros(columns // recipe.planes, np.int64), 0
    if recipe.classes > 1:
        out |= write_classes(recipe, rng)
        classes = recipe.row_classes, recipe.channel_classes, recipe.offset
    groups, contexts = groups_of(*classes, recipe.planes, recipe.classes)

    tokens = recipe.tokens.reshape(recipe.rows, columns)
    digits = np.full(tokens.shape, 3)
    for digit, above in enumerate((0, 1, -1)):
        as_it_is = rng.random(tokens.shape) >= recipe.spelled
        digits[as_it_is & (tokens == recipe.usual + above)] = digit
    quads = rng.integers(0, 256, len(contexts))  # of rows that are not there, any digit
    for row, where, i, at in pieces_of(groups, columns, 0, len(quads)):
        here = slice(at, at + where.stop - where.start)
        quads[here] += (digits[row, where] - (quads[here] >> i & 3)) << i

    group, follows, tables = QuadGroupWriter(recipe.bits), Bit(), list[Table]()
    for span in shared(recipe.classes, rng):
        if tables:
            group.binary.bit(follows, 1)
        kinds = {KINDS[quad] for quad in quads[np.isin(contexts, span)]}
        tables += [group.quads_for(kinds, rng)] * len(span)
        for _ in span[1:]:
            group.binary.bit(follows, 0)
    of_others = group.table_for({*tokens[digits == 3].tolist()} or {0}, rng)
    out["tables"] = prefixed(group.binary.finish())

    chunks = []
    for chunk in cut(np.arange(len(quads)), 1 << recipe.chunk_bits):
        pieces = list(pieces_of(groups, columns, int(chunk[0]), int(chunk[-1]) + 1))
        others = [tokens[row, where][digits[row, where] == 3] for row, where, _, _ in pieces]
        symbols = np.concatenate([quads[chunk], *others])
        of_symbols = [tables[context] for context in contexts[chunk]]
        of_symbols += [of_others] * (len(symbols) - len(chunk))
        chunks.append(write_run(symbols, of_symbols, recipe.states, recipe.bits))
    return out, chunks
