"""What a chain may cost its receiver, and how little of it is in memory at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsz
from fedsz.codecs.uniform import Uniform
from fedsz.core import decode
from fedsz.errors import CodecError, ConfigError, CorruptStream, LimitExceeded
from fedsz.methods import Shared, TensorSpec, parse, parse_sent
from fedsz.methods.base import Kind
from fedsz.methods.random_k import run, subset
from fedsz.methods.symbols import pack, unpack, write
from fedsz.stream import CHAIN, MOST_CHAINS, Chain, Part, Tensor
from fedsz.stream import write as write_stream
from tests.hostile_headers import sealed_header
from tests.methods.test_methods_laws import PAIRS, WRITTEN


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
        ("sketch:columns=100%,rows=3", "3000000 values of 1000000 elements"),
        (">".join(["sketch:columns=100%,rows=16"] * 8), "values of 1000000 elements"),
    ],
)
def test_chains_that_multiply_are_refused_before_they_decode(text: str, why: str) -> None:
    with pytest.raises(LimitExceeded, match=why):
        fedsz.decompress(stream([text], (1000, 1000)), as_numpy=True)


@pytest.mark.parametrize("shape", [(), (1,), (30, 20), (1000, 1000)])
def test_methods_may_cost_what_their_settings_ask_for(shape: tuple[int, ...]) -> None:
    for text in [
        *WRITTEN,
        *PAIRS,
        "powersgd:rank=256",
        "sketch:columns=5%,rows=16",
        "rotate:block=1048576",
    ]:
        parse(text).require_affordable(TensorSpec(shape))


def test_what_no_receiver_would_decode_is_sent_without_loss() -> None:
    x = np.random.default_rng(0).normal(size=(100, 100)).astype(np.float32)

    blob = fedsz.compress({"w": x}, chain="sketch:columns=100%,rows=9>sign")

    assert np.array_equal(fedsz.decompress(blob, as_numpy=True)["w"], x)


def test_each_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    texts = ["topk:k=17>ternary", "topk:k=17>qsgd"] * 100
    decode._parsed.cache_clear()
    monkeypatch.setattr(
        decode.methods, "parse_sent", lambda text: read.append(text) or parse_sent(text)
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
    sent, _ = chain.encode(x, chain.init(spec), Shared(spec))
    part = Part(0, write(chain, sent), None, (0,), CHAIN)
    blob = bytearray(write_stream([Tensor("w", 0, x.shape)], [part], None, [Chain(text, 0, 0, 0)]))

    y = fedsz.decompress(blob, as_numpy=True)["w"]
    y += 1
    blob[:] = bytes(len(blob))

    assert np.array_equal(y, np.ones_like(x))


def drawn(shared: Shared, k: int) -> set[int]:
    """The first k different positions of docs/format.md, one after the other."""
    found: dict[int, None] = {}
    i = 0
    while len(found) < k:
        found[(int(shared.words(1, i)[0]) >> 32) * shared.spec.size >> 32] = None
        i += 1
    return set(found)


def places(found: np.ndarray, k: int, size: int) -> list[int]:
    """Positions, as a list."""
    assert (found.dtype, found.size, found.max() < size) == (np.int64, k, True)
    return list(found.tolist())


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


def test_levels_take_four_bytes_and_those_that_are_too_large_are_refused() -> None:
    levels = np.array([0, -1, 1, -1000, 1 << 22] * 30_000)

    found = unpack(Kind.LEVELS, pack(Kind.LEVELS, levels), levels.size, TensorSpec(levels.shape))

    assert found.dtype == np.int32
    assert np.array_equal(found, levels)
    with pytest.raises(CodecError, match="a level of 4194305; limit 4194304"):
        pack(Kind.LEVELS, -1 - levels)


@pytest.mark.parametrize("level", [np.nan, np.inf, -float(1 << 23)])
def test_a_level_that_is_none_is_refused(level: float) -> None:
    data = Uniform().encode(np.array([1, level, 2], np.float32), 0.1)

    with pytest.raises(CorruptStream, match="a level out of range"):
        unpack(Kind.LEVELS, data, 3, TensorSpec((3,)))
