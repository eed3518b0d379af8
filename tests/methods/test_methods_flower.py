"""Chains of methods as the update of a Flower app: state, admission, and what is added."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.core.reference import Reference
from fedsz.core.tensors import CodedTensor
from fedsz.errors import RefusedReply
from fedsz.flower import StreamingFedAvg
from fedsz.flower.records import sealed
from fedsz.flower.update import Update
from fedsz.methods import Sparse
from tests.federation import Federation, app_of

SHAPE, CLIENTS, STEP = (40, 50), 3, 0.05


def target(client: int) -> np.ndarray:
    """Targets that lie far apart: skewed data."""
    return np.random.default_rng(client).laplace(size=SHAPE).astype(np.float32)


def distance(w: np.ndarray) -> float:
    goal = np.mean([target(client) for client in range(CLIENTS)], axis=0)
    return float(np.square(w - goal).sum() / np.square(goal).sum())


def pulled(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Clients pull the model towards targets of their own."""
    w = arrays["fc.weight"]
    return {"fc.weight": w + STEP * (target(client) - w)}


def trained(update: str, *, rounds: int, strategy: type[FedAvg] = StreamingFedAvg) -> np.ndarray:
    app, start = app_of(pulled, examples=lambda _: 1), {"fc.weight": np.zeros(SHAPE, np.float32)}
    federation = Federation(app, CLIENTS, strategy, start, update=update, threshold=0)
    return federation.run(rounds)["fc.weight"]


@pytest.mark.parametrize(
    "update",
    ["feedback>powersgd:rank=4", "feedback>sign", "qsgd:bits=6,bucket=64"],
)
def test_feedback_on_clients_or_no_bias_brings_the_average_there(update: str) -> None:
    assert distance(trained(update, rounds=60)) < 0.1


@pytest.mark.parametrize("update", ["feedback>topk:k=10%", "randk:k=30%", "qsgd"])
def test_a_strategy_that_streams_gets_what_any_other_gets(update: str, monkeypatch: Any) -> None:
    # One seed for both: it is the run's, which each Grid draws.
    monkeypatch.setattr("fedsz.flower.outgoing.secrets.token_bytes", lambda n: b"\1" * n)

    streamed = trained(update, rounds=4)
    plain = trained(update, rounds=4, strategy=FedAvg)

    assert np.abs(streamed - plain).max() <= 1e-5 * np.abs(plain).max()


def reply(chain: str, seed: int, reference: dict[str, np.ndarray]) -> ArrayRecord:
    moved = {"fc.weight": reference["fc.weight"] + target(1)}
    return sealed(fedsz.compress(moved, reference=reference, chain=chain, seed=seed, threshold=0))


def received(record: ArrayRecord, base: dict[str, np.ndarray], **options: Any) -> Update:
    return Update.open(record, model=base, reference=Reference(base), **options)


def test_another_chain_or_another_seed_is_refused() -> None:
    base = {"fc.weight": np.zeros(SHAPE, np.float32)}
    record = reply("topk:k=10%", 5, base)

    received(record, base, codecs={"topk:k=10%", "raw"}, drawn=(5, 0))
    with pytest.raises(RefusedReply, match=r"packed by topk:k=10%; may be qsgd"):
        received(record, base, codecs={"qsgd"})
    with pytest.raises(RefusedReply, match="another seed or round"):
        received(record, base, drawn=(6, 0))


def test_what_is_sparse_is_added_without_its_zeros() -> None:
    base = {"fc.weight": np.zeros(SHAPE, np.float32)}
    ((_, coded),) = received(reply("topk:k=10%>ternary", 0, base), base)._tensors()
    assert isinstance(coded, CodedTensor)
    sums = np.zeros(SHAPE, np.float32)

    opened = coded.open()
    opened.add(sums, 2.0)

    assert isinstance(opened, Sparse)
    assert opened.values.size == 200
    assert np.allclose(sums, 2 * coded.decode())
    assert opened.energy == pytest.approx(float(np.square(coded.decode()).sum()), rel=1e-5)


def test_a_biased_chain_without_feedback_gives_one_warning(flower_log: list[str]) -> None:
    trained("topk:k=10%", rounds=3)
    trained("feedback>topk:k=10%", rounds=1)

    assert [line for line in flower_log if "biased" in line] == [
        "fedsz: update 'topk:k=10%' is biased, and what it leaves out is lost: write feedback>"
        " before its methods"
    ]
