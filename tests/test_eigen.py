"""Bases that both sides know from broadcasts: equal bits, kept lengths, agreed histories."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.arrays import Layout
from fedsz.codecs import _eigen
from fedsz.core.chained import ChainEncoder
from fedsz.core.decode import decompress
from fedsz.core.encode import compress_measured
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError, ReferenceMismatch
from fedsz.flower.mean import Mean
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import sealed
from fedsz.methods import Eigen, History, parse
from fedsz.methods.eigen import axes_of
from fedsz.spec_strings import settings_of
from tests.eigen_fleet import SHAPES, model, stepped, ways
from tests.federation import to_arrays
from tests.strategies import weights


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_a_basis_costs_no_bytes_and_makes_a_step_small(dtype: Any) -> None:
    before, now = ways(model(dtype), 1)
    now.history = History().beyond(before, now)
    update = stepped(now.arrays, 7)

    def coded(chain: str) -> tuple[int, float]:
        encoder = ChainEncoder(parse(chain), sent=now, history=now.history)
        config = Settings(threshold=0)
        blob, _ = compress_measured(update, config, now, encoder=encoder)
        decoded = decompress(blob, reference=now, as_numpy=True)
        assert all(decoded[name].dtype == x.dtype for name, x in update.items())
        return len(blob), encoder.arrived.kept

    plain, plain_kept = coded("feedback>uniform@std:1")
    size, kept = coded("feedback>eigen>uniform@std:1")
    if np.dtype(dtype).itemsize > 2:  # steps of half precision are mostly rounding
        assert size < 0.6 * plain
        assert kept > plain_kept


@given(x=weights(max_size=600), block=st.integers(1, 512), bad=st.booleans())
def test_all_instruction_sets_agree_and_lengths_stay(x: np.ndarray, block: int, bad: bool) -> None:
    x = x.reshape(-1)
    if bad and x.size:
        x[-1] = np.nan
    length = next(n for n in (24, 10, 7, 3, 2, 1) if x.size % n == 0)
    sides = 1, length, x.size // length, block
    squares = sum(len(part) ** 2 for part in np.array_split(range(length), -(-length // block)))
    found = []
    for level in _eigen.levels():
        products, vectors = np.zeros(squares, np.float32), np.zeros(squares, np.float32)
        added = _eigen.add_products(x, *sides, 0.9, products, level)
        _eigen.eigenvectors(products, length, block, vectors)
        y = x.copy()
        _eigen.rotate(y, *sides, vectors, False, level)
        back = y.copy()
        _eigen.rotate(back, *sides, vectors, True, level)
        found.append((added, *(z.tobytes() for z in (products, vectors, y, back))))

    assert all(f == found[0] for f in found)
    assert found[0][0] == bool(np.isfinite(x).all() and x.any())
    largest = np.abs(x).max(initial=0)
    if largest < 1e30:  # sums of larger ones may overflow
        assert np.abs(back - x).max(initial=0) <= 1e-4 * largest + 1e-40


@pytest.mark.parametrize(
    "products",
    [
        np.zeros(64),
        np.full(64, np.nan),
        np.full(64, np.inf),
        np.ones(64),
        np.eye(8),
        1e38 * np.eye(8),
    ],
    ids=["zero", "nan", "infinite", "rank 1", "all equal", "huge"],
)
def test_any_products_have_orthonormal_vectors(products: np.ndarray) -> None:
    vectors = np.zeros(64, np.float32)
    _eigen.eigenvectors(products.reshape(-1).astype(np.float32), 8, 8, vectors)

    u = vectors.reshape(8, 8).astype(np.float64)
    assert np.abs(u.T @ u - np.eye(8)).max() < 1e-6


def test_eigenvectors_are_those_of_numpy_largest_first() -> None:
    x = np.random.default_rng(0).normal(size=(60, 5, 300)).astype(np.float32)
    products, vectors = np.zeros(25, np.float32), np.zeros(25, np.float32)
    _eigen.add_products(x.reshape(-1), 60, 5, 300, 5, 1.0, products)
    _eigen.eigenvectors(products, 5, 5, vectors)

    wide = np.moveaxis(x, 1, 0).reshape(5, -1).astype(np.float64)
    values, expected = np.linalg.eigh(wide @ wide.T)
    assert products.reshape(5, 5) == pytest.approx(wide @ wide.T / values.sum(), abs=1e-6)
    assert np.abs(expected[:, ::-1].T @ vectors.reshape(5, 5)) == pytest.approx(np.eye(5), abs=1e-3)


@pytest.mark.parametrize("sides", [(3, 300, 1), (1, 300, 41), (2, 9, 300), (300, 9, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_coefficients_are_products_with_vectors(sides: tuple[int, int, int], dtype: Any) -> None:
    x = np.random.default_rng(1).normal(size=sides).astype(dtype)
    length = sides[1]
    products, vectors = np.zeros(length**2, np.float32), np.zeros(length**2, np.float32)
    _eigen.add_products(x.reshape(-1), *sides, 512, 1.0, products)
    _eigen.eigenvectors(products, length, 512, vectors)
    y = x.reshape(-1).copy()
    _eigen.rotate(y, *sides, 512, vectors, False)

    u = vectors.reshape(length, length).astype(np.float64)
    expected = np.einsum("olk,lm->omk", x.astype(np.float64), u)
    assert y.reshape(sides) == pytest.approx(expected, abs=2e-6 * length)


def test_a_stream_in_another_basis_is_refused_before_it_is_decoded() -> None:
    first, second, third = ways(model())
    own = third.with_history(History().beyond(first, second).beyond(second, third))
    others = [third, third.with_history(History().beyond(second, third))]
    encoder = ChainEncoder(parse("eigen>uniform@std:1"), history=own.history)
    config = Settings(threshold=0)
    blob, _ = compress_measured(stepped(own.arrays, 9), config, own, encoder=encoder)

    decompress(blob, reference=own)
    for other in others:
        with pytest.raises(ReferenceMismatch, match="in the basis of history"):
            decompress(blob, reference=other)


def test_histories_are_kept_whatever_becomes_of_tensors() -> None:
    first, second = ways(model(), 1)
    second.arrays["fc.weight"][0, 0] = np.nan
    second.arrays["new.weight"] = np.ones((3, 4), np.float32)
    for arrays in (first.arrays, second.arrays):
        arrays["complex.weight"] = np.full((3, 4), len(arrays), np.complex64)
        arrays["tiny.weight"] = np.full((3, 4), 1e-310 * len(arrays))
    history = History().beyond(first, second)

    assert history.products.keys() == {"conv.weight"}
    assert history.basis("conv.weight", (12, 10, 9)) is not None
    assert history.basis("conv.weight", (12, 90)) is None
    again = History.read(history.arrays(), history.digest)
    assert again.shown == history.shown
    basis, known = (h.basis("conv.weight", (12, 10, 3, 3)) for h in (again, history))
    assert all(map(np.array_equal, basis.vectors, known.vectors))


def test_only_streams_say_which_history_they_are_of() -> None:
    text = "eigen:of=0123456789abcdef>uniform@std:1"

    assert str(parse(text, sent=True)) == text
    assert not settings_of(Eigen())
    for update in (text, f"feedback>{text}", f"matrix?{text}|sign"):
        with pytest.raises(ConfigError, match="'eigen' has no setting 'of'"):
            Settings(update=update)


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((1 << 20, 1), []),
        ((1 << 16, 8), [8, 64]),
        ((8, 3, 3, 3), [27, 64, 24]),
        ((5,), []),
        ((0, 3), []),
        ((1, 7), []),
    ],
)
def test_products_take_no_more_than_the_tensor(shape: tuple[int, ...], blocks: list[int]) -> None:
    axes = axes_of(shape)

    assert [axis.block for axis in axes] == blocks
    assert all(axis.squares <= np.prod(shape) for axis in axes)


def test_a_basis_is_of_the_tensor_itself() -> None:
    for chain in ("topk>eigen>sign", "eigen>eigen>sign", "rotate>eigen>sign"):
        with pytest.raises(ConfigError, match="must be the first of its chain"):
            parse(chain)
    with pytest.raises(ConfigError, match="a downlink has no eigen"):
        Settings(downlink="difference>eigen>sign")


def test_sums_in_a_basis_are_those_of_decoded_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replies in one basis are decoded once, another in a basis of its own by itself."""
    first, second, third = ways(model())
    shared = third.with_history(History().beyond(first, second).beyond(second, third))
    own = third.with_history(History().beyond(second, third))
    mean, decoded, config = Mean(), [], Settings(threshold=0)
    for client, known in enumerate((shared, shared, own)):
        encoder = ChainEncoder(parse("eigen>uniform@std:1"), history=known.history)
        update = stepped(third.arrays, 20 + client)
        blob, _ = compress_measured(update, config, known, encoder=encoder)
        decoded.append(decompress(blob, reference=known, as_numpy=True))
        layout, models = Layout.of(third.arrays), {known.digest: known}
        mean.add(ReceivedUpdate(sealed([blob]), layout, models, sent=third.arrays), 1.0)
    turned: list[tuple[int, ...]] = []
    decode = Eigen.decode
    monkeypatch.setattr(
        Eigen, "decode", lambda part, *of: turned.append(of[1].spec.shape) or decode(part, *of)
    )
    averaged = to_arrays(mean.result())

    assert [turned.count(SHAPES[name]) for name in ("conv.weight", "fc.weight")] == [1, 1]
    for name, x in averaged.items():
        expected = np.mean([of[name] for of in decoded], axis=0, dtype=np.float64)
        assert np.abs(x - expected).max() < 1e-6


def test_a_client_turns_an_update_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For its feedback, and to measure what arrives."""
    before, now = ways(model(), 1)
    now.history = History().beyond(before, now)
    turned: list[tuple[int, ...]] = []
    decode = Eigen.decode
    monkeypatch.setattr(
        Eigen, "decode", lambda part, *of: turned.append(of[1].spec.shape) or decode(part, *of)
    )
    encoder = ChainEncoder(parse("feedback>eigen>uniform@std:1"), sent=now, history=now.history)
    config = Settings(threshold=0)
    blob, _ = compress_measured(stepped(now.arrays, 7), config, now, encoder=encoder)
    monkeypatch.undo()

    assert sorted(turned) == sorted(SHAPES.values())
    decoded = decompress(blob, reference=now, as_numpy=True)
    left = {name.partition("/")[2]: x for name, x in encoder.left.items() if "residual" in name}
    meant = stepped(now.arrays, 7)
    for name, x in decoded.items():
        assert np.abs(x + left[name] - meant[name]).max() < 1e-6
