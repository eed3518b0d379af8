"""Payloads of `uniform` with any choices that docs/format.md leaves open, not only fedsz's own.

A `Recipe` says what a payload holds. `pieces` writes it field by field, so that a test can put
something else in the place of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    SIDE_BITS,
    SPARSE,
    STORED,
    VALUES,
    SparseModels,
    classes_of,
    neighbours_of,
    predictions_of,
)
from tests.uniform_oracle_codes import (
    BLOCK,
    FREQUENCIES,
    Bit,
    Ints,
    Number,
    Table,
    guess,
    nearest,
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
    usual: int = 0  # of mode 4
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
    if recipe.mode != CONSTANT:
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
        out["lengths"] = b"".join(len(chunk).to_bytes(4, "little") for chunk in chunks)
        out["chunks"] = b"".join(chunks)
    positions = sorted(recipe.exceptions)
    gaps = np.diff(positions, prepend=-1) - 1
    values = np.array([recipe.exceptions[position] for position in positions], dtype)
    out["exceptions"] = b"".join(map(varint, [len(positions), *gaps.tolist()])) + values.tobytes()
    return out


def varint(value: int) -> bytes:
    groups = []
    while value >= 128:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def prefixed(data: bytes) -> bytes:
    return varint(len(data)) + data


def cut(x: Ints, size: int) -> list[Ints]:
    return [x[start : start + size] for start in range(0, len(x), size)]


# Blocks of 128


def blocks(x: Ints) -> list[Ints]:
    """Every 128 numbers; the last are filled up with ones that stand for nothing."""
    return cut(np.pad(x, (0, -len(x) % BLOCK), constant_values=1), BLOCK)


def planes_of(block: Ints, width: int) -> bytes:
    planes = (block >> np.arange(width)[:, None]) & 1
    return np.packbits(planes.astype(np.uint8), axis=1, bitorder="little").tobytes()


def write_blocks(tokens: Ints) -> bytes:
    heads, planes = [], []
    for block in cut(tokens, BLOCK):
        least, most = int(block.min()), int(block.max())
        width = (most - least).bit_length()
        if width == 7:  # the long way round
            least, width = most, 8
        heads += [least, width]
        planes += [planes_of(filled, width) for filled in blocks((block - least) % 256)]
    return bytes(heads) + b"".join(planes)


# Runs


def write_run(
    symbols: Sequence[int] | Ints,
    tables: Sequence[Table],
    states: int,
    bits: int,
    ends: int = 1 << 15,
) -> bytes:
    """Symbols, each with its table. A reader takes no other ``ends`` of its states than 2^15."""
    x, words = [ends] * states, []
    for i in reversed(range(len(symbols))):
        symbol, table, state = int(symbols[i]), tables[i], x[i % states]
        f = table.frequencies[symbol]
        if state >= f << 31 - bits:
            words.append((state & 0xFFFF).to_bytes(2, "little"))
            state >>= 16
        x[i % states] = (state // f << bits) + state % f + table.firsts[symbol]
    return b"".join([*(state.to_bytes(4, "little") for state in x), *reversed(words)])


# Binary code and tables


class BinaryWriter:
    """What `Binary` reads."""

    def __init__(self) -> None:
        self.low, self.high, self.out = 0, 2**32 - 1, bytearray()

    def bit(self, model: Bit, bit: int) -> None:
        middle = self.low + ((self.high - self.low) * model.p >> 16)
        if bit:
            self.high = middle
        else:
            self.low = middle + 1
        model.learn(bit)
        while self.low >> 24 == self.high >> 24:
            self.out.append(self.low >> 24)
            self.low = self.low << 8 & 0xFFFFFFFF
            self.high = self.high << 8 & 0xFFFFFFFF | 255

    def number(self, models: Number, v: int, modelled: int = 10) -> None:
        w = (v + 1).bit_length() - 1
        for i in range(min(w + 1, len(models.more) - 1)):
            self.bit(models.more[i], int(i < w))
        for i in reversed(range(w)):
            self.bit(models.digit[w][i] if i >= w - modelled else Bit(), v + 1 >> i & 1)

    def exactly(self) -> bytes:
        """The bytes, as a sparse chunk must end."""
        return bytes(self.out) + (bytes([(self.low >> 24) + 1]) if self.low else b"")

    def finish(self) -> bytes:
        """The bytes, but for zeros at the end."""
        return (bytes(self.out) + self.high.to_bytes(4, "big")[:1]).rstrip(b"\0")


class GroupWriter:
    """What `Group` reads."""

    def __init__(self, bits: int) -> None:
        self.binary, self.bits = BinaryWriter(), bits
        self.bound, self.size = Number(), [Number() for _ in range(3)]
        self.before = [0] * 256

    def table(self, first: int, last: int, rest: int, indices: Sequence[int]) -> Table:
        """Write a table, with an index for each symbol. Where they add up to 2^b it is refused."""
        indices = list(indices)
        for v in (first, last - first, rest - first):
            self.binary.number(self.bound, v)
        z = 0
        for s in range(first, last + 1):
            if s != rest:
                e = indices[s] - guess(s, first, rest, indices, self.before)
                self.binary.number(self.size[z], zigzag(e))
                z = 0 if e == 0 else 2 if abs(e) > 4 else 1
        frequencies = [FREQUENCIES[index] for index in indices]
        frequencies[rest] = max(0, (1 << self.bits) - sum(frequencies) + frequencies[rest])
        indices[rest] = nearest(frequencies[rest])
        self.before = indices
        return Table(frequencies)

    def table_for(self, symbols: set[int], rng: np.random.Generator) -> Table:
        """Write a table that has these symbols, and perhaps more of those between."""
        first, last = min(symbols), max(symbols)
        if first == last:  # one symbol cannot have all of 4096 slots
            first, last = max(first - 1, 0), min(last + 1, 255)
        rest = int(rng.integers(first, last + 1))
        have = symbols | {s for s in (first, last, rest) if s != rest} - {rest}
        have |= {s for s in range(first, last) if rng.random() < 0.2}
        have -= {rest}
        share = rng.random(256) ** 3
        share /= share[sorted(have)].sum()
        spare = (1 << self.bits) - 1 - len(have)
        indices = [0] * 256
        for s in have:
            f = 1 + int(share[s] * spare)
            indices[s] = max(index for index in range(80) if FREQUENCIES[index] <= f)
        return self.table(first, last, rest, indices)


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
    flags = int(recipe.states == 4) | with_classes << 1 | recipe.side << 2
    out = {"flags": bytes([flags]), "bits": bytes([recipe.bits])}
    classes, sides = np.zeros((2, recipe.n), np.int64)
    if with_classes or recipe.side:
        out |= {"rows": varint(recipe.rows), "planes": bytes([recipe.planes])}
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
        classes = classes_of(*of_both, recipe.offset, recipe.planes, recipe.classes)
        out |= {"classes": bytes([recipe.classes]), "offset": varint(zigzag(recipe.offset))}
        out |= write_side_run("class", np.diff(np.concatenate(of_both), prepend=0) % 256, 1, rng)
    if recipe.side == PREDICTION:
        rank = len(recipe.right)
        out |= {"rank": bytes([rank]), "scale": bytes([recipe.scale])}
        out |= write_side_run("left", recipe.left.reshape(-1) + 128, rank, rng)
        out |= write_side_run("right", recipe.right.reshape(-1) + 128, -rank, rng)
        sides = predictions_of(recipe.left, recipe.right, recipe.scale)[1]

    contexts = sides * recipe.classes + classes
    count = VALUES[recipe.side] * recipe.classes
    begins = np.sort(rng.choice(np.arange(1, count), int(rng.integers(count)), replace=False))
    spans = np.split(np.arange(count), begins)  # contexts that share a table
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
