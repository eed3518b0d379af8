"""The two lines compress, choose what is safe, and change nothing else of an app."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsz.control.record import RoundRecord
from fedsz.core.protocol import Request
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg, compressed
from fedsz.flower.records import STYPE, note_of
from fedsz.flower.round_statistics import log_round
from fedsz.flower.rules import Rules
from tests.federation import (
    CLIENTS,
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


def test_all_clients_are_asked_and_no_round_needs_a_quorum() -> None:
    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if client:
            raise RuntimeError("not today")
        return moved(arrays, client)

    grid = FedSZGrid(grid_of(app_of(edit)))

    run(FedAvg(fraction_evaluate=0), grid, rounds=9)

    assert grid.take_traffic().replies == 9


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
    assert Rules.of("fleet") == Rules()
    with pytest.raises(ConfigError, match="rules must be 'fleet', Rules or None, got 'f"):
        FedSZGrid(grid_of(app_of()), rules="fleets")


def test_evaluations_that_fail_keep_no_client_from_training() -> None:
    def fail(client: int, message: Message, context: Context) -> None:
        if message.metadata.message_type != "train" and client == 1:
            raise ValueError("no test data here")

    grid = FedSZGrid(grid_of(around(app_of(), before=fail)), rules="fleet")
    run(FedAvg(), grid, rounds=6)

    assert grid.take_traffic().replies == 6 * 4


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


ROUNDS = 4
Train = Callable[[int, dict[str, np.ndarray]], dict[str, np.ndarray]]


def two_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "0": rng.normal(size=(100, 80)).astype(np.float32),
        "1": rng.normal(size=100).astype(np.float32),
    }


def step(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(client)
    return {k: (x + rng.normal(0, 1e-3, x.shape)).astype(x.dtype) for k, x in arrays.items()}


stepping = partial(app_of, step, examples=lambda _: 1)


def start(grid: Grid, *, rounds: int = ROUNDS, evaluate: float = 0.0, seed: int = 0) -> Any:
    nodes = len(list(grid.get_node_ids()))
    strategy = FedAvg(
        fraction_evaluate=evaluate,
        min_train_nodes=nodes,
        min_available_nodes=nodes,
        min_evaluate_nodes=1,
    )
    return strategy.start(grid, record_of(two_tensors(seed)), num_rounds=rounds)


def alone(app: ClientApp) -> LocalGrid:
    """One client: the sums of several depend on the order in which Flower asks them."""
    return LocalGrid(app, [{"partition-id": 0}])


def settings_in(content: RecordDict) -> Settings:
    """What a message asks of a client."""
    return Request.decode(note_of(content)).settings


@pytest.mark.parametrize(("codec", "ratio"), [("uniform", 10), ("szx", 2)])
def test_whoever_names_nothing_or_a_codec_alone_gets_what_is_safe(codec: str, ratio: int) -> None:
    watched = Watched(grid_of(stepping()))
    grid = FedSZGrid(watched, codec=codec)
    start(grid)

    asked = settings_in(watched.down[0])
    assert (asked.update, asked.rule, asked.codec) == ("delta+ef", "shape", codec)
    assert asked.error_bound.startswith("step:")
    traffic = grid.take_traffic()
    assert traffic.lossy == 1  # the vector could be statistics
    assert traffic.raw_up > ratio * traffic.sent_up


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("error_bound", "0.001"),
        ("rule", "ndim"),
        ("update", "delta"),
        ("downlink", "std:1"),
        ("threshold", 5),
    ],
)
def test_whoever_names_something_gets_exactly_that(name: str, value: Any) -> None:
    watched = Watched(grid_of(stepping()))
    start(FedSZGrid(watched, **{name: value}), rounds=2)

    for content in watched.down:
        asked = settings_in(content)
        assert getattr(asked, name) == value
        assert asked.error_bound == (value if name == "error_bound" else "0.01")


def test_evaluation_neither_has_nor_takes_the_residual() -> None:
    """Its arrays go exactly, they are counted apart, and training is as it is without them."""
    finals = []
    for evaluate in (0.0, 1.0):
        # Bounds that stay: `auto` has another for each round, and evaluation comes before it.
        grid = FedSZGrid(alone(stepping(evaluates_arrays=True)), "step:1", downlink="step:1")
        finals.append(to_arrays(start(grid, evaluate=evaluate).arrays))
        traffic = grid.take_traffic()
        assert traffic.replies == ROUNDS
        assert traffic.raw_other == evaluate * traffic.raw_up
    assert all(np.array_equal(finals[0][name], x) for name, x in finals[1].items())


def test_a_second_grid_starts_without_the_residuals_of_the_first() -> None:
    fresh = to_arrays(start(FedSZGrid(alone(stepping())), seed=1).arrays)

    clients = alone(stepping())
    start(FedSZGrid(clients))
    second = to_arrays(start(FedSZGrid(clients), seed=1).arrays)

    assert all(np.array_equal(fresh[name], x) for name, x in second.items())


def test_each_round_is_a_line_in_flowers_log(flower_log: list[str]) -> None:
    start(FedSZGrid(grid_of(stepping())))
    assert [line.split(":")[1] for line in flower_log] == [
        f" round {n}" for n in range(1, ROUNDS + 1)
    ]
    for part in (f"{CLIENTS} replies", "up ", "x smaller", "energy arrived"):
        assert part in flower_log[-1]


def test_a_round_that_saves_nothing_claims_nothing(flower_log: list[str]) -> None:
    seen = {"replies": 1, "tensors": 1, "lossy": 1, "raw_down": 1000, "sent_down": 990}
    log_round(RoundRecord(**seen, round=1, raw_up=100, sent_up=3000))
    log_round(RoundRecord(round=2, raw_down=10, raw_other=9, sent_down=10, sent_other=9))
    assert flower_log == [
        "fedsz: round 1: 1 replies, up 3.0 kB of 100 B, down 990 B of 1.0 kB",
        "fedsz: round 2: down 10 B of 10 B, replies that do not train 9 B of 9 B",
    ]


def test_the_mods_class_and_a_grid_that_is_wrapped_twice_are_told(flower_log: list[str]) -> None:
    start(FedSZGrid(grid_of(stepping(mods=[FedSZMod]))), rounds=1)
    assert any("mods has the class FedSZMod: write FedSZMod()" in line for line in flower_log)
    with pytest.raises(ConfigError, match="this Grid is a FedSZGrid already: wrap it once"):
        FedSZGrid(FedSZGrid(grid_of(stepping())))
    with pytest.raises(ConfigError, match="wrap it once"):
        FedSZGrid(Watched(FedSZGrid(grid_of(stepping()))))


def test_whoever_forgets_the_mod_is_told_so(flower_log: list[str]) -> None:
    start(FedSZGrid(grid_of(stepping(mods=[]))), rounds=1)
    assert any(STYPE in line and "FedSZMod()" in line for line in flower_log)


def test_an_app_that_is_handed_no_grid_gets_one_of_ours() -> None:
    app = ServerApp()
    given: list[Grid] = []

    @app.main()
    def _(grid: Grid, context: Context) -> None:
        del context
        given.append(grid)
        start(grid, rounds=1)

    clients = grid_of(stepping())
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    compressed(app, codec="szx")(clients, context)

    (grid,) = given
    assert isinstance(grid, FedSZGrid)
    assert grid.take_traffic().replies == CLIENTS


def test_a_second_run_of_one_grid_has_no_residual_of_the_first() -> None:
    moves, app = [0.45], ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        x = message.content["arrays"]["w"].numpy() + np.float32(moves[0])
        content = {"arrays": ArrayRecord({"w": Array(x)})}
        content["metrics"] = MetricRecord({"num-examples": 1})
        return Message(RecordDict(content), reply_to=message)

    # So wide that both runs send zeros: 0.9 and 0.6 are all residual, and only their sum is not.
    grid = FedSZGrid(LocalGrid(app, [{}] * 2), "abs:1", update="delta+ef", threshold=0)
    first = ArrayRecord({"w": Array(np.zeros(500, np.float32))})
    once = FedAvg(fraction_evaluate=0.0).start(grid, first, num_rounds=2)
    moves[0] = 0.2
    again = FedAvg(fraction_evaluate=0.0).start(grid, first, num_rounds=3)

    assert not once.arrays["w"].numpy().any()
    assert not again.arrays["w"].numpy().any()
