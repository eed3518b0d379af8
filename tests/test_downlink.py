"""The model on its way out: all clients hold the same one, whatever each of them missed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.errors import ConfigError, ReferenceMismatch
from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.broadcast import FIRST_BOUND, Broadcast
from fedsz.flower.records import to_array
from fedsz.update.config import CompressionConfig
from fedsz.update.reference import Reference
from tests.federation import CLIENTS, app_of, grid_of, initial, moved, record_of, to_arrays

COARSE = "std:1"
CONFIG = CompressionConfig()


def walk(rounds: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """A model and where training takes it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 50)).astype(np.float32)
    models = []
    for _ in range(rounds):
        models.append({"fc.weight": x, "fc.bias": x[:, 0].copy(), "n": np.array(len(models))})
        x = (x + 0.01 * rng.laplace(size=x.shape)).astype(np.float32)
    return models


def decoded(streams: Iterable[bytes], held: Reference | None = None) -> Reference | None:
    for stream in streams:
        held = Reference(fedsz.decompress(stream, reference=held, as_numpy=True))
    return held


def same(a: Reference | None, b: Reference | None) -> bool:
    return a is not None and b is not None and a.digest == b.digest


def test_clients_hold_the_same_model_whatever_they_missed() -> None:
    downlink = Broadcast(CONFIG.replace(downlink=COARSE))
    clients: list[Reference | None] = [None] * 4
    for t, model in enumerate(walk(12)):
        downlink.put(model, reference=True)
        for i, held in enumerate(clients):
            if t % (i + 1) == 0:  # one comes each round, the others seldom
                clients[i] = decoded(downlink.streams(held.digest if held else b""), held)
                assert same(clients[i], downlink.model)


def test_a_broadcast_is_small_for_those_who_hold_the_last() -> None:
    downlink = Broadcast(CONFIG.replace(downlink=COARSE))
    first, second = walk(2)
    downlink.put(first, reference=True)
    held = downlink.model
    downlink.put(second, reference=True)

    (step,) = downlink.streams(held.digest if held else b"")
    both = downlink.streams(b"")

    assert 3 * len(step) < len(both[0])
    assert both[1] == step
    assert downlink.streams(downlink.model.digest if downlink.model else b"") == []


def test_the_first_model_is_fine() -> None:
    downlink = Broadcast(CONFIG.replace(downlink="std:5"))
    (model,) = walk(1)
    downlink.put(model, reference=True)

    assert downlink.model is not None
    error = np.abs(downlink.model.arrays["fc.weight"] - model["fc.weight"]).max()
    assert 0 < error <= fedsz.ErrorBound.rel(FIRST_BOUND).absolute(model["fc.weight"])


def test_a_long_chain_gives_way_to_the_whole_model() -> None:
    downlink = Broadcast(CONFIG.replace(downlink="1e-4"))
    models = walk(12)
    for model in models:
        downlink.put(model, reference=True)
        streams = downlink.streams(b"")
        assert sum(map(len, streams)) < 1.05 * downlink.raw_bytes
        assert same(decoded(streams), downlink.model)
    assert len(streams) == 1


def test_a_model_that_is_sent_again_is_the_same() -> None:
    downlink = Broadcast(CONFIG.replace(downlink=COARSE))
    for model in walk(3):
        downlink.put(model, reference=True)
        held = downlink.model
        downlink.put({name: x.copy() for name, x in model.items()}, reference=True)
        assert downlink.model is held


def test_another_model_is_a_key_frame() -> None:
    downlink = Broadcast(CONFIG.replace(downlink=COARSE))
    downlink.put(walk(1)[0], reference=True)
    held = downlink.model
    downlink.put({"other.weight": np.ones((50, 50), np.float32)}, reference=True)

    assert held is not None
    assert same(decoded(downlink.streams(held.digest)), downlink.model)


def app_that(forgets: dict[int, set[int]], seen: list[dict[str, Any]]) -> Any:
    """An app whose client i forgets all it knew before the rounds in ``forgets[i]``."""
    inner = app_of(lambda i, arrays: seen.append(arrays) or moved(arrays, i))
    turns: dict[int, int] = {}

    def app(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        turns[client] = turns.get(client, 0) + 1
        if turns[client] in forgets.get(client, set()):
            context.state = RecordDict()
        return inner(message, context)

    return app


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("update", ["weights", "delta", "delta+ef"])
@pytest.mark.parametrize("downlink", ["exact", COARSE])
def test_a_client_that_was_restarted_misses_no_round(
    strategy: type[FedAvg], update: str, downlink: str
) -> None:
    seen: list[dict[str, Any]] = []
    app = app_that({1: {2, 4}, 2: {3}}, seen)
    grid = FedSZGrid(grid_of(app), 1e-2, update=update, downlink=downlink)

    strategy(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=4)

    traffic = grid.take_traffic()
    assert (traffic.replies, traffic.failures) == (4 * CLIENTS, [])
    for t in range(4):
        of_round = seen[t * CLIENTS : (t + 1) * CLIENTS]
        assert len({Reference(arrays).digest for arrays in of_round}) == 1


@pytest.mark.parametrize("update", ["weights", "delta", "delta+ef"])
@pytest.mark.parametrize("downlink", ["exact", COARSE])
def test_a_server_that_was_restarted_goes_on_with_clients_that_remember(
    update: str, downlink: str
) -> None:
    inner = grid_of(app_of())
    arrays = record_of(initial())
    for _ in range(2):  # another server, the same run: its clients' state is of the first
        grid = FedSZGrid(inner, 1e-2, update=update, downlink=downlink)
        result = StreamingFedAvg(fraction_evaluate=0).start(grid, arrays, num_rounds=2)
        traffic = grid.take_traffic()
        assert (traffic.replies, traffic.failures) == (2 * CLIENTS, [])
        arrays = result.arrays


def test_a_client_that_comes_back_after_fifty_rounds_is_sent_what_it_lacks() -> None:
    seen: list[dict[str, Any]] = []
    inner = grid_of(app_that({}, seen))
    grid = FedSZGrid(inner, 1e-2, update="delta+ef", downlink=COARSE)
    arrays = record_of(initial())
    nodes = inner.get_node_ids()
    strategy = StreamingFedAvg(fraction_evaluate=0)
    for t in range(52):
        awake = nodes if t in (0, 51) else nodes[1:]
        content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
        pushed = [Message(content, node, "train") for node in awake]
        strategy._grid = grid
        arrays, _ = strategy.aggregate_train(t + 1, grid.stream_replies(pushed))
    assert grid.take_traffic().failures == []
    assert len({Reference(arrays).digest for arrays in seen[-CLIENTS:]}) == 1


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_a_model_that_is_tested_and_then_trained_goes_out_once(strategy: type[FedAvg]) -> None:
    sent = []
    for share in (0.0, 1.0):
        grid = FedSZGrid(grid_of(app_of()), 1e-2, update="delta+ef", downlink=COARSE)
        strategy(fraction_evaluate=share).start(grid, record_of(initial()), num_rounds=4)
        traffic = grid.take_traffic()
        assert traffic.failures == []
        sent.append(traffic.sent_down)
    # One step more: the last average, which nobody trains.
    assert sent[0] < sent[1] < 1.3 * sent[0]


def test_different_models_for_different_clients_go_out_exactly() -> None:
    seen: dict[int, Any] = {}
    app = app_of(lambda i, arrays: seen.setdefault(i, arrays) and arrays)
    inner = grid_of(app)
    grid = FedSZGrid(inner, 1e-2, update="delta", downlink=COARSE)
    models = [{"fc.weight": np.full((40, 50), i, np.float32)} for i in range(CLIENTS)]
    pushed = [
        Message(RecordDict({"arrays": record_of(model)}), node, "train")
        for model, node in zip(models, inner.get_node_ids(), strict=True)
    ]

    replies = list(grid.send_and_receive(pushed))

    assert not any(reply.has_error() for reply in replies)
    for i, model in enumerate(models):
        assert (seen[i]["fc.weight"] == model["fc.weight"]).all()


@pytest.mark.parametrize("update", ["weights", "delta", "delta+ef"])
def test_an_update_with_nan_is_left_out_and_its_residual_forgotten(update: str) -> None:
    turns: list[int] = []

    def edit(i: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        turns.append(i)
        after = moved(arrays, i)
        if i == 1 and turns.count(1) == 2:
            after["fc.weight"][3, 4] = math.nan
        return after

    app = app_of(edit)
    states: list[set[str]] = []

    def watched(message: Message, context: Context) -> Message:
        try:
            return app(message, context)
        finally:
            if context.node_config["partition-id"] == 1:
                states.append({name for name in context.state if "residual" in name})

    grid = FedSZGrid(grid_of(watched), "std:2", update=update)
    result = StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=3)

    traffic = grid.take_traffic()
    assert traffic.replies == 3 * CLIENTS - 1
    (reason,) = (failure.reason for failure in traffic.failures)
    assert "DivergedUpdate: training made NaN or infinities of 'fc.weight'" in reason
    assert np.isfinite(to_arrays(result.arrays)["fc.weight"]).all()
    kept = {"fedsz.residual.arrays"} if update == "delta+ef" else set()
    assert states == [kept, set(), kept]


@pytest.mark.parametrize("bug", [False, True])
def test_training_that_diverges_is_one_line_and_a_bug_has_its_traceback(
    bug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def edit(_: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {} if bug and 1 / 0 else {name: x * math.nan for name, x in arrays.items()}

    grid = FedSZGrid(grid_of(app_of(edit)), "std:2", downlink=COARSE)
    StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=1)

    told = [record for record in caplog.records if record.name == "fedsz.flower.mod"]
    assert len(told) == CLIENTS
    name = "ZeroDivisionError" if bug else "DivergedUpdate: training made NaN"
    assert all(name in record.message for record in told)
    assert all(bool(record.exc_info) is bug for record in told)


def test_a_tensor_that_was_never_finite_is_no_divergence() -> None:
    arrays = {"mask": np.array([0, -np.inf], np.float32), **initial()}
    grid = FedSZGrid(grid_of(app_of()), 1e-2, update="delta+ef", downlink=COARSE)

    StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(arrays), num_rounds=2)

    assert grid.take_traffic().failures == []


@pytest.mark.parametrize(
    "state",
    [
        {"fc.weight": np.ones((3, 3), np.float32)},  # of another model
        {"fc.weight": np.full((60, 50), np.nan, np.float32)},
    ],
    ids=["shape", "nan"],
)
def test_state_of_another_run_does_no_harm(state: dict[str, np.ndarray]) -> None:
    app = app_of()
    planted = {"fedsz.model.arrays", "fedsz.residual.arrays"}

    def with_state(message: Message, context: Context) -> Message:
        if not context.state:
            for name in planted:
                context.state[name] = record_of(state)
            context.state["fedsz.turn.arrays"] = ConfigRecord({"turn": 7})
        return app(message, context)

    grid = FedSZGrid(grid_of(with_state), "std:1", update="delta+ef", downlink=COARSE)
    result = StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=2)

    assert grid.take_traffic().failures == []
    assert np.isfinite(to_arrays(result.arrays)["fc.weight"]).all()


def test_a_damaged_memory_counts_as_none() -> None:
    app = app_of()

    def damaged(message: Message, context: Context) -> Message:
        if "fedsz.model.arrays" in context.state:
            record = context.state["fedsz.model.arrays"]
            record["fc.weight"] = to_array(np.zeros((60, 50), np.float32))
        return app(message, context)

    grid = FedSZGrid(grid_of(damaged), 1e-2, update="delta", downlink=COARSE)
    StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(initial()), num_rounds=3)

    traffic = grid.take_traffic()
    assert (traffic.replies, traffic.failures) == (3 * CLIENTS, [])


@pytest.mark.parametrize("bound", ["0", "-1", "nan", "std:inf", "fine", "std:0", "abs:-2"])
def test_a_bound_that_is_none_is_refused(bound: str) -> None:
    with pytest.raises(ConfigError, match="error bound"):
        FedSZGrid(grid_of(app_of()), 1e-2, downlink=bound)
    with pytest.raises(ConfigError, match="error bound"):
        FedSZGrid(grid_of(app_of()), bound, update="delta+ef")


def test_a_stream_of_differences_is_not_decoded_without_its_model() -> None:
    downlink = Broadcast(CONFIG.replace(downlink=COARSE))
    for model in walk(2):
        downlink.put(model, reference=True)
    step = downlink.streams(b"")[1]
    with pytest.raises(ReferenceMismatch):
        decoded([step])


def test_weights_go_up_while_the_model_comes_down_within_a_step() -> None:
    grid = FedSZGrid(grid_of(app_of()), update="weights", downlink="step:1")
    strategy = FedAvg(fraction_evaluate=0.0)

    strategy.start(grid, record_of(initial()), num_rounds=3)

    traffic = grid.take_traffic()
    assert not traffic.failures
    assert traffic.raw_down > 2 * traffic.sent_down
