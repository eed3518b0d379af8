"""uniform's differences: what arrays of them would give, without the arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.bounds import ErrorBound
from fedsz.codecs import CODECS, Codec, _uniform
from fedsz.codecs.base import Residual
from fedsz.codecs.uniform import DTYPE_IDS, Comparison, Uniform, compare, matrix_shape
from fedsz.errors import CodecError, CorruptStream
from fedsz.spread import standard_deviation
from tests.strategies import bits_of, finite, layers, relative, seeds, specials, weights
from tests.uniform_cases import LEVELS, SHAPES, flat, layer, rng

WIDE = [np.dtype(np.float32), np.dtype(np.float64)]
LOSSY = [codec for codec in CODECS if codec.lossy and codec.missing() is None]
every_dtype = pytest.mark.parametrize("dtype", WIDE, ids=str)
WAYS = [*((level, 1) for level in LEVELS), ("", 7)]  # level and threads


def pair(name: str, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """An array, and one that it is near to; neither is finite throughout."""
    x = layer(name, dtype)
    base = np.where(np.isfinite(x), x, 1) + 0.1 * rng(1).laplace(size=x.shape)
    base = finite(base, dtype)
    base.reshape(-1)[[7, 1100]] = np.inf, np.nan
    return x, base


def minus(x: np.ndarray, base: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.subtract(x, base)


def plus(base: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.add(base, y)


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are of equal bits, but for those of NaNs."""
    return bool(np.all((bits_of(a) == bits_of(b)) | (np.isnan(a) & np.isnan(b))))


@pytest.mark.sampled(36)
@every_dtype
@pytest.mark.parametrize("effort", [0, 1, 5, 9])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("given", [("base",), ("residual",), ("base", "residual")])
def test_payloads_and_what_they_lack_are_those_of_an_array_of_differences(
    dtype: np.dtype, effort: int, name: str, given: tuple[str, ...]
) -> None:
    x, base = pair(name, dtype)
    residual = finite(0.05 * rng(2).laplace(size=x.shape), dtype)
    residual.reshape(-1)[[9, 1200]] = -np.inf, np.nan
    how = DTYPE_IDS[dtype], *matrix_shape(x.shape)
    onto = flat(base) if "base" in given else None
    for bound, weight in ((0.0, 1.0), (1e-4, 1.0), (0.03, 0.9), (2.0, 1.0)):
        meant = plus(x, residual * dtype.type(weight)) if "residual" in given else x
        coded = meant if onto is None else minus(meant, base)
        encoded = Uniform(effort, threads=1).encode_measured(coded, bound)
        y = Uniform().decode(encoded.payload, x.shape, dtype)
        arrives = y if onto is None else plus(base, y)
        energies = set()
        for level, threads in WAYS:
            left, back = np.full_like(x, 7), np.empty_like(x)
            payload, error, energy = _uniform.encode(
                *(flat(x), *how, bound, effort, threads, level),
                base=onto,
                residual=flat(residual) if "residual" in given else None,
                weight=weight,
                left=flat(left),
            )
            assert (payload, error) == encoded[:2]
            assert equal(left, minus(meant, arrives))
            _uniform.decode(payload, how[0], flat(back), threads, level, onto)
            assert equal(back, arrives)
            energies.add(np.float64(energy).tobytes())
        assert len(energies) == 1


@every_dtype
def test_the_energy_of_what_is_left_out(dtype: np.dtype) -> None:
    x, base, residual = (rng(seed).normal(size=(300, 700)).astype(dtype) for seed in range(3))
    left = np.empty_like(x)
    found = Uniform().encode_update(x, base, 0.1, Residual(residual, 0.5), left).left

    expected = float(np.square(left.astype(np.float64)).sum())
    assert math.isclose(found, expected, rel_tol=1e-5 if dtype == np.float32 else 1e-12)


@given(
    data=st.data(),
    codec=st.sampled_from(LOSSY) | st.builds(Uniform, st.integers(0, 9), threads=st.integers(1, 3)),
    rel=relative,
    seed=seeds,
)
def test_every_codec(data: st.DataObject, codec: Codec, rel: float, seed: int) -> None:
    """On layers near to each other, and on ugly arrays."""
    dtype, generator = data.draw(st.sampled_from(codec.dtypes)), np.random.default_rng(seed)
    if data.draw(st.booleans()):
        x = data.draw(layers(dtype))
        base = finite(x * (1 + 0.1 * generator.normal(size=x.shape)), dtype)
    else:
        x = data.draw(specials(dtype))
        base = generator.permuted(x.reshape(-1)).reshape(x.shape)
    difference, bound = minus(x, base), ErrorBound.rel(rel).absolute(x)

    encoded = codec.encode_measured(x, bound, base)
    y = codec.decode(encoded.payload, x.shape, x.dtype, base)

    alone = codec.encode_measured(difference, bound)
    if codec.name == "sz2":  # leaves bytes of its payload unset now and then, which mean nothing
        same = [codec.decode(e.payload, x.shape, dtype).astype(float) for e in (encoded, alone)]
        assert np.array_equal(*same, equal_nan=True)
        alone = alone._replace(payload=encoded.payload)
    assert encoded == alone
    expected = plus(base, codec.decode(encoded.payload, x.shape, dtype))
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert np.array_equal(y.astype(np.float64), expected.astype(np.float64), equal_nan=True)


def test_arrays_may_lie_in_any_order() -> None:
    x, base = pair("odd", np.float32)
    encoded = Uniform().encode_measured(minus(x, base), 0.03)
    y = Uniform().decode(encoded.payload, x.shape, x.dtype, base)

    strided = np.repeat(base, 2, axis=0)[::2]
    assert Uniform().encode_measured(np.asfortranarray(x), 0.03, strided) == encoded
    assert equal(Uniform().decode(encoded.payload, x.shape, x.dtype, strided), y)


@every_dtype
@pytest.mark.parametrize("effort", [0, 5])
def test_damaged_payloads_are_refused_as_ever(dtype: np.dtype, effort: int) -> None:
    x, base = pair("small", dtype)
    payload = Uniform(effort).encode_measured(x, 0.03, base).payload
    refused = 0
    for at in rng().integers(0, len(payload), 300).tolist():
        damaged = bytearray(payload)
        damaged[at] ^= 1 << at % 8
        try:
            y = Uniform().decode(bytes(damaged), x.shape, dtype)
        except CorruptStream:
            refused += 1
            with pytest.raises(CorruptStream):
                Uniform().decode(bytes(damaged), x.shape, x.dtype, base)
        else:
            assert equal(Uniform().decode(bytes(damaged), x.shape, x.dtype, base), plus(base, y))
    assert refused > (30 if effort else 0)


def test_bases_that_do_not_fit() -> None:
    x = np.ones((3, 4), np.float32)
    for base in (x[:2], x.astype(np.float64), x.reshape(4, 3), x[:0]):
        with pytest.raises(CodecError, match="as a difference from"):
            Uniform().encode_measured(x, 0.1, base)


# Comparing


def compared(
    x: np.ndarray,
    base: np.ndarray,
    residual: Residual | None = None,
    *,
    energies: bool = False,
) -> Comparison:
    """What all instruction sets and numbers of threads find, as bits."""
    found = {
        np.array(
            _uniform.compare(
                *(flat(x), flat(base), DTYPE_IDS[x.dtype], True, energies, threads, level),
                None if residual is None else flat(residual.x),
                1.0 if residual is None else residual.weight,
            )
        ).tobytes()
        for level, threads in WAYS
    }
    assert len(found) == 1
    return Comparison(*np.frombuffer(found.pop()).tolist())


@given(data=st.data(), dtype=st.sampled_from(WIDE), scale=st.sampled_from([0.0, 1e-6, 0.1, 3.0]))
def test_extremes_and_deviation(data: st.DataObject, dtype: np.dtype, scale: float) -> None:
    x = data.draw(weights(dtype).filter(np.size))
    with np.errstate(over="ignore", under="ignore"):
        base = finite(x * (1 + scale * rng().normal(size=x.shape)), dtype)
        difference = np.subtract(x, base)

    low, high, least, greatest, deviation, *none = compared(x, base)

    assert (low, high) == (x.min(), x.max())
    assert (least, greatest) == (difference.min(), difference.max())
    expected = standard_deviation(difference)
    if not np.isfinite(difference).all():  # its deviation is not finite either
        assert not math.isfinite(deviation)
    elif 1e-140 < expected < 1e140:  # squares are normal numbers
        assert math.isclose(deviation, expected, rel_tol=1e-9)
    assert none == [0, 0]
    assert compare(x, base) == (low, high, least, greatest, 0, 0, 0)
    if math.isfinite(deviation):
        assert compare(x, base, deviation=True) == (low, high, least, greatest, deviation, 0, 0)


@every_dtype
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 4095, 4097, 65_537, 300_000])
def test_a_deviation_far_from_zero(dtype: np.dtype, n: int) -> None:
    base = rng(n).normal(size=n).astype(dtype)
    for middle, width in ((1e4, 0.1), (1, 1e-4), (-3e5, 10), (0, 1e-30)):
        x = (middle + width * rng(n + 1).normal(size=n)).astype(dtype)
        for start in (np.zeros_like(x), base):
            difference = x - start
            exact = difference.astype(np.longdouble).std()
            deviation = compared(x, start).deviation
            assert math.isclose(deviation, exact, rel_tol=1e-12)


@every_dtype
def test_what_moves_as_one_does_not_deviate(dtype: np.dtype) -> None:
    base = rng().integers(-1000, 1000, 100_000).astype(dtype)

    assert compared(base + dtype.type(3), base) == (base.min() + 3, base.max() + 3, 3, 3, 0, 0, 0)


@every_dtype
@pytest.mark.parametrize("ugly", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 70_000, 99_999])
def test_what_is_not_finite_is_seen(dtype: np.dtype, ugly: float, at: int) -> None:
    x = rng().normal(size=100_000).astype(dtype)
    odd = x.copy()
    odd[at] = ugly

    for sides in ((odd, x), (x, odd), (odd, odd)):
        seen = compared(*sides, energies=True)
        assert not (math.isfinite(seen.least) and math.isfinite(seen.greatest))
        assert not math.isfinite(seen.step)


@every_dtype
@pytest.mark.parametrize("n", [1, 33, 4097, 300_000])
def test_a_residual_is_looked_at_as_part_of_its_array(dtype: np.dtype, n: int) -> None:
    x, base, r = (rng(seed).normal(size=n).astype(dtype) for seed in range(3))
    meant = x + r * dtype.type(0.3)

    seen = compared(x, base, Residual(r, 0.3), energies=True)

    assert seen[:4] == compared(meant, base)[:4]
    assert seen.deviation == compared(x, base).deviation
    for energy, side in ((seen.step, x), (seen.meant, meant)):
        exact = float(np.square(side.astype(np.float64) - base).sum())
        assert math.isclose(energy, exact, rel_tol=1e-5 if dtype == np.float32 else 1e-12)


def test_there_are_no_extremes_of_nothing() -> None:
    empty = np.zeros(0, np.float32)

    found = _uniform.compare(flat(empty), flat(empty), 0, True, True, 1, "")

    assert all(map(math.isnan, found[:4]))
    assert found[4:] == (0, 0, 0)
