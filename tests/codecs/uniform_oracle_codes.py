"""What payloads of `uniform` are written in: fields, planes, runs and tables, both ways.

From docs/format.md alone, as uniform_oracle.py beside it is. The same code reads and writes: it is
given what to write, and returns that, or what it has read. What is read is checked. What is written
is not, so that tests can write what must be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Final

import numpy as np

Ints = np.ndarray  # of int64

BLOCK: Final = 128


# Bytes and numbers


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


class Fields:
    """Fields one after another, of bytes that are read or, if there are none, that are written.

    Attributes:
        written: what was written, by the names of the fields.
    """

    def __init__(self, data: bytes | None = None) -> None:
        self.data, self.at = data, 0
        self.written: dict[str, bytes] = {}

    @property
    def reading(self) -> bool:
        return self.data is not None

    def check(self, holds: bool, otherwise: str) -> None:
        check(holds or not self.reading, otherwise)

    def take(self, n: int, value: bytes = b"", name: str = "") -> bytes:
        """The next n bytes; of what is written, all."""
        if self.data is None:
            self.written[name] = self.written.get(name, b"") + value
            return value
        check(n <= len(self.data) - self.at, f"{n} bytes at {self.at} of {len(self.data)}")
        self.at += n
        return self.data[self.at - n : self.at]

    def byte(self, value: int = 0, name: str = "") -> int:
        return self.take(1, bytes([value]), name)[0]

    def varint(self, value: int = 0, name: str = "") -> int:
        if not self.reading:
            self.take(0, varint(value), name)
            return value
        value = 0
        for i in range(10):
            byte = self.byte()
            value |= (byte & 127) << 7 * i
            if byte < 128:
                check(value < 2**64, "a varint of more than 64 bits")
                return value
        raise ValueError("a varint of more than 10 bytes")

    @contextmanager
    def prefixed(self, name: str) -> Iterator[Fields]:
        """Fields behind a varint of how many bytes they take."""
        inner = Fields(self.take(self.varint())) if self.reading else Fields()
        yield inner
        if not self.reading:
            self.take(0, prefixed(bytes(inner)), name)

    def end(self) -> None:
        more = len(self.data or b"") - self.at
        self.check(more == 0, f"{more} bytes too many")

    def __bytes__(self) -> bytes:
        return b"".join(self.written.values())


def varint(value: int) -> bytes:
    groups = []
    while value >= 128:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def prefixed(data: bytes) -> bytes:
    return varint(len(data)) + data


def zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def unzigzag(v: int) -> int:
    return -(v + 1 >> 1) if v & 1 else v >> 1


def clamp(x: int, low: int, high: int) -> int:
    return min(max(x, low), high)


# Blocks of 128


def code_planes(data: Fields, widths: list[int], numbers: Ints, name: str = "") -> Ints:
    """Numbers: for every 128 so many bits each, as planes of 16 bytes, lowest bit first."""
    # The last are filled up with ones that stand for nothing.
    blocks = np.pad(numbers, (0, -len(numbers) % BLOCK), constant_values=1).reshape(-1, BLOCK)
    out = np.zeros_like(blocks)
    for i, width in enumerate(widths):
        for bit in range(width):
            plane = np.packbits((blocks[i] >> bit & 1).astype(np.uint8), bitorder="little")
            taken = np.frombuffer(data.take(BLOCK // 8, plane.tobytes(), name), np.uint8)
            out[i] |= np.unpackbits(taken, bitorder="little").astype(np.int64) << bit
    return out.reshape(-1)[: len(numbers)]


def code_blocks(data: Fields, tokens: Ints) -> Ints:
    """The tokens of a chunk in mode 2."""
    heads = []
    for start in range(0, len(tokens), BLOCK):
        block = tokens[start : start + BLOCK]
        least, most = int(block.min()), int(block.max())
        width = (most - least).bit_length()
        if width == 7:  # the long way round
            least, width = most, 8
        heads.append((data.byte(least), data.byte(width)))
    data.check(all(width <= 8 for _, width in heads), "a block of more than 8 bits")
    least_of = np.repeat([least for least, _ in heads], BLOCK)[: len(tokens)]
    above = code_planes(data, [width for _, width in heads], (tokens - least_of) % 256)
    data.end()
    return (above + least_of) % 256


# Runs


class Table:
    """Frequencies of symbols, and whose slot is which."""

    def __init__(self, frequencies: list[int]) -> None:
        self.frequencies = frequencies
        self.firsts = [0, *accumulate(frequencies)]
        self.slots = b"".join(bytes([s]) * f for s, f in enumerate(frequencies))


class Run:
    """Symbols coded by rANS with several states."""

    def __init__(self, data: Fields, states: int, bits: int) -> None:
        self.data, self.states, self.bits = data, states, bits
        self.x = [int.from_bytes(data.take(4), "little") for _ in range(states) if data.reading]
        check(all(2**15 <= x < 2**31 for x in self.x), "a state out of range")
        self.i = 0
        self.symbols, self.tables = list[int](), list[Table]()  # that wait to be written

    def take(self, tables: Iterable[Table], symbols: Sequence[int] | Ints) -> list[int]:
        """The next symbols, each by its table."""
        if not self.data.reading:
            self.tables.extend(tables)
            self.symbols.extend(symbols)
            return list(symbols)
        out = []
        for table in tables:
            state = self.i % self.states
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
        if not self.data.reading:
            self.data.take(0, write_run(self.symbols, self.tables, self.states, self.bits))
        self.data.end()
        check(all(x == 2**15 for x in self.x), "a state does not end as it began")


def write_run(
    symbols: Sequence[int],
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
    """An adaptive binary coder of bytes that are read or, if there are none, that are written."""

    def __init__(self, data: bytes | None = None) -> None:
        self.data, self.at, self.out = data, 0, bytearray()
        self.low, self.high, self.code = 0, 2**32 - 1, 0
        for _ in range(4):
            self.code = self.code << 8 | self.next()

    def next(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.data and self.at <= len(self.data) else 0

    def bit(self, model: Bit, bit: int = 0) -> int:
        middle = self.low + ((self.high - self.low) * model.p >> 16)
        if self.data is not None:
            bit = int(self.code <= middle)
        if bit:
            self.high = middle
        else:
            self.low = middle + 1
        model.learn(bit)
        while self.low >> 24 == self.high >> 24:
            self.out.append(self.low >> 24)
            self.low = self.low << 8 & 0xFFFFFFFF
            self.high = self.high << 8 & 0xFFFFFFFF | 255
            self.code = self.code << 8 & 0xFFFFFFFF | self.next()
        return bit

    def number(self, model: Number, v: int = 0, modelled: int = 10) -> int:
        w = 0
        while w < len(model.more) - 1 and self.bit(model.more[w], int(v + 1 >> w + 1 > 0)):
            w += 1
        read = 1
        for i in reversed(range(w)):
            of_digit = model.digit[w][i] if i >= w - modelled else Bit()
            read = read << 1 | self.bit(of_digit, v + 1 >> i & 1)
        return read - 1

    def check(self, holds: bool, otherwise: str) -> None:
        check(holds or self.data is None, otherwise)

    def end(self) -> None:
        """Refuse what a sparse chunk does not end with."""
        last = (self.low >> 24) + 1 if self.low else 0
        needed = self.at - 4 + (self.low > 0)
        size = len(self.data or b"")
        self.check(size == needed, f"{size} bytes of binary code, not {needed}")
        self.check(self.code == last << 24, f"binary code that ends in {self.code:x}")

    def exactly(self) -> bytes:
        """What was written, as a sparse chunk must end."""
        return bytes(self.out) + (bytes([(self.low >> 24) + 1]) if self.low else b"")

    def finish(self) -> bytes:
        """What was written, but for zeros at the end."""
        return (bytes(self.out) + self.high.to_bytes(4, "big")[:1]).rstrip(b"\0")


# Tables


def frequency(index: int) -> int:
    return index if index < 8 else (8 + index % 8) << index // 8 - 1


FREQUENCIES: Final = [frequency(index) for index in range(81)]


def nearest(f: int) -> int:
    """The index whose frequency is nearest, the lower of two."""
    return min(range(81), key=lambda index: (abs(FREQUENCIES[index] - f), index))


def largest(f: float) -> int:
    """The largest index whose frequency is no larger."""
    return max(index for index in range(80) if FREQUENCIES[index] <= f)


def guess(s: int, first: int, rest: int, indices: list[int], before: list[int]) -> int:
    """What the index of symbol s is guessed to be, from the indices of this table and the last."""
    t = s - 2 if s - 1 == rest else s - 1
    return before[s] if t < first else clamp(indices[t] + before[s] - before[t], 0, 79)


class Group:
    """Tables one after another."""

    def __init__(self, binary: Binary, bits: int) -> None:
        self.binary, self.bits = binary, bits
        self.bound, self.size = Number(), [Number() for _ in range(3)]
        self.before = [0] * 256

    def table(
        self, first: int = 0, last: int = 0, rest: int = 0, wanted: Sequence[int] = (0,) * 256
    ) -> Table:
        """A table from symbol ``first`` to ``last`` with an index for each but ``rest``."""
        first, last, rest = (
            self.binary.number(self.bound, v) for v in (first, last - first, rest - first)
        )
        last, rest = first + last, first + rest
        self.binary.check(first <= rest <= last <= 255, f"a table of {first}..{last} with {rest}")
        indices, z = [0] * 256, 0
        for s in range(first, last + 1):
            if s == rest:
                continue
            guessed = guess(s, first, rest, indices, self.before)
            e = unzigzag(self.binary.number(self.size[z], zigzag(wanted[s] - guessed)))
            indices[s] = guessed + e
            self.binary.check(0 <= indices[s] <= 79, f"index {indices[s]}")
            z = 0 if e == 0 else 2 if abs(e) > 4 else 1
        frequencies = [FREQUENCIES[index] for index in indices]
        frequencies[rest] = (1 << self.bits) - sum(frequencies)
        self.binary.check(
            1 <= frequencies[rest] <= 4095, f"frequency {frequencies[rest]} of the rest"
        )
        indices[rest] = nearest(frequencies[rest])
        self.before = indices
        return Table(frequencies)

    def table_for(self, symbols: set[int], rng: np.random.Generator) -> Table:
        """A table that, if it is written, has these symbols, and perhaps more of those between."""
        if self.binary.data is not None:
            return self.table()
        first, last = min(symbols, default=0), max(symbols, default=0)
        if first == last:  # one symbol cannot have all of 4096 slots
            first, last = max(first - 1, 0), min(last + 1, 255)
        rest = int(rng.integers(first, last + 1))
        have = {*symbols, first, last, *(s for s in range(first, last) if rng.random() < 0.2)}
        have -= {rest}
        share = rng.random(256) ** 3
        share /= share[sorted(have)].sum()
        spare = (1 << self.bits) - 1 - len(have)
        indices = [largest(1 + int(share[s] * spare)) if s in have else 0 for s in range(256)]
        return self.table(first, last, rest, indices)
