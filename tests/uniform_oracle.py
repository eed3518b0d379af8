"""A second decoder of `uniform`, from docs/format.md alone: slow, and as plain as that page.

It shares no line with the codec, so where both read a payload alike, the page is right too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np

Ints = np.ndarray  # of int64

IDS: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
STORED, CONSTANT, BLOCKS, CODED, SPARSE = range(5)
NONE, NEIGHBOURS, PREDICTION = range(3)
VALUES: Final = {NONE: 1, NEIGHBOURS: 12, PREDICTION: 5}  # how many a side has
BLOCK: Final = 128
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
    check(out.mode <= SPARSE, f"mode {out.mode}")
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
    if out.mode != CONSTANT:
        out.shift = data.byte()
        check(out.shift <= 14, f"shift {out.shift}")
        low = read_planes(data, n, [out.shift] * -(-n // BLOCK))
        usual = data.byte() if out.mode == SPARSE else 0
        chunk_bits = data.byte()
        check(12 <= chunk_bits <= 24, f"chunks of 2^{chunk_bits}")
        size = 1 << chunk_bits
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


# Bytes and numbers


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


class Bytes:
    """Bytes that are read one after another."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = bytes(data), 0

    def take(self, n: int) -> bytes:
        check(n <= len(self.data) - self.at, f"{n} bytes at {self.at} of {len(self.data)}")
        self.at += n
        return self.data[self.at - n : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        value = 0
        for i in range(10):
            byte = self.byte()
            value |= (byte & 127) << 7 * i
            if byte < 128:
                check(value < 2**64, "a varint of more than 64 bits")
                return value
        raise ValueError("a varint of more than 10 bytes")

    def prefixed(self) -> bytes:
        """A varint and so many bytes."""
        return self.take(self.varint())

    def end(self) -> None:
        check(self.at == len(self.data), f"{len(self.data) - self.at} bytes too many")


def unzigzag(v: int) -> int:
    return -(v + 1 >> 1) if v & 1 else v >> 1


def clamp(x: int, low: int, high: int) -> int:
    return min(max(x, low), high)


# Blocks of 128


def read_planes(data: Bytes, n: int, widths: list[int]) -> Ints:
    """n numbers: for every 128 so many bits each, as planes of 16 bytes, lowest bit first."""
    out = []
    for width in widths:
        block = np.zeros(BLOCK, np.int64)
        for bit in range(width):
            plane = np.frombuffer(data.take(BLOCK // 8), np.uint8)
            block |= np.unpackbits(plane, bitorder="little").astype(np.int64) << bit
        out.append(block)
    return np.concatenate(out)[:n]


def read_blocks(data: Bytes, n: int) -> Ints:
    """The tokens of a chunk in mode 2."""
    heads = [(data.byte(), data.byte()) for _ in range(-(-n // BLOCK))]
    check(all(width <= 8 for _, width in heads), "a block of more than 8 bits")
    above = read_planes(data, n, [width for _, width in heads])
    data.end()
    return (above + np.repeat([least for least, _ in heads], BLOCK)[:n]) % 256


# Runs


class Table:
    """Frequencies of symbols, and whose slot is which."""

    def __init__(self, frequencies: list[int]) -> None:
        self.frequencies = frequencies
        self.firsts = [0, *accumulate(frequencies)]
        self.slots = b"".join(bytes([s]) * f for s, f in enumerate(frequencies))


class Run:
    """Symbols coded by rANS with several states."""

    def __init__(self, data: Bytes, states: int, bits: int) -> None:
        self.data, self.bits = data, bits
        self.x = [int.from_bytes(data.take(4), "little") for _ in range(states)]
        check(all(2**15 <= x < 2**31 for x in self.x), "a state out of range")
        self.i = 0

    def take(self, tables: Iterable[Table]) -> list[int]:
        """The next symbols, each by its table."""
        out = []
        for table in tables:
            state = self.i % len(self.x)
            x = self.x[state]
            slot = x % (1 << self.bits)
            symbol = table.slots[slot]
            x = table.frequencies[symbol] * (x >> self.bits) + slot - table.firsts[symbol]
            if x < 2**15:
                x = x << 16 | int.from_bytes(self.data.take(2), "little")
            self.x[state] = x
            self.i += 1
            out.append(symbol)
        return out

    def end(self) -> None:
        self.data.end()
        check(all(x == 2**15 for x in self.x), "a state does not end as it began")


# Binary code


class Bit:
    """A model of a bit."""

    def __init__(self) -> None:
        self.p, self.count = 1 << 15, 0

    def learn(self, bit: int) -> None:
        if self.count < 4:
            self.count += 1
            rate = self.count
        else:
            rate = 5
        self.p += (65535 - self.p) >> rate if bit else -(self.p >> rate)
        self.p = clamp(self.p, 64, 65472)


class Number:
    """The models of a number."""

    def __init__(self, widths: int = 10) -> None:
        self.more = [Bit() for _ in range(widths)]
        self.digit = [[Bit() for _ in range(widths)] for _ in range(widths)]


class Binary:
    """An adaptive binary decoder."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.low, self.high, self.code = 0, 2**32 - 1, 0
        for _ in range(4):
            self.code = self.code << 8 | self.next()

    def next(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def bit(self, model: Bit) -> int:
        middle = self.low + ((self.high - self.low) * model.p >> 16)
        bit = int(self.code <= middle)
        if bit:
            self.high = middle
        else:
            self.low = middle + 1
        model.learn(bit)
        while self.low >> 24 == self.high >> 24:
            self.low = self.low << 8 & 0xFFFFFFFF
            self.high = self.high << 8 & 0xFFFFFFFF | 255
            self.code = self.code << 8 & 0xFFFFFFFF | self.next()
        return bit

    def number(self, model: Number, modelled: int = 10) -> int:
        w = 0
        while w < len(model.more) - 1 and self.bit(model.more[w]):
            w += 1
        v = 1
        for i in reversed(range(w)):
            v = v << 1 | self.bit(model.digit[w][i] if i >= w - modelled else Bit())
        return v - 1

    def end(self) -> None:
        last = (self.low >> 24) + 1 if self.low else 0
        needed = self.at - 4 + (self.low > 0)
        check(len(self.data) == needed, f"{len(self.data)} bytes of binary code, not {needed}")
        check(self.code == last << 24, f"binary code that ends in {self.code:x}")


# Tables


def frequency(index: int) -> int:
    return index if index < 8 else (8 + index % 8) << index // 8 - 1


FREQUENCIES: Final = [frequency(index) for index in range(81)]


def nearest(f: int) -> int:
    """The index whose frequency is nearest, the lower of two."""
    return min(range(81), key=lambda index: (abs(FREQUENCIES[index] - f), index))


def guess(s: int, first: int, rest: int, indices: list[int], before: list[int]) -> int:
    """What the index of symbol s is guessed to be, from the indices of this table and the last."""
    t = s - 2 if s - 1 == rest else s - 1
    return before[s] if t < first else clamp(indices[t] + before[s] - before[t], 0, 79)


class Group:
    """Tables that are written one after another."""

    def __init__(self, data: bytes, bits: int) -> None:
        self.binary, self.bits = Binary(data), bits
        self.bound, self.size = Number(), [Number() for _ in range(3)]
        self.before = [0] * 256

    def table(self) -> Table:
        first = self.binary.number(self.bound)
        last = first + self.binary.number(self.bound)
        rest = first + self.binary.number(self.bound)
        check(first <= rest <= last <= 255, f"a table of {first}..{last} with {rest}")
        indices, z = [0] * 256, 0
        for s in range(first, last + 1):
            if s == rest:
                continue
            e = unzigzag(self.binary.number(self.size[z]))
            indices[s] = guess(s, first, rest, indices, self.before) + e
            check(0 <= indices[s] <= 79, f"index {indices[s]}")
            z = 0 if e == 0 else 2 if abs(e) > 4 else 1
        frequencies = [FREQUENCIES[index] for index in indices]
        frequencies[rest] = (1 << self.bits) - sum(frequencies)
        check(1 <= frequencies[rest] <= 4095, f"frequency {frequencies[rest]} of the rest")
        indices[rest] = nearest(frequencies[rest])
        self.before = indices
        return Table(frequencies)


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
    flags, out.bits = data.byte(), data.byte()
    out.states = 4 if flags & 1 else 32
    with_classes, out.side = bool(flags & 2), flags >> 2
    check(out.side in VALUES, f"flags {flags}")
    check(8 <= out.bits <= 12, f"tables of 2^{out.bits}")
    model = Model([], *(np.zeros(n, np.int64) for _ in range(3)))

    columns = 0
    if with_classes or out.side:
        out.rows = data.varint()
        check(out.rows >= 1 and n % out.rows == 0, f"{out.rows} rows of {n} elements")
        columns = n // out.rows
        out.planes = data.byte()
        check(out.planes >= 1 and columns % out.planes == 0, f"{out.planes} planes of {columns}")
        if out.side == NEIGHBOURS:
            out.width, out.centre = data.byte(), data.byte()
            check(out.width >= 1, "a kernel of no width")
    if with_classes:
        model.classes = read_classes(data, n, columns, out)
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


def read_side_run(data: Bytes, count: int, tables: int, which: Callable[[int], int]) -> Ints:
    """A side run of so many symbols and tables; ``which`` table is that of symbol i."""
    group = Group(data.prefixed(), SIDE_BITS)
    have = [group.table() for _ in range(tables)]
    run = Run(Bytes(data.prefixed()), 4 if count < 8192 else 32, SIDE_BITS)
    symbols = run.take(have[which(i)] for i in range(count))
    run.end()
    return np.array(symbols, np.int64)


def read_classes(data: Bytes, n: int, columns: int, out: Read) -> Ints:
    """The class of each element."""
    out.classes = data.byte()
    check(out.classes >= 2, f"{out.classes} classes")
    check(out.classes * VALUES[out.side] <= 256, f"{out.classes} classes of side {out.side}")
    offset = unzigzag(data.varint())
    check(-1024 <= offset <= 1024, f"offset {offset}")
    channels = columns // out.planes
    check(4 * (out.rows + channels) <= n, f"classes of {out.rows} rows and {channels} channels")
    check(columns <= 65536, f"classes of {columns} columns")
    written = np.cumsum(read_side_run(data, out.rows + channels, 1, lambda i: 0)) % 256
    return classes_of(written[: out.rows], written[out.rows :], offset, out.planes, out.classes)


def classes_of(rows: Ints, channels: Ints, offset: int, planes: int, classes: int) -> Ints:
    """The class of each element."""
    both = rows[:, None] + np.repeat(channels, planes)
    return np.clip(both - offset, 0, classes - 1).reshape(-1)


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
