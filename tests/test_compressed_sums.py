"""Replies by linear chains: they are added up compressed, and decoded once for all clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsz.arrays import Layout
from fedsz.core.chained import ChainEncoder
from fedsz.core.encode import compress_measured
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.errors import CorruptStream, RefusedReply
from fedsz.flower.mean import Mean
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import sealed
from fedsz.flower.refusal import Norm
from fedsz.methods import Shared, TensorSpec, parse, parts_of
from fedsz.methods.base import VALUES, Part
from fedsz.methods.payload import write
from fedsz.stream import CHAIN_DIFFERENCE, Chain, Tensor
from fedsz.stream import Part as Payload
from fedsz.stream import write as write_stream
from tests.federation import to_arrays

SHAPE = (60, 70)
BASE = {"fc.weight": np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)}
WEIGHTS = [1.0, 5.0, 2.0, 3.0]
CHAINS = [
    "randk:k=20%",
    "randk:k=20%,unbiased=0,block=1",
    "sketch:columns=30%",
    "rotate>randk:k=20%",
    "rotate>sketch",
    "rotate>topk:k=5%",
    "rotate>sign",
    "randk:k=20%>qsgd",
    "sketch>uniform@std:0.5",
    "powersgd:rank=16,shared=1",
]


def step(client: int) -> np.ndarray:
    return np.random.default_rng(client + 1).laplace(size=SHAPE).astype(np.float32)


def reply(client: int, chain: str, *, round_: int = 4) -> ReceivedUpdate:
    after = {"fc.weight": BASE["fc.weight"] + step(client)}
    encoder = ChainEncoder(parse(chain), seed=3, round=round_, sender=client)
    config = Settings.of(1e-2, threshold=0)
    return received(compress_measured(after, config, Reference(BASE), encoder=encoder)[0])


def received(blob: bytes) -> ReceivedUpdate:
    held = Reference(BASE)
    return ReceivedUpdate(sealed([blob]), Layout.of(BASE), {held.digest: held}, sent=BASE)


def mean_of(updates: list[ReceivedUpdate], **settings: Any) -> np.ndarray:
    mean = Mean(**settings)
    for update, weight in zip(updates, WEIGHTS, strict=True):
        mean.add(update, weight)
    return to_arrays(mean.result(BASE if settings else None))["fc.weight"]


def decoded_and_added(updates: list[ReceivedUpdate]) -> np.ndarray:
    """The average of replies that are decoded, and scaled, one by one."""
    decoded = [update.arrays()["fc.weight"].astype(np.float64) for update in updates]
    return np.average(decoded, axis=0, weights=WEIGHTS)


# The last two do not add up or tell their norm, so they are decoded for each client.
@pytest.mark.parametrize("chain", [*CHAINS, "randk:k=20%,own=1", "sketch:rows=3"])
@pytest.mark.parametrize("settings", [{}, {"steps": True}], ids=["FedAvg", "FedBuff"])
def test_the_sum_is_that_of_what_is_decoded_and_decoded_once_for_all_clients(
    chain: str, settings: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = [reply(client, chain) for client in range(4)]
    expected = decoded_and_added(updates)
    first: Any = type(parts_of(parse(chain))[0])
    decode, decodes = first.decode, list[tuple[int, ...]]()

    def counted(part: Any, planes: Any, shared: Any) -> Any:
        decodes.append(shared.spec.shape)
        return decode(part, planes, shared)

    monkeypatch.setattr(first, "decode", counted)

    assert np.allclose(mean_of(updates, **settings), expected, atol=2e-5)
    assert decodes.count(SHAPE) == (1 if chain in CHAINS else len(updates))


def test_replies_of_other_rounds_and_chains_have_sums_of_their_own() -> None:
    updates = [reply(0, "sketch"), reply(1, "sketch", round_=5)]
    updates += [reply(2, "rotate"), reply(3, "topk")]

    assert np.allclose(mean_of(updates), decoded_and_added(updates), atol=2e-5)


@pytest.mark.parametrize("chain", CHAINS)
def test_the_norm_is_known_and_a_large_update_is_clipped(chain: str) -> None:
    updates = [reply(client, chain) for client in range(4)]
    for update in updates:
        update.limit, update.clips = Norm(30.0, 30.0), True

    mean = mean_of(updates)

    assert all(update.clipped < 1 for update in updates)
    for update in updates:
        assert update.norm is not None
        assert update.norm.floats == pytest.approx(update.measured().floats, rel=1e-5)
    assert np.allclose(mean, decoded_and_added(updates), atol=2e-5)
    assert np.linalg.norm(mean - BASE["fc.weight"]) <= 30.001


def by_hand(chain: str, values: np.ndarray) -> ReceivedUpdate:
    """A reply of these values, whatever they would be of an honest client."""
    sent = parse(chain).sent(TensorSpec(SHAPE))
    assert sent is not None
    data = write(sent, {VALUES: values.astype(np.float32)})
    tensors = [Tensor("fc.weight", 0, SHAPE)]
    parts = [Payload(0, data, None, (0,), CHAIN_DIFFERENCE)]
    digest = Reference(BASE).digest
    return received(write_stream(tensors, parts, digest, [Chain(chain, 3, 4, 0)]))


@pytest.mark.parametrize(
    "chain", ["randk:k=20%", "sketch:columns=30%", "rotate:block=64", "powersgd:rank=16,shared=1"]
)
@pytest.mark.parametrize(
    ("size", "missing", "why"),
    [(1e25, 0, "values near"), (1e18, 0, "values near"), (1e6, 0, "most is"), (1, 1, "needed")],
    ids=["squares overflow", "their sum does", "above the limit", "one too few"],
)
def test_a_refused_reply_changes_no_bit_of_the_sum(
    chain: str, size: float, missing: int, why: str
) -> None:
    honest = [reply(client, chain) for client in range(4)]
    linear = parse(chain).sent(TensorSpec(SHAPE))
    assert linear is not None
    count = linear.specs({}, TensorSpec(SHAPE))[-1].size
    hostile = by_hand(chain, np.full(count - missing, size))
    hostile.limit = Norm(1e4, 1e4)
    mean, without = Mean(), Mean()

    for update in honest:
        mean.add(update, 1.0)
        without.add(update, 1.0)
    with pytest.raises((RefusedReply, CorruptStream), match=why):
        mean.add(hostile, 1.0)

    ours, theirs = (to_arrays(each.result())["fc.weight"] for each in (mean, without))
    assert np.array_equal(ours, theirs)


def test_columns_that_no_element_has_reach_no_model() -> None:
    """They count for no norm, so a hostile client may write anything there."""
    chain, columns = "sketch:columns=4200", 4200
    (sketch,) = parts_of(parse(chain))
    assert isinstance(sketch, Part)
    gain = np.asarray(sketch.gain(Shared(TensorSpec(SHAPE, name="fc.weight"), 3, 4)))
    largest = np.where(gain == 0, np.finfo(np.float32).max, 0)
    assert 0 < np.count_nonzero(largest) < columns
    mean = Mean()

    for _ in range(3):
        mean.add(by_hand(chain, largest), 1.0)

    assert np.array_equal(to_arrays(mean.result())["fc.weight"], BASE["fc.weight"])
