"""A second coder of `uniform`, from docs/format.md alone: slow, and as plain as that page.

It shares no line with the codec, so where both read a payload alike, the page is right too. It
writes payloads with any choices that the page leaves open, not only fedsz's own. `pieces` writes
field by field, so that a test can put something else in the place of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tests.codecs.uniform_oracle_codes import (
    BLOCK,
    Binary,
    Bit,
    Fields,
    Ints,
    Number,
    Run,
    code_blocks,
    code_planes,
    unzigzag,
    zigzag,
)
from tests.codecs.uniform_oracle_models import (
    BLOCKS,
    CODED,
    CONSTANT,
    KINDS,
    NEIGHBOURS,
    NONE,
    QUADS,
    SPARSE,
    STORED,
    Model,
    Payload,
    QuadGroup,
    code_classes,
    code_flags,
    code_geometry,
    code_model,
    code_tables,
    groups_of,
    neighbours_of,
    tables_in,
)

IDS: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}


def read(payload: bytes, n: int, dtype: Any) -> Payload:
    """The n elements of a payload, and how they are coded.

    Raises:
        ValueError: docs/format.md says that it must be refused.
    """
    out = Payload(dtype=dtype, tokens=np.zeros(n, np.int64), states=0)
    code(Fields(bytes(payload)), out)
    return out


def write(payload: Payload, **instead: bytes) -> bytes:
    """The payload, with other bytes in the place of pieces."""
    written = pieces(payload)
    assert instead.keys() <= written.keys()
    return b"".join({**written, **instead}.values())


def pieces(payload: Payload) -> dict[str, bytes]:
    """The payload's fields by name, in order."""
    data = Fields()
    code(data, replace(payload, tokens=payload.tokens.copy()))
    return data.written


def code(data: Fields, p: Payload) -> None:
    """Read a payload into ``p``, or write the one that it holds."""
    dtype, n = np.dtype(p.dtype), p.n
    head = data.byte(p.mode | IDS[dtype.name] << 4, "head")
    p.mode = head & 15
    data.check(head >> 4 == IDS[dtype.name], f"dtype {head >> 4} of {dtype}")
    data.check(p.mode <= QUADS, f"mode {p.mode}")
    if p.mode == STORED:
        p.elements = np.frombuffer(
            data.take(n * dtype.itemsize, p.tokens.tobytes(), "elements"), dtype
        )
        data.end()
        return

    data.check(n >= 1, "no elements")
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    (step,) = np.frombuffer(data.take(wide.itemsize, wide.type(p.step).tobytes(), "step"), wide)
    data.check(bool(np.isfinite(step)) and step >= 0, f"step {step}")
    base = unzigzag(data.varint(zigzag(p.base), "base"))
    data.check(-(2**31) <= base < 2**31, f"base {base}")

    k = np.full(n, base, np.int64)
    if p.mode == QUADS:
        code_quads(data, p)
        k += p.tokens
    elif p.mode != CONSTANT:
        p.shift = data.byte(p.shift, "shift")
        data.check(p.shift <= 14, f"shift {p.shift}")
        low = np.broadcast_to(p.low, n)
        low = code_planes(data, [p.shift] * -(-n // BLOCK), low, "low")
        predictions = code_tokens(data, p)
        k += (p.tokens << p.shift) + low + predictions

    wrapped = (k & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    with np.errstate(all="ignore"):
        y = (wrapped.astype(wide) * step).astype(dtype)
    code_exceptions(data, p, y)
    data.end()
    p.elements = y


def code_exceptions(data: Fields, p: Payload, y: np.ndarray) -> None:
    """The elements that are written as they are."""
    held = sorted(p.exceptions)
    count = data.varint(len(held), "exceptions")
    data.check(count <= p.n, f"{count} exceptions of {p.n} elements")
    gaps = (np.diff(held, prepend=-1) - 1).tolist() or [0] * count
    gaps = [data.varint(gap, "exceptions") for gap in gaps]
    at = [gap + i for i, gap in enumerate(np.cumsum(gaps, dtype=object).tolist())]
    data.check(not at or at[-1] < p.n, "an exception behind the end")
    values = np.array([p.exceptions[i] for i in held], y.dtype).tobytes()
    y[at] = np.frombuffer(data.take(count * y.itemsize, values, "exceptions"), y.dtype)
    p.exceptions = dict(zip(at, y[at], strict=True))


def code_chunk_size(data: Fields, p: Payload) -> int:
    p.chunk_bits = data.byte(p.chunk_bits, "chunk_size")
    data.check(12 <= p.chunk_bits <= 24, f"chunks of 2^{p.chunk_bits}")
    return 1 << p.chunk_bits


def code_chunks(
    data: Fields, p: Payload, n: int, size: int, code: Callable[[Fields, slice], None]
) -> None:
    """Chunks of so many of n, behind the lengths of all: ``code`` codes one."""
    places = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    p.chunks = len(places)
    lengths = [int.from_bytes(data.take(4), "little") for _ in places if data.reading]
    written = []
    for i, where in enumerate(places):
        chunk = Fields(data.take(lengths[i]) if data.reading else None)
        code(chunk, where)
        written.append(bytes(chunk))
    if not data.reading:
        data.take(0, b"".join(len(chunk).to_bytes(4, "little") for chunk in written), "lengths")
        data.take(0, b"".join(written), "chunks")


# Modes 2 to 4


def code_tokens(data: Fields, p: Payload) -> Ints:
    """The tokens behind their low bits; returns the predictions."""
    if p.mode == SPARSE:
        p.usual = data.byte(p.usual, "usual")
    size = code_chunk_size(data, p)
    model = code_model(data, p) if p.mode == CODED else Model([], *np.zeros((3, p.n), np.int64))
    if p.mode == CODED and p.side == NEIGHBOURS:
        kernels = BLOCK * p.planes
        size = max(1, size // kernels) * kernels

    def code_chunk(chunk: Fields, where: slice) -> None:
        tokens = p.tokens[where]
        if p.mode == BLOCKS:
            p.tokens[where] = code_blocks(chunk, tokens)
        elif p.mode == SPARSE:
            binary = Binary(chunk.data)
            p.tokens[where] = code_sparse(binary, tokens, p.usual)
            chunk.take(0, binary.exactly())
        elif p.side == NEIGHBOURS:
            p.tokens[where] = code_by_plane(chunk, tokens, model.classes[where], model, p)
        else:
            contexts = model.sides[where] * p.classes + model.classes[where]
            run = Run(chunk, p.states, p.bits)
            p.tokens[where] = run.take(map(model.tables.__getitem__, contexts.tolist()), tokens)
            run.end()

    code_chunks(data, p, p.n, size, code_chunk)
    return model.predictions


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


def code_sparse(binary: Binary, tokens: Ints, usual: int, beyond: int = 0) -> Ints:
    """The tokens of a chunk in mode 4, of which the last gap may be written ``beyond`` the end."""
    models, n = SparseModels(), len(tokens)
    out, at = np.full(n, usual, np.int64), 0
    others = iter(np.flatnonzero(tokens != usual).tolist())
    while at < n:
        gap = binary.number(models.gap, next(others, n + beyond) - at, 3)
        models.after(gap)
        binary.check(gap <= n - at, f"a gap of {gap} at {at} of {n} tokens")
        at += gap
        if at < n:
            above = int(tokens[at]) - usual
            negative = binary.bit(models.negative[models.last], int(above < 0))
            size = binary.number(models.magnitude[models.last], abs(above) - 1) + 1
            models.last = negative
            out[at] = usual - size if negative else usual + size
            binary.check(0 <= out[at] <= 255, f"token {out[at]}")
            at += 1
    binary.end()
    return out


# Mode 3


def code_by_plane(data: Fields, tokens: Ints, classes: Ints, model: Model, p: Payload) -> Ints:
    """The tokens of a chunk whose sides are neighbours."""
    run = Run(data, p.states, p.bits)
    of_kernels, tokens = classes.reshape(-1, p.planes), tokens.reshape(-1, p.planes).copy()
    for position in range(p.planes):
        contexts = neighbours_of(tokens, position, p) * p.classes + of_kernels[:, position]
        tables = map(model.tables.__getitem__, contexts.tolist())
        tokens[:, position] = run.take(tables, tokens[:, position])
    run.end()
    return tokens.reshape(-1)


# Mode 5


def code_quads(data: Fields, p: Payload) -> None:
    """The tokens of all elements, four rows at a time."""
    p.usual = data.byte(p.usual, "usual")
    data.check(1 <= p.usual <= 254, f"a usual token of {p.usual}")
    size = code_chunk_size(data, p)
    with_classes = code_flags(data, [NONE], p)
    columns = code_geometry(data, p)
    data.check(columns >= 16, f"quads of {columns} columns")
    data.check(4 <= p.rows < 2**32, f"quads of {p.rows} rows")
    if with_classes:
        code_classes(data, columns, p)
    else:
        p.row_classes = np.zeros(p.rows, np.int64)
        p.channel_classes = np.zeros(columns // p.planes, np.int64)
    groups, contexts = groups_of(p, columns)
    tokens, quads = p.tokens.reshape(p.rows, columns), np.zeros_like(contexts)
    digits = np.full(tokens.shape, 3)
    if not data.reading:
        choose_quads(p, groups, digits, quads)

    with tables_in(data, "tables", QuadGroup, p.bits) as group:
        tables = code_tables(
            group,
            p.classes,
            p,
            lambda span: group.quads_for({KINDS[q] for q in quads[np.isin(contexts, span)]}, p.rng),
        )
        of_others = group.table_for({*tokens[digits == 3].tolist()}, p.rng)
    count_of_others = 0

    def code_chunk(chunk: Fields, where: slice) -> None:
        nonlocal count_of_others
        run = Run(chunk, p.states, p.bits)
        quads[where] = run.take((tables[c] for c in contexts[where]), quads[where])
        for row, here, i, at in pieces_of(groups, columns, where):
            digits = quads[at : at + here.stop - here.start] >> i & 3
            found, others = p.usual + np.array([0, 1, -1, 0])[digits], digits == 3
            count = int(others.sum())
            count_of_others += count
            data.check(
                count_of_others <= p.n // 2, f"{count_of_others} tokens behind quads of {p.n}"
            )
            found[others] = run.take([of_others] * count, tokens[row, here][others])
            tokens[row, here] = found
        run.end()

    code_chunks(data, p, len(contexts), size, code_chunk)


def choose_quads(p: Payload, groups: list[list[int]], digits: Ints, quads: Ints) -> None:
    """Write digits of tokens into quads; some are 3 that need not be."""
    tokens, rng = p.tokens.reshape(digits.shape), p.rng
    for digit, above in enumerate((0, 1, -1)):
        as_it_is = rng.random(tokens.shape) >= p.spelled
        digits[as_it_is & (tokens == p.usual + above)] = digit
    quads[:] = rng.integers(0, 256, len(quads))  # of rows that are not there, any digit
    for row, where, i, at in pieces_of(groups, tokens.shape[1], slice(0, len(quads))):
        here = slice(at, at + where.stop - where.start)
        quads[here] += (digits[row, where] - (quads[here] >> i & 3)) << i


def pieces_of(
    groups: list[list[int]], columns: int, quads: slice
) -> Iterator[tuple[int, slice, int, int]]:
    """What quads say: a row, columns of it, and where its digits begin.

    Those are: how many bits lie below them, and in which quad they begin.
    """
    for g, group in enumerate(groups):
        first, last = max(quads.start, g * columns), min(quads.stop, (g + 1) * columns)
        if first < last:
            for i, row in enumerate(group):
                yield row, slice(first - g * columns, last - g * columns), 2 * i, first
