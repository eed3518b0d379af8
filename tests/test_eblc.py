"""The predictor that benchmarks/eblc_coding.py has: what it decodes to, on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsz.bounds import ErrorBound
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CodecError
from tests.strategies import KIND

pytestmark = pytest.mark.repository
pytest.importorskip("benchmarks", reason="needs benchmarks")

from benchmarks.eblc_coding import Eblc, Signs, pack_signs, unpack_signs  # noqa: E402

BOUND = ErrorBound.rel(1e-2)
SHAPES = ((3, 2, 3, 3), (4, 5), (7,), (2, 3, 1, 1), (0,), (0, 2, 3, 3))
WAYS = ((Signs.KERNELS,), (Signs.OSCILLATION,), tuple(Signs))


@st.composite
def rounds(draw: st.DrawFn) -> list[np.ndarray]:
    """The updates of one tensor, each ugly in a way of its own."""
    shape = draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = draw(st.lists(st.sampled_from(sorted(KIND)), min_size=2, max_size=4))
    with np.errstate(over="ignore"):
        made = [np.clip(KIND[kind](rng, int(np.prod(shape))), -3e38, 3e38) for kind in kinds]
    return [x.reshape(shape).astype(np.float32) for x in made]


@settings(max_examples=40)
@given(updates=rounds(), ways=st.sampled_from(WAYS))
def test_the_receiver_decodes_every_round_within_the_bound(
    updates: list[np.ndarray], ways: tuple[Signs, ...]
) -> None:
    sender, receiver, again = (Eblc(Uniform(), ways) for _ in range(3))
    for x in updates:
        payload = sender.encode(x, BOUND)
        y = receiver.decode(payload, x.shape)

        assert payload == again.encode(x, BOUND)
        assert y.tobytes() == sender.last.tobytes()
        assert y.shape == x.shape
        error = np.abs(y.astype(np.float64) - x).max(initial=0.0)
        assert error <= BOUND.absolute(x)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_is_predicted_from_nan(bad: float) -> None:
    x = np.ones((2, 2, 3, 3), np.float32)
    eblc = Eblc(Uniform())
    eblc.encode(x, BOUND)
    kept = eblc.last
    x[0, 0, 0, 0] = bad

    with pytest.raises(CodecError, match="NaN or infinity"):
        eblc.encode(x, BOUND)
    assert eblc.last is kept


def test_bitmaps_name_the_kernels_whose_elements_agree() -> None:
    x = np.ones((2, 2, 2, 2), np.float32)
    x[0, 1] = -1
    x[1, 0, 0] = -1  # two of four
    x[1, 1, 0, 0] = -1  # one of four

    signs = unpack_signs(pack_signs(x), x.shape)

    assert signs[..., 0, 0].tolist() == [[1, -1], [0, 1]]


@pytest.mark.parametrize("signs", [Signs.KERNELS, Signs.OSCILLATION])
def test_updates_as_the_predictor_expects_them_are_smaller(signs: Signs) -> None:
    """Magnitudes that stay, with one sign in a kernel, which turns in every round."""
    rng = np.random.default_rng(5)
    x = np.abs(rng.normal(size=(64, 32, 3, 3))) * rng.choice([-1, 1], (64, 32, 1, 1))
    turns = [(x * (-1) ** number).astype(np.float32) for number in range(40)]
    alone, predicted = Eblc(Uniform(), (Signs.UNPREDICTED,)), Eblc(Uniform(), (signs,))
    sizes = [(len(alone.encode(y, BOUND)), len(predicted.encode(y, BOUND))) for y in turns]

    assert sizes[0][0] == sizes[0][1]
    assert sizes[-1][1] < 0.8 * sizes[-1][0]
