"""Payloads of `uniform` made by hand: at the edge of what docs/format.md allows, and beyond it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import uniform_edges, uniform_edges_quads
from tests.uniform_cases import DTYPES
from tests.uniform_edges import N
from tests.uniform_oracle import read
from tests.uniform_readers import documented, ours
from tests.uniform_writer import Recipe, write


def quads(cases: str) -> dict[str, Any]:
    """The cases of that name of quads, which share names with those of other modes."""
    return {f"quads: {name}": case for name, case in vars(uniform_edges_quads)[cases].items()}


GOOD = uniform_edges.GOOD | quads("GOOD")
EDGE = uniform_edges.EDGE | quads("EDGE")
BAD = uniform_edges.BAD | quads("BAD")
every_good = pytest.mark.parametrize("name", GOOD)


@every_good
def test_payloads_by_hand(name: str) -> None:
    payload = write(GOOD[name])

    got = read(payload, N, np.float32)

    assert got.elements.tobytes() == ours(payload, N, np.float32)
    assert (got.mode, got.side, got.classes) == (
        GOOD[name].mode,
        GOOD[name].side,
        GOOD[name].classes,
    )


@pytest.mark.parametrize("recipe", uniform_edges_quads.GOOD.values(), ids=uniform_edges_quads.GOOD)
def test_quads_are_steps_of_their_tokens(recipe: Recipe) -> None:
    expected = (recipe.tokens * np.float32(recipe.step)).astype(np.float32)
    expected[list(recipe.exceptions)] = list(recipe.exceptions.values())

    assert read(write(recipe), N, np.float32).elements.tobytes() == expected.tobytes()


@every_good
def test_truncated_payloads(name: str) -> None:
    payload = write(GOOD[name])

    for end in range(len(payload)):
        assert documented(payload[:end], N, np.float32) is None
        assert ours(payload[:end], N, np.float32) is None


@every_good
def test_bytes_after_the_end(name: str) -> None:
    for more in (b"\0", b"\xff", bytes(4)):
        payload = write(GOOD[name]) + more
        assert documented(payload, N, np.float32) is None
        assert ours(payload, N, np.float32) is None


@every_good
def test_other_dtypes(name: str) -> None:
    for dtype in DTYPES[1:]:
        assert documented(write(GOOD[name]), N, dtype) is None
        assert ours(write(GOOD[name]), N, dtype) is None


@pytest.mark.parametrize("name", EDGE)
def test_the_edge_of_what_is_allowed(name: str) -> None:
    payload, n = EDGE[name]

    assert read(payload, n, np.float32).elements.tobytes() == ours(payload, n, np.float32)


@pytest.mark.parametrize("name", BAD)
def test_what_must_be_refused(name: str) -> None:
    payload, n, says = BAD[name]

    with pytest.raises(ValueError, match=says):
        read(payload, n, np.float32)
    assert ours(payload, n, np.float32) is None
