"""The codes that payloads of `uniform` are written in: what `uniform_oracle_codes` reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.uniform_oracle_codes import (
    BLOCK,
    FREQUENCIES,
    KINDS,
    Bit,
    Ints,
    Number,
    Table,
    guess,
    nearest,
)


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


class QuadGroupWriter(GroupWriter):
    """What `QuadGroup` reads."""

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.of_kind = [Number() for _ in range(15)]
        self.indices = [0] * 15

    def quads(self, indices: Sequence[int]) -> Table:
        """Write a table with an index for each kind. Where they add up to 2^b it is refused."""
        for k in range(1, 15):
            self.binary.number(self.of_kind[k], zigzag(indices[k] - self.indices[k]))
        self.indices = list(indices)
        frequencies = [FREQUENCIES[indices[k]] for k in KINDS]
        frequencies[0] = max(0, (1 << self.bits) - sum(frequencies[1:]))
        return Table(frequencies)

    def quads_for(self, kinds: set[int], rng: np.random.Generator) -> Table:
        """Write a table that has these kinds, and perhaps others."""
        indices = [int(k in kinds or rng.random() < 0.2) for k in range(15)]
        indices[1] = max(indices[1], 1)  # quad 0 cannot have all of 4096 slots
        for k in rng.permutation(np.arange(1, 15)):
            spare = (1 << self.bits) - 1 - sum(FREQUENCIES[indices[kind]] for kind in KINDS[1:])
            each = FREQUENCIES[indices[k]] + rng.random() * spare / KINDS.count(k)
            if indices[k]:
                indices[k] = max(index for index in range(80) if FREQUENCIES[index] <= each)
        return self.quads(indices)
