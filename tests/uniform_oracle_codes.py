"""What `uniform`'s payloads are written in, for the second decoder: numbers, planes, runs, tables.

From docs/format.md alone, as tests/uniform_oracle.py is.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Final

import numpy as np

Ints = np.ndarray  # of int64

BLOCK: Final = 128


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


def kind(quad: int) -> int:
    """How many digits are 3, and how many 1 or 2, as one number."""
    digits = [quad >> 2 * i & 3 for i in range(4)]
    threes = digits.count(3)
    return threes * (11 - threes) // 2 + digits.count(1) + digits.count(2)


KINDS: Final = [kind(quad) for quad in range(256)]


class QuadGroup(Group):
    """Tables of quads, one after another, and then others."""

    def __init__(self, data: bytes, bits: int) -> None:
        super().__init__(data, bits)
        self.of_kind = [Number() for _ in range(15)]
        self.indices = [0] * 15

    def quads(self) -> Table:
        for k in range(1, 15):
            self.indices[k] += unzigzag(self.binary.number(self.of_kind[k]))
            check(0 <= self.indices[k] <= 79, f"index {self.indices[k]} of kind {k}")
        frequencies = [FREQUENCIES[self.indices[k]] for k in KINDS]
        frequencies[0] = (1 << self.bits) - sum(frequencies[1:])
        check(1 <= frequencies[0] <= 4095, f"frequency {frequencies[0]} of quad 0")
        return Table(frequencies)
