"""Differences from a model that both sides hold: bound, exactness, and never the wrong model.

A bound of kind `step` is of all that moved, and of each tensor's own share of it.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fedsz
from fedsz.codecs import CODECS
from fedsz.core.decode import unpack
from fedsz.core.reference import MOST, Reference, bounds_of_step, energies
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError, ReferenceMismatch
from fedsz.stream import Reader
from fedsz.stream.format import DIFFERENCES
from tests.strategies import LAYER, finite

LOSSY = [codec for codec in CODECS if codec.lossy and codec.missing() is None]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
BOUNDED = [codec for codec in LOSSY if codec.keeps_bound]
SCALES = {"large.weight": 1e-2, "small.weight": 1e-5, "frozen.weight": 0.0}


def models(seed: int = 0, dtype: Any = np.float32) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model, and what a client might make of it."""
    rng = np.random.default_rng(seed)
    before = {
        "conv.weight": finite(LAYER["scaled rows"](rng, (20, 12, 3, 3)), dtype),
        "conv.bias": finite(rng.normal(size=20), dtype),
        "fc.weight": finite(rng.laplace(size=(60, 70)), dtype),
        "steps": np.array(7),
    }
    after = {
        name: finite(x.astype(np.float64) + 0.01 * rng.laplace(size=x.shape), dtype)
        if x.dtype.kind in "fV"
        else x + 1
        for name, x in before.items()
    }
    return before, after


def received(
    after: dict[str, Any], before: dict[str, Any], bound: Any, **options: Any
) -> tuple[dict[str, Any], int]:
    """What arrives of a model by its difference from another, and the bytes that it takes."""
    blob = fedsz.compress(after, bound, reference=before, **options)
    return fedsz.decompress(blob, reference=before, as_numpy=True), len(blob)


def errors(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max(initial=0.0))


def test_a_step_takes_fewer_bytes_than_the_weights() -> None:
    before, after = models()

    weights = fedsz.compress(after, 1e-2)
    step = fedsz.compress(after, 1e-2, reference=before)

    assert len(step) < len(weights) / 2
    assert step[8] == DIFFERENCES
    assert weights[8] == 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_weights_that_lie_further_apart_than_the_bound_come_back_exactly(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    base = (0.02 * rng.normal(size=(200, 300))).astype(dtype)
    base[0, :100] *= 100
    spacing = np.abs(np.spacing(base).astype(np.float64))
    x = (base.astype(np.float64) + spacing[0, 0] / 20 * rng.normal(size=base.shape)).astype(dtype)
    x[0, 7] = np.nextafter(base[0, 7], base[0, 8])
    bound = float(np.median(spacing[0, :100])) / 8

    arrived, nbytes = received({"w": x}, {"w": base}, f"abs:{bound}")

    back = arrived["w"]
    assert x.nbytes > 5 * nbytes
    assert 0 < errors(x, back) <= bound
    far = spacing > 2 * bound
    assert np.array_equal(x[far], back[far])
    assert np.count_nonzero(x[far] != base[far])


@pytest.mark.filterwarnings("error")
def test_a_difference_beyond_all_multiples_of_a_step_goes_exactly() -> None:
    base = (1e30 * np.random.default_rng(0).normal(size=3000)).astype(ml_dtypes.bfloat16)
    x = base.copy()
    x[:5] = 1e37

    arrived, nbytes = received({"w": x}, {"w": base}, "abs:1e-20", threshold=0)

    assert x.nbytes > 20 * nbytes
    assert arrived["w"].tobytes() == x.tobytes()


@pytest.mark.parametrize("codec", LOSSY, ids=lambda codec: codec.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_sums_beyond_the_largest_number(codec: Any, dtype: Any) -> None:
    most = float(ml_dtypes.finfo(dtype).max)
    rng = np.random.default_rng(0)
    after = finite(most * np.repeat([-1, 1 - 1e-3], 2000) + 0 * rng.normal(size=4000), dtype)
    before = finite(
        after.astype(np.float64) - most * 0.01 * rng.random(4000) * np.sign(after), dtype
    )

    back = received({"w": after}, {"w": before}, 1e-2, codec=codec)[0]["w"]

    assert np.isfinite(back.astype(np.float64)).all()
    if codec.keeps_bound:
        assert errors(after, back) <= fedsz.ErrorBound.rel(1e-2).absolute(after)


def test_nothing_is_added_to_the_wrong_model() -> None:
    before, after = models()
    blob = fedsz.compress(after, 1e-2, reference=before)
    digest = Reference(before).digest.hex()[:16]

    with pytest.raises(ReferenceMismatch, match=f"differences from model {digest}: pass it"):
        fedsz.decompress(blob)
    other = {**before, "fc.weight": np.nextafter(before["fc.weight"], np.float32(9))}
    reordered = dict(reversed(before.items()))
    renamed = {name.replace("fc", "cf"): x for name, x in before.items()}
    wider = {**before, "conv.bias": before["conv.bias"].astype(np.float64)}
    flat = {**before, "fc.weight": before["fc.weight"].reshape(-1)}
    for wrong in (other, reordered, renamed, wider, flat, {}):
        with pytest.raises(ReferenceMismatch, match=f"refer to model {digest}; this is model"):
            fedsz.decompress(blob, reference=wrong)


def test_a_reference_that_is_not_needed_does_no_harm() -> None:
    before, after = models()
    exact = fedsz.compress(after, codec="raw", lossless="raw", reference=before)

    assert exact[8] == 1
    assert fedsz.decompress(exact, as_numpy=True, reference=before).keys() == after.keys()


@pytest.mark.parametrize(
    "change",
    [lambda x: {"fc.weight": x[1:]}, lambda x: {"fc.weight": x.astype(np.float64)}, lambda _: {}],
    ids=["another shape", "another dtype", "none"],
)
def test_a_tensor_that_the_reference_lacks_is_coded_as_it_is(change: Any) -> None:
    before, after = models()
    before |= change(before.pop("fc.weight"))

    blob = fedsz.compress(after, 1e-2, reference=before)
    back = fedsz.decompress(blob, reference=before, as_numpy=True)

    transforms = {info.name: info.transform for info in fedsz.inspect(blob).tensors}
    assert (transforms["fc.weight"], transforms["conv.weight"]) == ("values", "delta")
    for name in ("fc.weight", "conv.weight"):
        assert errors(after[name], back[name]) <= fedsz.ErrorBound.rel(1e-2).absolute(after[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_adding_up_as_it_arrives(dtype: Any) -> None:
    before, after = models(dtype=dtype)
    reference = Reference(before)
    blob = fedsz.compress(after, 2e-2, reference=reference)
    reader = Reader(blob)
    back = fedsz.decompress(blob, reference=reference, as_numpy=True)
    added = 0

    for name, coded in unpack(reader, reference):
        if isinstance(coded, np.ndarray):
            continue
        assert coded.decode().tobytes() == back[name].tobytes()
        # The payload's numbers alone: what they refer to is for the caller to add.
        sums = np.ones(coded.shape, np.float64 if dtype == np.float64 else np.float32)
        coded.open().add(sums, 0.5)
        assert coded.reference is not None
        assert np.shares_memory(coded.reference, before[name])
        expected = 1 + 0.5 * (back[name].astype(np.float64) - before[name].astype(np.float64))
        spacing = float(ml_dtypes.finfo(dtype).eps)
        assert errors(sums, expected) <= 2 * spacing * float(np.abs(before[name]).max())
        added += 1

    assert added == 2


def test_references_are_told_apart_by_every_bit() -> None:
    before, _ = models()
    digest = Reference(before).digest

    assert Reference({name: x.copy() for name, x in before.items()}).digest == digest
    for name in before:
        changed = {key: x.copy() for key, x in before.items()}
        changed[name].reshape(-1).view(np.uint8)[-1] ^= 1
        assert Reference(changed).digest != digest


def decades(rng: np.random.Generator, dtype: Any = np.float32) -> tuple[dict[str, Any], Any]:
    """Return a model whose tensors move by decades apart, before and after."""
    before = {name: finite(rng.normal(size=(50, 60)), dtype) for name in SCALES}
    after = {
        name: (x + SCALES[name] * rng.normal(size=x.shape)).astype(x.dtype)
        for name, x in before.items()
    }
    count = {"count": np.array(3)}
    return before | count, after | count


def root_mean_square(x: Any) -> float:
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))


def test_the_bound_is_of_the_whole_step_and_of_a_tensors_own_at_most() -> None:
    before, after = decades(np.random.default_rng(0))
    config = Settings(error_bound="step:2", threshold=0, factors={"large.weight": 0.5})
    steps = {name: after[name] - before[name] for name in SCALES}
    whole = root_mean_square(np.stack(list(steps.values())))

    bounds = bounds_of_step(energies(after, Reference(before), config), config)

    own = root_mean_square(steps["small.weight"])
    assert bounds["large.weight"] == pytest.approx(0.5 * 2 * whole, rel=1e-5)
    assert bounds["small.weight"] == pytest.approx(2 * MOST * own, rel=1e-5)
    assert bounds["frozen.weight"] == pytest.approx(2 * whole, rel=1e-5)


@pytest.mark.parametrize("bound", ["std:1", "std:3", "step:1"])
def test_where_nothing_moves_nothing_is_lost(bound: str) -> None:
    before, _ = decades(np.random.default_rng(2))

    back, nbytes = received(before, before, bound)

    assert nbytes < 600
    assert all(back[name].tobytes() == x.tobytes() for name, x in before.items())


def test_a_step_needs_something_that_it_is_from() -> None:
    before, _ = decades(np.random.default_rng(2))
    with pytest.raises(ConfigError, match="reference="):
        fedsz.compress(before, "step:1")
