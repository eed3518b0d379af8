"""What methods make of tensors, settings, states and claims that do not fit."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import numpy as np
import pytest

import fedsz
from fedsz.errors import ConfigError
from fedsz.methods import Shared, TensorSpec, parse
from fedsz.methods.base import dense
from fedsz.methods.random_k import RandomK
from fedsz.methods.settings import Flag
from fedsz.stream import Reader
from fedsz.update.chained import ChainDecoder, ChainEncoder
from fedsz.update.compress import compress_measured
from fedsz.update.config import CompressionConfig
from fedsz.update.lossless import Entry
from tests.test_methods_laws import WRITTEN, assert_adds_up, coded, ordinary, shared_of


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        *((text, (30, 20)) for text in ("topk:k=700", "rtopk:k=700,among=900", "randk:k=700")),
        *itertools.product(
            ("powersgd:rank=256", "atomo:rank=256"), ((30, 20), (1, 600), (600,), ())
        ),
    ],
)
def test_more_than_there_is_sends_the_tensor_as_it_is(text: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)

    _, y, _ = coded(parse(text), x, shared_of(x))

    assert np.array_equal(x, y)


@pytest.mark.parametrize("text", ["feedback>topk", "feedback>powersgd", "dgc>topk"])
def test_a_state_of_another_model_is_begun_anew(text: str) -> None:
    ours, theirs = ordinary(3), ordinary(4, 900)
    before = ChainEncoder(parse(text))
    before.encode(Entry(0, "fc.weight", theirs), None)
    assert before.left

    goes_on, fresh = ChainEncoder(parse(text), kept=before.left), ChainEncoder(parse(text))
    payloads = [encoder.encode(Entry(0, "fc.weight", ours), None) for encoder in (goes_on, fresh)]

    assert payloads[0] == payloads[1]
    assert payloads[0] is not None


def test_a_tensor_with_nan_forgets_its_state() -> None:
    x = ordinary(5)
    x[3, 4] = np.nan
    encoder = ChainEncoder(parse("feedback>topk"))

    assert encoder.encode(Entry(0, "fc.weight", x), None) is None
    assert encoder.left == {}


@pytest.mark.parametrize("text", ["randk:k=20%", "sketch", "rotate>sign"])
def test_another_seed_decodes_something_else(text: str) -> None:
    x, transform = ordinary(6), parse(text)
    spec = TensorSpec(x.shape, name="fc.weight")
    parts, _ = transform.encode(x, {}, Shared(spec, seed=1))

    decoded = [dense(transform.decode(parts, Shared(spec, seed=seed))) for seed in (1, 2)]

    same, other = (float(np.vdot(y, x) / np.vdot(x, x)) for y in decoded)
    assert same > 0.5
    assert abs(other) < 0.3


@dataclass(frozen=True)
class Claimed(RandomK):
    """Says that it adds up, though each sender has positions of its own."""

    linear = True


def test_a_claim_to_be_linear_that_does_not_hold_fails_the_law() -> None:
    with pytest.raises(AssertionError):
        assert_adds_up(Claimed(own=Flag(1)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ecx:smooth=0>topk", "ecx smooth must lie above 0, up to 0.5, got 0"),
        ("ecx:smooth=1>topk", "ecx smooth must lie above 0, up to 0.5, got 1"),
        ("ecx>qsgd", "write qsgd:unbiased=0"),
        ("adaptive>feedback>sign", "adaptive needs a part with a k, such as topk"),
        ("adaptive>randk", "adaptive needs a part with a k, such as topk"),
        ("adaptive:times=0.5>topk", "adaptive times must be finite and at least 1, got 0.5"),
        ("adaptive:threshold=nan>topk", "adaptive threshold must be finite and above 0, got nan"),
        ("adaptive:by=luck>topk", "must be one of change, variance, got 'luck'"),
        ("feedback>adaptive>topk", "adaptive must stand before feedback"),
        ("adaptive>difference>topk", "must stand before all others"),
        ("topk>feedback", "must stand before all parts"),
        ("feedback>qsgd", "grows without end"),
        ("ternary>uniform@std:1", "must come back exactly"),
        *(
            (f"{name}:k={k}", "a number of elements or a share")
            for name in ("topk", "rtopk", "randk", "sbc", "threshold")
            for k in ("0", "0%", "101%", "-1", "1.5", "nan", "inf", "few")
        ),
        ("powersgd:rank=0", "powersgd rank must lie in 1..256, got 0"),
        ("weight", "no update 'weight'; have weights,"),
        ("weight", "no method 'weight'"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_written(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        CompressionConfig(update=text)


NEAR_THE_LARGEST = [
    *WRITTEN,
    "rotate>qsgd",
    "rotate>natural",
    "powersgd>zstd",
    "randk:k=50%>uniform@std:1",
    "adaptive>feedback>topk>ternary",
    "adaptive:by=variance>ecx>topk",
    "feedback>centroids",
]


@pytest.mark.parametrize("text", NEAR_THE_LARGEST)
@pytest.mark.filterwarnings("error")
def test_near_the_largest_number_what_is_written_decodes(text: str) -> None:
    rng = np.random.default_rng(8)
    for dtype in (np.float32, np.float64):
        largest = np.finfo(dtype).max
        for signs in (rng.choice([-1, 1], (30, 40)), rng.uniform(-1, 1, (30, 40)), np.eye(30, 40)):
            x = (signs * largest).astype(dtype)
            encoder = ChainEncoder(parse(text))
            config = CompressionConfig(threshold=0)
            blob, _ = compress_measured({"w": x}, config, encoder=encoder)
            (y,) = fedsz.decompress(blob, as_numpy=True).values()

            assert np.isfinite(y).all()
            assert all(np.isfinite(array).all() for array in encoder.left.values())


@pytest.mark.parametrize("text", ["topk:k=3", "sign"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("error")
def test_a_difference_beyond_the_largest_number_stops_there(text: str, dtype: type) -> None:
    largest = np.finfo(dtype).max
    base = {"w": np.full((30, 40), 0.9 * largest, dtype)}
    base["w"][0, :2] = np.inf, -np.inf
    x = np.full((30, 40), 0.5 * largest, dtype)
    blob = fedsz.compress({"w": x}, chain=text, threshold=0)
    reader = Reader(blob)
    ((payload, data, _),) = reader.payloads()
    decoder = ChainDecoder.of(reader.header.chains[payload.codec_id], None)

    y = decoder.decode(data, x.shape, x.dtype, base["w"])

    step = decoder.decode(data, x.shape, x.dtype)
    with np.errstate(over="ignore"):
        whole = base["w"] + step
    assert np.array_equal(y, np.where(np.isinf(whole) & np.isfinite(base["w"]), largest, whole))
    assert (y == largest).any()
