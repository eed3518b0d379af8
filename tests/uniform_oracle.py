"""A second decoder of `uniform`, from docs/format.md alone: slow, and as plain as that page.

It shares no line with the codec, so where both read a payload alike, the page is right too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tests.uniform_oracle_codes import (
    BLOCK,
    Binary,
    Bit,
    Bytes,
    Group,
    Ints,
    Number,
    QuadGroup,
    Run,
    Table,
    check,
    read_blocks,
    read_planes,
    unzigzag,
)

IDS: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
STORED, CONSTANT, BLOCKS, CODED, SPARSE, QUADS = range(6)
NONE, NEIGHBOURS, PREDICTION = range(3)
VALUES: Final = {NONE: 1, NEIGHBOURS: 12, PREDICTION: 5}  # how many a side has
SIDE_BITS: Final = 12


@dataclass
class Read:
    """What a payload says of itself, and its elements."""

    mode: int
    shift: int = 0
    chunks: int = 0
    states: int = 0
    bits: int = 0
    rows: int = 1
    planes: int = 1
    width: int = 1
    centre: int = 0
    side: int = NONE
    classes: int = 1
    rank: int = 0
    scale: int = 0
    tables: int = 0  # that were written, which may be fewer than there are contexts
    exceptions: int = 0
    elements: Any = None


def decode(payload: bytes, n: int, dtype: Any) -> np.ndarray:
    """The n elements of a payload.

    Raises:
        ValueError: docs/format.md says that it must be refused.
    """
    return read(payload, n, dtype).elements


def read(payload: bytes, n: int, dtype: Any) -> Read:
    """The n elements of a payload, and how they are coded; raises as `decode` does."""
    dtype = np.dtype(dtype)
    data = Bytes(payload)
    head = data.byte()
    out = Read(mode=head & 15)
    check(head >> 4 == IDS[dtype.name], f"dtype {head >> 4} of {dtype}")
    check(out.mode <= QUADS, f"mode {out.mode}")
    if out.mode == STORED:
        out.elements = np.frombuffer(data.take(n * dtype.itemsize), dtype)
        data.end()
        return out

    check(n >= 1, "no elements")
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    step = np.frombuffer(data.take(wide.itemsize), wide)[0]
    check(bool(np.isfinite(step)) and step >= 0, f"step {step}")
    base = unzigzag(data.varint())
    check(-(2**31) <= base < 2**31, f"base {base}")

    k = np.full(n, base, np.int64)
    if out.mode == QUADS:
        k += read_quads(data, n, out)
    elif out.mode != CONSTANT:
        out.shift = data.byte()
        check(out.shift <= 14, f"shift {out.shift}")
        low = read_planes(data, n, [out.shift] * -(-n // BLOCK))
        usual = data.byte() if out.mode == SPARSE else 0
        size = read_chunk_size(data)
        if out.mode == CODED:
            model = read_model(data, n, out)
            if out.side == NEIGHBOURS:
                kernels = BLOCK * out.planes
                size = max(1, size // kernels) * kernels
        counts = [min(size, n - start) for start in range(0, n, size)]
        out.chunks = len(counts)
        lengths = [int.from_bytes(data.take(4), "little") for _ in counts]
        tokens = np.empty(n, np.int64)
        for i, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            chunk, start = Bytes(data.take(length)), i * size
            where = slice(start, start + count)
            if out.mode == BLOCKS:
                tokens[where] = read_blocks(chunk, count)
            elif out.mode == SPARSE:
                tokens[where] = read_sparse(chunk.data, count, usual)
            elif out.side == NEIGHBOURS:
                tokens[where] = read_by_plane(chunk, model.classes[where], model, out)
            else:
                contexts = model.sides[where] * out.classes + model.classes[where]
                run = Run(chunk, out.states, out.bits)
                tokens[where] = run.take(map(model.tables.__getitem__, contexts.tolist()))
                run.end()
        k += (tokens << out.shift) + low
        if out.mode == CODED:
            k += model.predictions

    wrapped = (k & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    with np.errstate(all="ignore"):
        y = (wrapped.astype(wide) * step).astype(dtype)
    out.exceptions = data.varint()
    check(out.exceptions <= n, f"{out.exceptions} exceptions of {n} elements")
    gaps = [data.varint() for _ in range(out.exceptions)]
    positions = [position + i for i, position in enumerate(np.cumsum(gaps, dtype=object).tolist())]
    check(not positions or positions[-1] < n, "an exception behind the end")
    y[positions] = np.frombuffer(data.take(out.exceptions * dtype.itemsize), dtype)
    data.end()
    out.elements = y
    return out


def read_chunk_size(data: Bytes) -> int:
    bits = data.byte()
    check(12 <= bits <= 24, f"chunks of 2^{bits}")
    return 1 << bits


# Mode 4


class SparseModels:
    """What the numbers of a sparse chunk are expected to be."""

    def __init__(self) -> None:
        self.gaps = [Number(25) for _ in range(12)]
        self.lately = 256
        self.negative = [Bit(), Bit()]
        self.magnitude = [Number(), Number()]
        self.last = 0

    @property
    def gap(self) -> Number:
        return self.gaps[min((self.lately >> 3).bit_length(), 11)]

    def after(self, gap: int) -> None:
        self.lately += 2 * gap - (self.lately >> 3)


def read_sparse(data: bytes, n: int, usual: int) -> Ints:
    """The tokens of a chunk in mode 4."""
    binary, models = Binary(data), SparseModels()
    tokens, at = np.full(n, usual, np.int64), 0
    while at < n:
        gap = binary.number(models.gap, 3)
        models.after(gap)
        check(gap <= n - at, f"a gap of {gap} at {at} of {n} tokens")
        at += gap
        if at < n:
            negative = binary.bit(models.negative[models.last])
            size = binary.number(models.magnitude[models.last]) + 1
            models.last = negative
            tokens[at] = usual - size if negative else usual + size
            check(0 <= tokens[at] <= 255, f"token {tokens[at]}")
            at += 1
    binary.end()
    return tokens


# Mode 3


@dataclass
class Model:
    """What codes the tokens: a table for each context, and of what class and side is each element.

    The sides of neighbours are not among them: they are known when the neighbours are.
    """

    tables: list[Table]
    classes: Ints
    sides: Ints
    predictions: Ints


def read_model(data: Bytes, n: int, out: Read) -> Model:
    with_classes = read_flags(data, VALUES, out)
    model = Model([], *(np.zeros(n, np.int64) for _ in range(3)))

    columns = 0
    if with_classes or out.side:
        columns = read_geometry(data, n, out)
        if out.side == NEIGHBOURS:
            out.width, out.centre = data.byte(), data.byte()
            check(out.width >= 1, "a kernel of no width")
    if with_classes:
        classes = read_classes(data, n, columns, out)
        model.classes = classes_of(*classes, out.planes, out.classes).reshape(-1)
    if out.side == PREDICTION:
        model.predictions, model.sides = read_factors(data, n, columns, out)

    group = Group(data.prefixed(), out.bits)
    follows = Bit()
    for context in range(VALUES[out.side] * out.classes):
        if context == 0 or group.binary.bit(follows):
            model.tables.append(group.table())
            out.tables += 1
        else:
            model.tables.append(model.tables[-1])
    return model


def read_flags(data: Bytes, sides: Collection[int], out: Read) -> bool:
    """Flags and slots of a model: whether there are classes."""
    flags, out.bits = data.byte(), data.byte()
    out.states = 4 if flags & 1 else 32
    out.side = flags >> 2
    check(out.side in sides, f"flags {flags}")
    check(8 <= out.bits <= 12, f"tables of 2^{out.bits}")
    return bool(flags & 2)


def read_geometry(data: Bytes, n: int, out: Read) -> int:
    """Rows and planes: how many columns there are."""
    out.rows = data.varint()
    check(out.rows >= 1 and n % out.rows == 0, f"{out.rows} rows of {n} elements")
    columns = n // out.rows
    out.planes = data.byte()
    check(out.planes >= 1 and columns % out.planes == 0, f"{out.planes} planes of {columns}")
    return columns


def read_side_run(data: Bytes, count: int, tables: int, which: Callable[[int], int]) -> Ints:
    """A side run of so many symbols and tables; ``which`` table is that of symbol i."""
    group = Group(data.prefixed(), SIDE_BITS)
    have = [group.table() for _ in range(tables)]
    run = Run(Bytes(data.prefixed()), 4 if count < 8192 else 32, SIDE_BITS)
    symbols = run.take(have[which(i)] for i in range(count))
    run.end()
    return np.array(symbols, np.int64)


def read_classes(data: Bytes, n: int, columns: int, out: Read) -> tuple[Ints, Ints, int]:
    """The classes of rows and of channels, and their offset."""
    out.classes = data.byte()
    check(out.classes >= 2, f"{out.classes} classes")
    check(out.classes * VALUES[out.side] <= 256, f"{out.classes} classes of side {out.side}")
    offset = unzigzag(data.varint())
    check(-1024 <= offset <= 1024, f"offset {offset}")
    channels = columns // out.planes
    check(4 * (out.rows + channels) <= n, f"classes of {out.rows} rows and {channels} channels")
    check(columns <= 65536, f"classes of {columns} columns")
    written = np.cumsum(read_side_run(data, out.rows + channels, 1, lambda i: 0)) % 256
    return written[: out.rows], written[out.rows :], offset


def classes_of(rows: Ints, channels: Ints, offset: int, planes: int, classes: int) -> Ints:
    """The class of each element, rows x columns."""
    both = rows[:, None] + np.repeat(channels, planes)
    return np.clip(both - offset, 0, classes - 1)


def read_factors(data: Bytes, n: int, columns: int, out: Read) -> tuple[Ints, Ints]:
    """The prediction of each element, and its fraction."""
    rank, out.scale = data.byte(), data.byte()
    out.rank = rank
    check(1 <= rank <= 64, f"rank {rank}")
    check(out.scale <= 20, f"scale {out.scale}")
    check((out.rows + columns) * rank <= n, "more factors than elements")
    left = read_side_run(data, out.rows * rank, rank, lambda i: i % rank)
    right = read_side_run(data, columns * rank, rank, lambda i: i // columns)
    check(bool(left.all() and right.all()), "a factor of -128")
    left, right = (left - 128).reshape(out.rows, rank), (right - 128).reshape(rank, columns)
    return predictions_of(left, right, out.scale)


def predictions_of(left: Ints, right: Ints, scale: int) -> tuple[Ints, Ints]:
    """The prediction of each element, and its fraction."""
    sums = (left @ right).reshape(-1)
    sums += 1 << scale - 1 if scale else 0
    return sums >> scale, 5 * (sums % (1 << scale)) >> scale


def read_by_plane(data: Bytes, classes: Ints, model: Model, out: Read) -> Ints:
    """The tokens of a chunk whose sides are neighbours."""
    run = Run(data, out.states, out.bits)
    of_kernels = classes.reshape(-1, out.planes)
    tokens = np.empty(of_kernels.shape, np.int64)
    for position in range(out.planes):
        side = neighbours_of(tokens, position, out.width, out.centre)
        contexts = side * out.classes + of_kernels[:, position]
        tokens[:, position] = run.take(map(model.tables.__getitem__, contexts.tolist()))
    run.end()
    return tokens.reshape(-1)


def neighbours_of(tokens: Ints, position: int, width: int, centre: int) -> Ints:
    """The sides of the elements at one position, of tokens by kernel and position."""
    left = tokens[:, position - 1] - centre if position % width > 0 else None
    above = tokens[:, position - width] - centre if position >= width else None
    if left is not None and above is not None:
        return 3 + np.clip(left + above, -3, 3)
    one = left if left is not None else above
    return np.full(len(tokens), 9) if one is None else 9 + np.clip(one, -2, 2)


# Mode 5


def read_quads(data: Bytes, n: int, out: Read) -> Ints:
    """The tokens of all elements."""
    usual = data.byte()
    check(1 <= usual <= 254, f"a usual token of {usual}")
    size = read_chunk_size(data)
    with_classes = read_flags(data, [NONE], out)
    columns = read_geometry(data, n, out)
    check(columns >= 16, f"quads of {columns} columns")
    check(4 <= out.rows < 2**32, f"quads of {out.rows} rows")
    classes = np.zeros(out.rows, np.int64), np.zeros(columns // out.planes, np.int64), 0
    if with_classes:
        classes = read_classes(data, n, columns, out)
    groups, contexts = groups_of(*classes, out.planes, out.classes)

    group = QuadGroup(data.prefixed(), out.bits)
    follows, tables = Bit(), list[Table]()
    for context in range(out.classes):
        if context == 0 or group.binary.bit(follows):
            tables.append(group.quads())
            out.tables += 1
        else:
            tables.append(tables[-1])
    of_others = group.table()

    ends = [min(start + size, contexts.size) for start in range(0, contexts.size, size)]
    out.chunks = len(ends)
    lengths = [int.from_bytes(data.take(4), "little") for _ in ends]
    tokens, all_others = np.empty((out.rows, columns), np.int64), 0
    for end, length in zip(ends, lengths, strict=True):
        start = (end - 1) // size * size
        run = Run(Bytes(data.take(length)), out.states, out.bits)
        quads = np.array(run.take(tables[c] for c in contexts[start:end]), np.int64)
        for row, where, i, at in pieces_of(groups, columns, start, end):
            tokens[row, where] = digits = quads[at - start :][: where.stop - where.start] >> i & 3
            tokens[row, where] += np.where(digits == 2, -3, 0) + usual
            tokens[row, where][digits == 3] = -1
        for row, where, _, _ in pieces_of(groups, columns, start, end):
            others = tokens[row, where] < 0
            all_others += int(others.sum())
            check(all_others <= n // 2, f"{all_others} tokens behind quads of {n}")
            tokens[row, where][others] = run.take([of_others] * int(others.sum()))
        run.end()
    return tokens.reshape(-1)


def groups_of(
    rows: Ints, channels: Ints, offset: int, planes: int, classes: int
) -> tuple[list[list[int]], Ints]:
    """The rows that stand together, and the class of each quad."""
    order = sorted(range(len(rows)), key=lambda row: int(rows[row]))
    groups = [order[start : start + 4] for start in range(0, len(order), 4)]
    means = np.array([int(rows[group].sum()) // len(group) for group in groups])
    return groups, classes_of(means, channels, offset, planes, classes).reshape(-1)


def pieces_of(
    groups: list[list[int]], columns: int, start: int, end: int
) -> Iterator[tuple[int, slice, int, int]]:
    """What quads from ``start`` to ``end`` say: a row, columns of it, and where its digits begin.

    Those are: how many bits lie below them, and in which quad they begin.
    """
    for g, group in enumerate(groups):
        first, last = max(start, g * columns), min(end, (g + 1) * columns)
        if first < last:
            for i, row in enumerate(group):
                yield row, slice(first - g * columns, last - g * columns), 2 * i, first
