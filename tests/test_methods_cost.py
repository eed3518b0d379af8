"""What a chain may cost its receiver, and how little of it is in memory at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsz
from fedsz.core import chained
from fedsz.errors import ConfigError, CorruptStream, LimitExceeded
from fedsz.methods import Shared, TensorSpec, parse, planes
from fedsz.methods.base import MANY, Kind, counted
from fedsz.methods.payload import write
from fedsz.methods.planes import DOUBLE, FIXED, GAPS, SINGLE, pack, unpack
from fedsz.methods.random_k import run, subset
from fedsz.stream import CHAIN, MOST_CHAINS, Chain, Part, Tensor
from fedsz.stream import write as write_stream
from tests.hostile_headers import sealed_header
from tests.test_methods_laws import PAIRS, WRITTEN


def stream(texts: list[str], shape: tuple[int, ...] = (40, 50)) -> bytes:
    """Return a stream of as many tensors of no bytes, each by a chain of its own."""
    return write_stream(
        [Tensor(f"{i}", 0, shape) for i in range(len(texts))],
        [Part(i, b"", None, (i,), CHAIN) for i in range(len(texts))],
        None,
        [Chain(text, seed, 0, 0) for seed, text in enumerate(texts)],
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sketch:columns=100%,rows=3", r"a chain of 4\.0 times its tensor; limit 3"),
        (">".join(["sketch:columns=100%,rows=16"] * 8), "times its tensor"),
        (">".join(["sketch:columns=5%,rows=16"] * 4), "a chain of 47 steps an element; limit 40"),
        ("powersgd:rank=256>rotate>sketch:columns=5%,rows=16", "steps an element"),
    ],
)
def test_chains_that_multiply_are_refused_before_they_decode(text: str, why: str) -> None:
    with pytest.raises(LimitExceeded, match=why):
        fedsz.decompress(stream([text], (1000, 1000)), as_numpy=True)


@pytest.mark.parametrize("shape", [(), (1,), (30, 20), (1000, 1000)])
def test_methods_may_cost_what_their_settings_ask_for(shape: tuple[int, ...]) -> None:
    for text in [*WRITTEN, *PAIRS, "powersgd:rank=256", "sketch:rows=16", "rotate:block=1048576"]:
        spec = TensorSpec(shape)
        chain = parse(text).sent(spec)
        assert chain is not None
        chain.require_affordable(spec)


def test_what_no_receiver_would_decode_is_sent_without_loss() -> None:
    x = np.random.default_rng(0).normal(size=(100, 100)).astype(np.float32)

    blob = fedsz.compress({"w": x}, chain="sketch:columns=100%,rows=9>sign")

    assert np.array_equal(fedsz.decompress(blob, as_numpy=True)["w"], x)


def test_each_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    texts = ["topk:k=17>ternary", "topk:k=17>qsgd"] * 100
    chained._parsed.cache_clear()
    monkeypatch.setattr(
        chained.methods, "parse", lambda text, **how: read.append(text) or parse(text, **how)
    )

    for _ in range(2):
        with pytest.raises(CorruptStream, match="a number ends early"):
            fedsz.decompress(stream(texts), as_numpy=True)

    assert read == texts[:2]


def test_a_stream_has_some_hundred_chains_at_most() -> None:
    with pytest.raises(ConfigError, match="a stream of 257 chains; limit 256"):
        stream(["topk"] * (MOST_CHAINS + 1))
    chain, payload = ["topk", 0, 0, 0], [0, CHAIN, 0, 0, None]
    for count, why in ((MOST_CHAINS, "ends early"), (MOST_CHAINS + 1, "257 chains; limit 256")):
        header: dict[str, Any] = {
            "tensors": [[f"{i}", 0, [9]] for i in range(count)],
            "payloads": [[*payload, [i]] for i in range(count)],
            "reference": None,
            "chains": [chain] * count,
        }
        with pytest.raises(CorruptStream, match=why):
            fedsz.decompress(sealed_header(header, version=3), as_numpy=True)


@pytest.mark.parametrize("text", ["zstd", "powersgd:rank=200", "topk:k=100%"])
def test_what_was_sent_as_it_is_is_the_receivers_own(text: str) -> None:
    x, chain = np.zeros((60, 50), np.float32), parse(text)
    spec = TensorSpec(x.shape)
    sent, plain = chain.encode(x, chain.init(spec), Shared(spec)).planes, chain.sent(spec)
    assert plain is not None
    part = Part(0, write(plain, sent), None, (0,), CHAIN)
    blob = bytearray(write_stream([Tensor("w", 0, x.shape)], [part], None, [Chain(text, 0, 0, 0)]))

    y = fedsz.decompress(blob, as_numpy=True)["w"]
    y += 1
    blob[:] = bytes(len(blob))

    assert np.array_equal(y, np.ones_like(x))


@pytest.mark.parametrize("size", [1, 16, 1000, 200_001])
@pytest.mark.parametrize("share", [0.001, 0.124, 0.126, 0.6, 1.0])
def test_indices_of_many_elements_are_a_mask(size: int, share: float) -> None:
    rng, count = np.random.default_rng(0), max(round(share * size), 1)
    indices = np.sort(rng.choice(size, count, replace=False))

    found = unpack(Kind.INDICES, pack(Kind.INDICES, indices), count, TensorSpec((size,)))

    assert (found.dtype == np.bool_) == (MANY * count > size)
    assert counted(found) == count
    assert np.array_equal(np.flatnonzero(found) if MANY * count > size else found, indices)


def drawn(shared: Shared, k: int) -> set[int]:
    """The first k different positions of docs/format.md, one after the other."""
    found: dict[int, None] = {}
    i = 0
    while len(found) < k:
        found[(int(shared.words(1, i)[0]) >> 32) * shared.spec.size >> 32] = None
        i += 1
    return set(found)


def places(found: np.ndarray, k: int, size: int) -> list[int]:
    """Positions, which are a mask where they are many."""
    assert (found.dtype == np.bool_) == (MANY * k > size)
    return (np.flatnonzero(found) if found.dtype == np.bool_ else found).tolist()


@pytest.mark.parametrize(
    ("size", "k"), [(1, 1), (50, 3), (50, 7), (50, 25), (50, 26), (50, 50), (9000, 3000)]
)
def test_drawn_positions_are_the_first_different_ones(
    size: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsz.methods.random_k.CHUNK", 64)  # of 3,000, many are drawn at a time
    shared = Shared(TensorSpec((size,), name="w"), seed=3)
    expected = drawn(shared, min(k, size - k))
    expected = set(range(size)) - expected if 2 * k > size else expected

    assert places(subset(shared, k, own=False), k, size) == sorted(expected)


@pytest.mark.parametrize(("size", "k"), [(50, 3), (50, 7), (50, 49), (50, 50), (7, 5)])
def test_a_drawn_run_goes_on_at_the_start(size: int, k: int) -> None:
    for seed in range(8):
        shared = Shared(TensorSpec((size,), name="w"), seed=seed)
        (start,) = drawn(shared, 1)

        assert places(run(shared, k, own=False), k, size) == sorted(
            (start + i) % size for i in range(k)
        )


def numbers(mode: int, zigzag: Any, width: int = 0) -> bytes:
    """A plane of numbers, coded in one of the modes."""
    x = np.asarray(zigzag, np.int64)
    if mode == FIXED:
        bits = [planes._pack_bits(x >> b & 1) for b in range(width)]
        return bytes([FIXED, width, *b"".join(bits)])
    return bytes([mode]) + planes._BY_FREQUENCY.encode(x.astype(planes._EXACT[mode]), 0.499)


@pytest.mark.parametrize("mode", [FIXED, SINGLE, DOUBLE])
def test_levels_take_four_bytes_in_each_mode(mode: int) -> None:
    levels = np.array([0, -1, 1, -1000, 2**21 - 1] * 30_000)
    zigzag = levels << 1 ^ levels >> 63

    found = unpack(Kind.LEVELS, numbers(mode, zigzag, 22), levels.size, TensorSpec(levels.shape))

    assert found.dtype == np.int32
    assert (found.base if found.base is not None else found).nbytes <= 4 * levels.size + 8
    assert np.array_equal(found, levels)


@pytest.mark.parametrize(("mode", "width"), [(FIXED, 33), (FIXED, 48), (DOUBLE, 0)])
def test_levels_of_more_than_four_bytes_are_of_no_such_tensor(mode: int, width: int) -> None:
    for level, fits in ((2**31 - 1, True), (2**31, False), (-(2**31), False)):
        plane = numbers(mode, [level << 1 ^ level >> 63] * 9, width)
        if fits:
            assert unpack(Kind.LEVELS, plane, 9, TensorSpec((9,))).tolist() == [level] * 9
            continue
        with pytest.raises(CorruptStream, match="a level out of range"):
            unpack(Kind.LEVELS, plane, 9, TensorSpec((9,)))
        large = unpack(Kind.LEVELS, plane, 9, TensorSpec((1 << 31,)))
        assert (large.dtype, large.tolist()) == (np.int64, [level] * 9)


@pytest.mark.parametrize("mode", [GAPS, FIXED, SINGLE])
def test_trits_come_back_in_each_mode(mode: int) -> None:
    trits = np.tile(np.array([1, -1, -1, 1, 1, -1, 1], np.int8), 20_001)
    if mode != FIXED:
        trits[3::5] = 0
    plane = pack(Kind.TRITS, trits)
    if mode == GAPS:
        filled = np.pad(trits + 1, (0, -trits.size % 5)).reshape(-1, 5)
        plane = bytes([GAPS]) + (filled @ (3 ** np.arange(5))).astype(np.uint8).tobytes()
    assert plane[0] == mode

    assert np.array_equal(unpack(Kind.TRITS, plane, trits.size, TensorSpec(trits.shape)), trits)
