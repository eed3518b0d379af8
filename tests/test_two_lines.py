"""The two lines compress, and change nothing else of an app that knows nothing of fedsz."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsz.errors import ConfigError
from fedsz.flower import AdmissionRules, FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
from fedsz.flower.bench import PATIENCE
from tests.federation import (
    Watched,
    app_of,
    around,
    grid_of,
    initial,
    moved,
    record_of,
    run,
    to_arrays,
)


def weighing(*examples: int, **metrics: Any) -> Any:
    """An app whose clients have so many examples, and say ``metrics`` besides."""

    def tell(client: int, _: Message, reply: Message) -> None:
        number = examples[client % len(examples)]
        told = {name: said(client) for name, said in metrics.items()}
        reply.content["metrics"] = MetricRecord({"num-examples": number, **told})

    return around(app_of(), after=tell)


def average(grid: Any) -> np.ndarray:
    result = run(FedAvg(fraction_evaluate=0), grid, rounds=2)
    return to_arrays(result.arrays)["fc.bias"]


@pytest.mark.parametrize("examples", [(5000, 9000, 1, 1), (1, 1, 1, 10**7), (10**14, 1, 2, 3)])
def test_clients_weigh_what_they_say(examples: tuple[int, ...], caplog: Any) -> None:
    plain = average(grid_of(weighing(*examples)))

    with caplog.at_level(logging.WARNING):
        wrapped = average(FedSZGrid(grid_of(weighing(*examples)), "abs:1e-7"))

    assert np.allclose(plain, wrapped, rtol=1e-6, atol=1e-6)
    assert "counts as" not in caplog.text


def test_metrics_are_the_apps_own_business() -> None:
    metrics: Any = {"loss": lambda client: math.nan if client == 1 else 1.0}
    grid = FedSZGrid(grid_of(weighing(1, 2, 3, 4, **metrics)))

    run(FedAvg(fraction_evaluate=0), grid, rounds=2)

    assert grid.take_traffic().failures == []


def test_nobody_is_benched_and_no_round_needs_a_quorum() -> None:
    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if client:
            raise RuntimeError("not today")
        return moved(arrays, client)

    grid = FedSZGrid(grid_of(app_of(edit)))

    run(FedAvg(fraction_evaluate=0), grid, rounds=3 * PATIENCE)

    assert grid.take_traffic().replies == 3 * PATIENCE
    assert grid._admission.bench.until == {}


def test_no_update_of_a_plain_app_is_clipped() -> None:
    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        far = 1e4 if client == 3 else 1.0
        return {name: x + x.dtype.type(far) for name, x in arrays.items() if x.dtype.kind == "f"}

    def ended(grid: Any) -> np.ndarray:
        model = {name: x for name, x in initial().items() if name == "fc.weight"}
        strategy = FedAvg(fraction_evaluate=0)
        return to_arrays(strategy.start(grid, record_of(model), num_rounds=2).arrays)["fc.weight"]

    plain, wrapped = ended(grid_of(app_of(edit))), ended(FedSZGrid(grid_of(app_of(edit)), 1e-6))

    assert np.abs(plain - wrapped).max() <= 0.1  # a millionth of its range, which is 2e4


def test_rules_are_one_word_away_and_another_word_is_an_error() -> None:
    assert AdmissionRules.of("fleet") == AdmissionRules()
    with pytest.raises(ConfigError, match="rules must be 'fleet', AdmissionRules or None, got 'f"):
        FedSZGrid(grid_of(app_of()), rules="fleets")


def test_evaluation_and_queries_that_fail_bench_nobody_from_training() -> None:
    def fail(client: int, message: Message, context: Context) -> None:
        if message.metadata.message_type != "train" and client == 1:
            raise ValueError("no test data here")

    grid = FedSZGrid(grid_of(around(app_of(), before=fail)), rules="fleet")
    run(FedAvg(), grid, rounds=2 * PATIENCE)

    assert grid.take_traffic().replies == 2 * PATIENCE * 4


app = ClientApp(mods=[FedSZMod()])


@app.query()
def embed(message: Message, context: Context) -> Message:
    """Return embeddings and counts, beside the model that was sent."""
    rng = np.random.default_rng(1)
    found = {"embedding": rng.normal(size=(60, 50)).astype(np.float32), "counts": np.arange(900.0)}
    sent = {key: record_of(to_arrays(r)) for key, r in message.content.array_records.items()}
    return Message(RecordDict({"found": record_of(found), **sent}), reply_to=message)


@app.evaluate()
def embed_too(message: Message, context: Context) -> Message:
    return embed(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    records = {
        key: record_of({n: x + 1 for n, x in to_arrays(r).items()})
        for key, r in message.content.array_records.items()
    }
    content: Any = {**records, "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize("options", [{}, {"error_bound": 1e-2}, {"update": "feedback>topk"}])
@pytest.mark.parametrize("kind", ["query", "evaluate"])
def test_what_does_not_train_is_exact_from_the_first_message_on(
    kind: str, options: dict[str, Any]
) -> None:
    grid = FedSZGrid(LocalGrid(app, [{}, {}]), **options)
    model = {"w": np.random.default_rng(2).normal(size=(70, 40)).astype(np.float32)}
    content = RecordDict({"model": record_of(model)})

    replies = list(grid.send_and_receive([Message(content, n, kind) for n in grid.get_node_ids()]))

    for reply in replies:
        assert np.array_equal(to_arrays(reply.content["model"])["w"], model["w"])
        expected = np.random.default_rng(1).normal(size=(60, 50)).astype(np.float32)
        found = to_arrays(reply.content["found"])
        assert np.array_equal(found["embedding"], expected)
        assert np.array_equal(found["counts"], np.arange(900.0))


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("size", [4, 240])  # a few dozen bytes grow when they are compressed
def test_models_below_a_kilobyte_are_exact_and_never_larger(
    size: int, strategy: type[FedAvg]
) -> None:
    inner = Watched(LocalGrid(app, [{}, {}]))
    grid = FedSZGrid(inner)
    model = {"w": np.random.default_rng(2).normal(size=size).astype(np.float32)}

    result = strategy(fraction_evaluate=0, arrayrecord_key="model").start(
        grid, record_of(model), num_rounds=3
    )

    assert np.array_equal(to_arrays(result.arrays)["w"], ((model["w"] + 1) + 1) + 1)
    plain = sum(len(array.data) for array in record_of(model).values())
    assert grid.take_traffic().sent_up <= 3 * 2 * plain
    for content in (*inner.down, *inner.up):
        assert sum(len(a.data) for a in content["model"].values()) <= plain


def test_a_model_is_tested_as_it_is_trained_once_it_has_been() -> None:
    """Between rounds it goes as training's own: it would take as many bytes again."""
    inner = Watched(grid_of(app_of()))

    run(FedAvg(), FedSZGrid(inner), rounds=3)

    sizes = [sum(len(a.data) for a in content["arrays"].values()) for content in inner.down]
    assert max(sizes[4:]) < sum(x.nbytes for x in initial().values()) / 3
