"""What docs/format.md allows and `uniform` may never write: both decoders read and refuse alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import seeds
from tests.uniform_cases import DTYPES
from tests.uniform_oracle import (
    BLOCKS,
    CODED,
    CONSTANT,
    NEIGHBOURS,
    NONE,
    PREDICTION,
    QUADS,
    SPARSE,
    read,
)
from tests.uniform_readers import documented, ours
from tests.uniform_writer import Recipe, pieces, write


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Payloads of all kinds, most of which fedsz would never write."""
    rng = np.random.default_rng(draw(seeds))
    mode = draw(st.sampled_from([CONSTANT, BLOCKS, SPARSE, *[CODED] * 4, *[QUADS] * 2]))
    planes = draw(st.sampled_from([1, 1, 4, 9, 25, 40, 255]))
    channels = draw(st.integers(1, max(1, 200 // planes)))
    rows = draw(st.integers(1, 6000 // (channels * planes)))
    columns = channels * planes
    n = rows * columns
    token = st.integers(0, 255)
    spread = draw(st.sampled_from([0, 1, 4, 30, 300]))
    middle = draw(token)
    if mode == QUADS and (rows < 4 or columns < 16):
        mode = CODED
    if mode == QUADS:
        middle, spread = min(max(middle, 1), 254), draw(st.sampled_from([0.0, 0.3, 0.7]))
    tokens = np.clip(middle + spread * rng.laplace(size=n), 0, 255).astype(np.int64)
    shift = draw(st.sampled_from([0, 0, 1, 5, 14]))
    what: dict[str, Any] = {
        "step": np.float16(10.0 ** rng.uniform(-7, 4)),
        "base": draw(st.integers(-300, 0) | st.integers(-(2**31), 2**31 - 1)),
        "shift": shift,
        "low": rng.integers(0, 1 << shift, n),
        "chunk_bits": draw(st.sampled_from([12, 12, 12, 13, 24])),
        "states": draw(st.sampled_from([4, 32])),
        "bits": draw(st.integers(8, 12)),
        "rows": rows,
        "planes": planes,
        "width": draw(st.integers(1, 12) | st.just(255)),
        "centre": draw(token),
        "usual": middle if mode == QUADS or draw(st.booleans()) else draw(token),
        "spelled": draw(st.sampled_from([0.0, 0.1])),
        "seed": draw(seeds),
    }
    side = NONE if mode == QUADS else draw(st.sampled_from([NONE, NEIGHBOURS, PREDICTION]))
    rank = draw(st.integers(1, 4))
    if side == PREDICTION and (rows + columns) * rank > n:
        side = NONE
    if side == PREDICTION:
        most = draw(st.sampled_from([1, 20, 127]))
        what["left"] = rng.integers(-most, most, (rows, rank), endpoint=True)
        what["right"] = rng.integers(-most, most, (rank, columns), endpoint=True)
        what["scale"] = draw(st.integers(0, 20))
    if 4 * (rows + channels) <= n and draw(st.booleans()):
        most = draw(st.sampled_from([1, 10, 255]))
        what["row_classes"] = rng.integers(0, most, rows, endpoint=True)
        what["channel_classes"] = rng.integers(0, most, channels, endpoint=True)
        what["classes"] = draw(st.integers(2, {NONE: 255, NEIGHBOURS: 21, PREDICTION: 51}[side]))
        what["offset"] = draw(st.integers(-20, 20) | st.sampled_from([-1024, 1024]))
    count = draw(st.sampled_from([0, 0, 1, n // 10, n]))
    values = rng.choice([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5], count)
    what["exceptions"] = dict(zip(rng.choice(n, count, replace=False), values, strict=True))
    return Recipe(mode=mode, dtype=draw(st.sampled_from(DTYPES)), side=side, tokens=tokens, **what)


@given(recipe=recipes())
def test_any_choice_that_the_page_allows(recipe: Recipe) -> None:
    payload = write(recipe)

    got = read(payload, recipe.n, recipe.dtype)

    assert got.elements.tobytes() == ours(payload, recipe.n, recipe.dtype)
    assert (got.mode, got.exceptions) == (recipe.mode, len(recipe.exceptions))
    if recipe.mode in (CODED, QUADS):
        assert (got.side, got.states, got.classes) == (recipe.side, recipe.states, recipe.classes)


@given(recipe=recipes(), data=st.data())
def test_both_refuse_the_same(recipe: Recipe, data: st.DataObject) -> None:
    written = pieces(recipe)
    piece = data.draw(st.sampled_from(sorted(written)))
    damaged = bytearray(written[piece])
    at = data.draw(st.integers(0, min(len(damaged), 40)))
    end = at + data.draw(st.integers(0, 2))
    damaged[at:end] = data.draw(st.binary(max_size=2) | st.sampled_from([b"\0", b"\x80", b"\xff"]))
    payload = write(recipe, **{piece: bytes(damaged)})

    assert documented(payload, recipe.n, recipe.dtype) == ours(payload, recipe.n, recipe.dtype)
