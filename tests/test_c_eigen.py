"""libfedsz's chains beside Python's: histories of broadcasts, coefficients in their bases."""

from __future__ import annotations

import ctypes as c
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fedsz
from fedsz.core.chained import ChainEncoder
from fedsz.core.decode import decompress
from fedsz.core.encode import compress_measured
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.step import energies, root_mean_square, scales_of_step
from fedsz.errors import ConfigError, CorruptStream, FedszError, ReferenceMismatch
from fedsz.methods import History, parse
from fedsz.stream import Reader
from tests import c_library
from tests.c_library import Chain, Library, NoRoom, moved
from tests.eigen_fleet import model, stepped, ways
from tests.golden.make import CASES, after, before, before_that
from tests.test_c_library import pytestmark  # noqa: F401
from tests.test_c_library_forged import Forgery

State = dict[str, np.ndarray]

TEXTS = [
    *("eigen>uniform@std:1", "eigen>uniform:effort=9@0.01", "uniform@abs:0.0003"),
    *("eigen>uniform@step:1", "uniform@step:0.5", "eigen>uniform:effort=0@abs:1e-07"),
    "eigen>uniform@std:30",
]


@pytest.fixture(scope="module")
def library() -> Library:
    return c_library.of_checkout()


def grown(models: list[Reference]) -> Reference:
    """The last model, with what the way to it has shown."""
    history = History()
    for old, new in pairwise(models):
        history = history.beyond(old, new)
    return models[-1].with_history(history)


@contextmanager
def chained(
    library: Library,
    text: str,
    models: list[Reference],
    step: float = 0.0,
    round_: int = 0,
    **fields: Any,
) -> Iterator[tuple[c_library.Settings, c.c_void_p]]:
    """Settings of a chain in the basis of models, and their history."""
    arrays = [m.arrays for m in models]
    with library.history(arrays) as history, library.reference(arrays[-1]) as base:
        chain = Chain(text.encode(), history, step, 1 << 63, round_, 3)
        options = {"lossless": "raw", "threshold": 0, "reference": base, **fields}
        yield library.settings(chain=chain, **options), history


def shrinking(text: str, share: float) -> str:
    """A chain whose `uniform` shrinks; its streams do not say so."""
    coder, *more = text.partition("uniform")[2].split("@")[0].split(":")
    assert not coder
    settings = ",".join([f"shrink={share}", *more])
    return re.sub("uniform[^@]*", f"uniform:{settings}", text)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_rounds_with_feedback_are_pythons(library: Library, dtype: Any, text: str) -> None:
    models = ways(model(dtype))
    now = grown(models)
    kept, config = {}, Settings(threshold=0, lossless="raw")
    residual: State = {}
    for round_ in range(3):
        update = stepped(now.arrays, 10 + round_)
        update["fc.weight"] = moved(update["fc.weight"], 1e-3, round_)
        if round_ == 2:
            update["fc.bias"][3] = np.nan
        if round_:  # by four times its own step, and where nothing has moved
            conv = now.arrays["conv.weight"]
            update["conv.weight"] = moved(conv, 1e-4 * (round_ == 1))
        found = energies(update, now, config)
        step, shrink = root_mean_square(found), 0.25 * (round_ == 1)
        encoder = ChainEncoder(
            parse(f"feedback>{shrinking(text, shrink)}"), seed=1 << 63, round=round_, sender=3,
            kept=kept, history=now.history, scales=scales_of_step(found),
        )  # fmt: skip
        expected = compress_measured(update, config, now, encoder=encoder)[0]
        left: State = {}

        how_much = {"feedback": 1, "shrink": shrink}
        with chained(library, text, models, step, round_, **how_much) as (how, history):
            stream = library.compress(update, how, residual=residual, left=left)
            decoded = library.decompress(stream, now.arrays, history=history)

        assert stream == expected
        kept, residual = encoder.left, left
        for name, x in left.items():
            assert x.tobytes() == kept.get(f"residual/{name}", np.zeros_like(x)).tobytes(), name
        for name, y in decompress(stream, reference=now, as_numpy=True).items():
            assert decoded[name].tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_bounds_of_large_steps_are_pythons(library: Library, dtype: Any) -> None:
    """Many sums on the way: any other order of theirs would be another bound, and other bytes."""
    rng = np.random.default_rng(1)
    before = {"w": rng.normal(size=(300, 701)), "v": rng.normal(size=(70_001,)), "ugly": np.ones(9)}
    base = Reference({name: x.astype(dtype) for name, x in before.items()})
    update = {name: moved(x, 1e-2, 3) for name, x in base.arrays.items()}
    update["v"] = moved(base.arrays["v"], 1e-4 if np.dtype(dtype).itemsize > 2 else 0.0, 4)
    update["ugly"][:] = np.nan
    config = Settings(threshold=0, lossless="raw")
    found = energies(update, base, config)
    assert found.keys() == {"w", "v"}
    encoder = ChainEncoder(parse("uniform@step:0.3"), seed=1 << 63, sender=3,
                           scales=scales_of_step(found))  # fmt: skip
    expected = compress_measured(update, config, base, encoder=encoder)[0]
    by_c = {name: library.energy(x, base.arrays[name]) for name, x in update.items()}
    assert not np.isfinite(by_c.pop("ugly"))
    assert by_c == {name: energy for name, (_, energy) in found.items()}

    step = np.sqrt(sum(by_c.values()) / sum(count for count, _ in found.values()))
    with chained(library, "uniform@step:0.3", [base], step) as (how, _):
        assert library.compress(update, how) == expected


def test_energies_that_are_refused(library: Library) -> None:
    x, found = np.ones(5, np.float32), c.c_double()
    at, count = c.c_void_p(c_library.address(x)), c.c_size_t(5)
    for arguments, why in (
        ((4, at, at, count, c.byref(found)), "of tensors that may be lossy"),
        ((0, None, at, count, c.byref(found)), "x must not be NULL"),
        ((0, at, None, count, c.byref(found)), "base must not be NULL"),
        ((0, at, at, count, None), "energy must not be NULL"),
        ((1, c.c_void_p(c_library.address(x) + 4), at, c.c_size_t(2), c.byref(found)), "aligned"),
    ):
        with pytest.raises(ConfigError, match=why):
            library.call("fedsz_energy", *arguments)
    library.call("fedsz_energy", 0, None, None, c.c_size_t(0), c.byref(found))
    assert found.value == 0


def test_values_and_other_histories_are_pythons(library: Library) -> None:
    """Without a reference, a history, or anything that has gone into it."""
    models = ways(model())
    update = stepped(models[-1].arrays, 5)
    config = Settings(threshold=0, lossless="zlib")
    for text in ("eigen>uniform@std:0.5", "uniform@0.02"):
        for own in (None, History(), grown(models).history):
            for base in (None, models[-1]):
                encoder = ChainEncoder(parse(text), history=own)
                expected = compress_measured(update, config, base, encoder=encoder)[0]
                some = models if own and own.products else models[-1:]
                with chained(library, text, some, lossless="zlib") as (how, history):
                    chain = Chain(text.encode(), history if own is not None else None)
                    how.chain = c.addressof(chain)
                    how.reference = how.reference if base else None
                    stream = library.compress(update, how)
                    assert stream == expected
                    if own and own.products and base is None:
                        continue  # coefficients of no model, which Python decodes of none either
                    decoded = library.decompress(stream, models[-1].arrays, history=history)
                reference = models[-1].with_history(own)
                for name, y in decompress(stream, reference=reference, as_numpy=True).items():
                    assert decoded[name].tobytes() == y.tobytes()


@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_read_as_by_python(library: Library, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    x = {"x": np.random.default_rng(0).normal(size=500).astype(np.float32)}
    for _ in range(60):
        number = f"{rng.uniform(0.1, 10) * 10 ** rng.randint(-10, 10):.{rng.randint(0, 11)}e}"
        text = f"uniform@abs:{rng.choice([number, str(float(number)), f'{float(number):g}'])}"
        chain = Chain(text.encode())
        stream = library.compress(x, library.settings(chain=chain, lossless="raw", threshold=0))
        expected = fedsz.compress(x, chain=text, lossless="raw", threshold=0)
        assert [bytes(d) for _, d, _ in Reader(stream).payloads()] == [
            bytes(d) for _, d, _ in Reader(expected).payloads()
        ], text


def test_histories_are_pythons_whatever_becomes_of_tensors(library: Library) -> None:
    first, second, third = ways(model())
    second.arrays["fc.weight"][0, 0] = np.nan  # moves in the second step alone
    third.arrays["new.weight"] = np.ones((3, 4), np.float32)
    for n, m in enumerate((first, second, third)):
        m.arrays["turned.weight"] = np.arange(60.0).reshape((5, 12) if n else (12, 5))
        m.arrays["steps"] = np.full((3, 4), n)
        # Products of either shape have as many elements.
        wide = np.random.default_rng(n).normal(size=(13, 69 if n == 2 else 63))
        m.arrays["wide.weight"] = wide.astype(np.float32)
    third.arrays["turned.weight"] = third.arrays["turned.weight"][::-1].copy()
    third.arrays["fc.weight"] = np.zeros_like(third.arrays["fc.weight"])
    fourth = Reference({name: moved(x, 0.1) for name, x in third.arrays.items()})
    models = [Reference(m.arrays) for m in (first, second, third, fourth)]
    now = grown(models)
    assert now.history is not None
    assert now.history.products.keys() == {
        *("conv.weight", "fc.weight", "new.weight", "turned.weight", "wide.weight")
    }
    update = {name: moved(x, 0.1, 5) for name, x in fourth.arrays.items()}
    encoder = ChainEncoder(parse("eigen>uniform@std:1"), history=now.history)
    config = Settings(threshold=0, lossless="raw")
    stream = compress_measured(update, config, now, encoder=encoder)[0]

    with library.history([m.arrays for m in models]) as history:
        assert library.history_digest(history) == now.history.digest
        decoded = library.decompress(stream, fourth.arrays, history=history)

    for name, y in decompress(stream, reference=now, as_numpy=True).items():
        assert decoded[name].tobytes() == y.tobytes()


def test_what_fails_leaves_a_history_as_it_was(library: Library) -> None:
    models = ways(model())
    with library.history([m.arrays for m in models]) as history:
        expected = library.history_digest(history)
        other = {name: x.astype(np.float64) for name, x in models[-1].arrays.items()}
        with library.reference(models[-1].arrays) as old, library.reference(other) as new:
            for refused in ((history, old, new), (history, None, new), (None, old, old)):
                with pytest.raises(ConfigError, match=r"another dtype|must not be NULL"):
                    library.call("fedsz_history_advance", *refused)
        assert library.history_digest(history) == expected
    with library.history([]) as history:
        assert library.history_digest(history) == b""


def test_a_writer_ends_where_its_history_goes_on(library: Library) -> None:
    models = ways(model())
    (name, x), *others = stepped(models[-1].arrays, 9).items()

    with (
        chained(library, "eigen>uniform@std:1", models) as (how, history),
        library.reference(models[-1].arrays) as old,
        library.reference(stepped(models[-1].arrays, 8)) as new,
    ):

        class Meanwhile(dict[str, np.ndarray]):
            def items(self) -> Any:
                yield name, x
                library.call("fedsz_history_advance", history, old, new)
                yield from others

        with pytest.raises(ConfigError, match="has gone on since this writer began"):
            library.compress(Meanwhile(), how)


def test_coefficients_of_another_history_are_refused(library: Library) -> None:
    models = ways(model())
    first, second, third = (m.arrays for m in models)
    with chained(library, "eigen>uniform@std:1", models) as (how, _):
        stream = library.compress(stepped(third, 9), how)

    for other in ([second, third], [third], [first, second]):
        with (
            library.history(other) as history,
            pytest.raises(ReferenceMismatch, match="in the basis of history"),
        ):
            library.decompress(stream, third, history=history)
    with pytest.raises(ReferenceMismatch, match="there is none here"):
        library.decompress(stream, third)


def test_chains_that_are_not_taken_are_said(library: Library) -> None:
    x = {"x": np.arange(4096, dtype=np.float32)}
    for text in (
        *("", "uniform", "uniform@", "uniform@0", "uniform@rel:1", "uniform@-1", "uniform@1e400"),
        *("uniform@nan", "uniform@std:1 ", "feedback>uniform@std:1", "topk>uniform@std:1"),
        *("eigen", "eigen>", "eigen>eigen>uniform@1", "eigen:of=00>uniform@std:1"),
        *("uniform:effort=10@std:1", "uniform@mean:1", "zfp@std:1", "uniform@std:1>uniform@std:1"),
    ):
        with pytest.raises(ConfigError, match="no chain that this library writes"):
            library.compress(x, library.settings(chain=Chain(text.encode())))
    for chain, why in (
        (Chain(b"uniform@step:1", None, 1.0), "needs a reference"),
        (Chain(b"uniform@std:1", None, np.nan), "step must be finite"),
        (Chain(b"uniform@std:1", None, -1.0), "step must be finite"),
        (Chain(None), "text must not be NULL"),
    ):
        with pytest.raises(ConfigError, match=why):
            library.compress(x, library.settings(chain=chain))


@pytest.mark.parametrize("text", ["eigen>uniform:effort=9@std:1", "uniform@std:0.1"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_workspace_is_enough_or_too_small(library: Library, dtype: Any, text: str) -> None:
    rng = np.random.default_rng(0)
    shapes = {"conv": (64, 33, 3, 3), "fc": (300, 280), "flat": (70_000,), "small": (9, 5)}
    first = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    models = ways(first)
    update = {name: moved(x, 0.01, 3) for name, x in models[-1].arrays.items()}
    residual = {
        name: np.full(x.shape, 1e-3, np.float64 if dtype == np.float64 else np.float32)
        for name, x in update.items()
    }
    with chained(library, text, models, feedback=1) as (how, _):
        expected = library.compress(update, how, residual=residual, left={})
        wanted = library.workspace(update, how)
        memory = np.full(wanted + 128, 0xA5, np.uint8)
        how.workspace, how.workspace_size = c_library.address(memory[61:]), wanted

        assert library.compress(update, how, residual=residual, left={}) == expected
        assert (memory[:61] == 0xA5).all()
        assert (memory[61 + wanted :] == 0xA5).all()
        for part in (2, 3, 7, 50):
            how.workspace_size = wanted // part
            try:
                assert library.compress(update, how, residual=residual, left={}) == expected
            except NoRoom:
                continue


@pytest.mark.parametrize("seed", range(6))
def test_forged_chains_are_refused_as_by_python(library: Library, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    now = CASES["chain-eigen-uniform-std-1"].reference()
    assert isinstance(now, Reference)
    encoder = ChainEncoder(parse("eigen>uniform@std:1"), seed=7, history=now.history)
    whole = compress_measured(after(), Settings(lossless="raw"), now, encoder=encoder)[0]
    seen = set()
    with library.history([before_that(), before()]) as history:
        for _ in range(120):
            forged = Forgery.of(whole, now.arrays)
            _damage(forged, rng)
            blob = forged.sealed()
            by_c, by_python = (
                _verdict(lambda blob=blob: library.decompress(blob, now.arrays, history=history)),
                _verdict(lambda blob=blob: decompress(blob, reference=now, as_numpy=True)),
            )
            assert by_c == by_python or by_c == "CodecUnavailable", (by_c, by_python)
            seen.add(by_c if isinstance(by_c, str) else "read")
    assert {"read", "CorruptStream"} <= seen


def _damage(forged: Forgery, rng: random.Random) -> None:
    i = rng.randrange(len(forged.payloads))
    data, chain = bytearray(forged.payloads[i]), forged.fields["chains"][0]
    match rng.randrange(5):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            data[: rng.randrange(12)] = rng.randbytes(rng.randrange(12))
        case 2:
            del data[rng.randrange(len(data)) :]
        case 3:
            shape = forged.fields["tensors"][i][2]
            shape[:] = rng.choice([[60, 40], [40, 60, 1], [2400], [40, 30, 2], [1, 2400], [24] * 2])
        case _:
            texts = ["uniform@std:1", "eigen>uniform@1", "eigen:of=>uniform@1", "sign"]
            texts += ["eigen:of=0123456789abcdef>uniform@1", f"{chain[0]}0"]
            chain[0] = rng.choice([*texts, "eigen:of>uniform@1", chain[0].replace("std", "abs")])
    forged.payloads[i] = bytes(data)


def _verdict(read: Any) -> object:
    try:
        return {name: y.tobytes() for name, y in read().items()}
    except CorruptStream:
        return "CorruptStream"
    except FedszError as err:
        return type(err).__name__
