"""What codes the tokens of `uniform`: flags, classes, factors and tables of a model, both ways.

From docs/format.md alone, as tests/codecs/uniform_oracle.py is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from tests.codecs.uniform_oracle_codes import (
    FREQUENCIES,
    Binary,
    Bit,
    Fields,
    Group,
    Ints,
    Number,
    Run,
    Table,
    largest,
    unzigzag,
    zigzag,
)

STORED, CONSTANT, BLOCKS, CODED, SPARSE, QUADS = range(6)
NONE, NEIGHBOURS, PREDICTION = range(3)
VALUES: Final = {NONE: 1, NEIGHBOURS: 12, PREDICTION: 5}  # how many a side has
SIDE_BITS: Final = 12


@dataclass(kw_only=True)
class Payload:
    """What a payload holds. Arrays lie in the order of the tensor."""

    mode: int = CODED
    dtype: Any = np.float32
    step: float = 0.5
    base: int = 0
    tokens: Any  # 0 to 255; of mode 0, the elements
    shift: int = 0
    low: Any = 0  # one for each element, or for all
    chunk_bits: int = 12
    chunks: int = 0  # as read
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
    seed: int = 0  # of the tables that are written
    elements: Any = None  # as read

    @property
    def n(self) -> int:
        return len(self.tokens)

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


# Mode 3


@dataclass
class Model:
    """What codes the tokens: a table for each context, and of what class and side is each element.

    The sides of neighbours are known when the neighbours are.
    """

    tables: list[Table]
    classes: Ints
    sides: Ints
    predictions: Ints


def code_model(data: Fields, p: Payload) -> Model:
    with_classes = code_flags(data, VALUES, p)
    model = Model([], *np.zeros((3, p.n), np.int64))
    columns = code_geometry(data, p) if with_classes or p.side else 0
    if p.side == NEIGHBOURS:
        p.width, p.centre = data.byte(p.width, "kernel"), data.byte(p.centre, "kernel")
        data.check(p.width >= 1, "a kernel of no width")
        if not data.reading:
            of_kernels = p.tokens.reshape(-1, p.planes)
            sides = [neighbours_of(of_kernels, position, p) for position in range(p.planes)]
            model.sides = np.stack(sides, axis=1).reshape(-1)
    if with_classes:
        code_classes(data, columns, p)
        model.classes = classes_of(p.row_classes, p.channel_classes, p).reshape(-1)
    if p.side == PREDICTION:
        model.predictions, model.sides = code_factors(data, columns, p)

    contexts = model.sides * p.classes + model.classes
    with tables_in(data, "tables", Group, p.bits) as group:
        model.tables = code_tables(
            group,
            VALUES[p.side] * p.classes,
            p,
            lambda span: group.table_for({*p.tokens[np.isin(contexts, span)].tolist()}, p.rng),
        )
    return model


AnyGroup = TypeVar("AnyGroup", bound=Group)


@contextmanager
def tables_in(data: Fields, name: str, kind: type[AnyGroup], bits: int) -> Iterator[AnyGroup]:
    """A group of tables behind its length."""
    with data.prefixed(name) as inner:
        group = kind(Binary(inner.data), bits)
        yield group
        inner.take(0, group.binary.finish())


def code_tables(
    group: Group, count: int, p: Payload, table: Callable[[Ints], Table]
) -> list[Table]:
    """A table for each context, or that of the one before: ``table`` codes that of a span."""
    begins = p.rng.random(count) < p.rng.random()
    spans, follows, tables = np.cumsum(begins[1:]), Bit(), list[Table]()
    spans = np.concatenate([[0], spans])
    for context in range(count):
        if context == 0 or group.binary.bit(follows, int(begins[context])):
            tables.append(table(np.flatnonzero(spans == spans[context])))
        else:
            tables.append(tables[-1])
    return tables


def code_flags(data: Fields, sides: Collection[int], p: Payload) -> bool:
    """Flags and slots of a model: whether there are classes."""
    flags = int(p.states == 4) | (p.classes > 1) << 1 | p.side << 2
    flags, p.bits = data.byte(flags, "flags"), data.byte(p.bits, "bits")
    p.states = 4 if flags & 1 else 32
    p.side = flags >> 2
    data.check(p.side in sides, f"flags {flags}")
    data.check(8 <= p.bits <= 12, f"tables of 2^{p.bits}")
    return bool(flags & 2)


def code_geometry(data: Fields, p: Payload) -> int:
    """Rows and planes: how many columns there are."""
    p.rows = data.varint(p.rows, "rows")
    data.check(p.rows >= 1 and p.n % p.rows == 0, f"{p.rows} rows of {p.n} elements")
    columns = p.n // p.rows
    p.planes = data.byte(p.planes, "planes")
    data.check(p.planes >= 1 and columns % p.planes == 0, f"{p.planes} planes of {columns}")
    return columns


def code_side_run(data: Fields, name: str, symbols: Ints, which: Ints, p: Payload) -> Ints:
    """A side run of symbols, and ``which`` table each has."""
    with tables_in(data, f"{name}_tables", Group, SIDE_BITS) as group:
        tables = [
            group.table_for({*symbols[which == table].tolist()}, p.rng)
            for table in range(int(which.max()) + 1)
        ]
    with data.prefixed(f"{name}_run") as inner:
        run = Run(inner, 4 if len(symbols) < 8192 else 32, SIDE_BITS)
        symbols = np.array(run.take((tables[i] for i in which), symbols), np.int64)
        run.end()
    return symbols


def code_classes(data: Fields, columns: int, p: Payload) -> None:
    """The classes of rows and of channels, and their offset."""
    p.classes = data.byte(p.classes, "classes")
    data.check(p.classes >= 2, f"{p.classes} classes")
    data.check(p.classes * VALUES[p.side] <= 256, f"{p.classes} classes of side {p.side}")
    p.offset = unzigzag(data.varint(zigzag(p.offset), "offset"))
    data.check(-1024 <= p.offset <= 1024, f"offset {p.offset}")
    channels = columns // p.planes
    data.check(4 * (p.rows + channels) <= p.n, f"classes of {p.rows} rows and {channels} channels")
    data.check(columns <= 65536, f"classes of {columns} columns")
    both = np.zeros(p.rows + channels, np.int64)
    if not data.reading:
        both = np.concatenate([p.row_classes, p.channel_classes])
    steps = np.diff(both, prepend=0) % 256
    both = np.cumsum(code_side_run(data, "class", steps, np.zeros_like(steps), p)) % 256
    p.row_classes, p.channel_classes = both[: p.rows], both[p.rows :]


def classes_of(rows: Ints, channels: Ints, p: Payload) -> Ints:
    """The class of each element, rows x columns."""
    both = rows[:, None] + np.repeat(channels, p.planes)
    return np.clip(both - p.offset, 0, p.classes - 1)


def code_factors(data: Fields, columns: int, p: Payload) -> tuple[Ints, Ints]:
    """The prediction of each element, and its fraction."""
    rank = data.byte(0 if data.reading else len(p.right), "rank")
    p.scale = data.byte(p.scale, "scale")
    data.check(1 <= rank <= 64, f"rank {rank}")
    data.check(p.scale <= 20, f"scale {p.scale}")
    data.check((p.rows + columns) * rank <= p.n, "more factors than elements")
    if data.reading:
        p.left, p.right = (np.zeros(s, np.int64) for s in ((p.rows, rank), (rank, columns)))
    of_left, of_right = np.arange(p.left.size) % rank, np.arange(p.right.size) // columns
    left = code_side_run(data, "left", p.left.reshape(-1) + 128, of_left, p)
    right = code_side_run(data, "right", p.right.reshape(-1) + 128, of_right, p)
    data.check(bool(left.all() and right.all()), "a factor of -128")
    p.left, p.right = (left - 128).reshape(p.rows, rank), (right - 128).reshape(rank, columns)
    sums = (p.left @ p.right).reshape(-1)
    sums += 1 << p.scale - 1 if p.scale else 0
    return sums >> p.scale, 5 * (sums % (1 << p.scale)) >> p.scale


def neighbours_of(tokens: Ints, position: int, p: Payload) -> Ints:
    """The sides of the elements at one position, of tokens by kernel and position."""
    left = tokens[:, position - 1] - p.centre if position % p.width > 0 else None
    above = tokens[:, position - p.width] - p.centre if position >= p.width else None
    if left is not None and above is not None:
        return 3 + np.clip(left + above, -3, 3)
    one = left if left is not None else above
    return np.full(len(tokens), 9) if one is None else 9 + np.clip(one, -2, 2)


# Mode 5


def kind(quad: int) -> int:
    """How many digits are 3, and how many 1 or 2, as one number."""
    digits = [quad >> 2 * i & 3 for i in range(4)]
    threes = digits.count(3)
    return threes * (11 - threes) // 2 + digits.count(1) + digits.count(2)


KINDS: Final = [kind(quad) for quad in range(256)]


class QuadGroup(Group):
    """Tables of quads, one after another, and then others."""

    def __init__(self, binary: Binary, bits: int) -> None:
        super().__init__(binary, bits)
        self.of_kind = [Number() for _ in range(15)]
        self.indices = [0] * 15

    def quads(self, wanted: Sequence[int] = (0,) * 15) -> Table:
        """A table with an index for each kind but 0."""
        for k in range(1, 15):
            step = self.binary.number(self.of_kind[k], zigzag(wanted[k] - self.indices[k]))
            self.indices[k] += unzigzag(step)
            self.binary.check(0 <= self.indices[k] <= 79, f"index {self.indices[k]} of kind {k}")
        frequencies = [FREQUENCIES[self.indices[k]] for k in KINDS]
        frequencies[0] = (1 << self.bits) - sum(frequencies[1:])
        self.binary.check(1 <= frequencies[0] <= 4095, f"frequency {frequencies[0]} of quad 0")
        return Table(frequencies)

    def quads_for(self, kinds: set[int], rng: np.random.Generator) -> Table:
        """A table that, if it is written, has these kinds, and perhaps others."""
        if self.binary.data is not None:
            return self.quads()
        indices = [int(k in kinds or rng.random() < 0.2) for k in range(15)]
        indices[1] = max(indices[1], 1)  # quad 0 cannot have all of 4096 slots
        for k in rng.permutation(np.arange(1, 15)):
            spare = (1 << self.bits) - 1 - sum(FREQUENCIES[indices[kind]] for kind in KINDS[1:])
            if indices[k]:
                indices[k] = largest(
                    FREQUENCIES[indices[k]] + rng.random() * spare / KINDS.count(k)
                )
        return self.quads(indices)


def groups_of(p: Payload, columns: int) -> tuple[list[list[int]], Ints]:
    """The rows of quads that stand together, and the class of each quad."""
    order = sorted(range(p.rows), key=lambda row: int(p.row_classes[row]))
    groups = [order[start : start + 4] for start in range(0, p.rows, 4)]
    means = np.array([int(p.row_classes[group].sum()) // len(group) for group in groups])
    return groups, classes_of(means, p.channel_classes, p).reshape(-1)
